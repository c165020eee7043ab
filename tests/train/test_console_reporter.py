"""What a person sees of a run: a bar that fits into 80 columns, or lines."""

from __future__ import annotations

import io
import re

from rich.console import Console

from sparsefleet.train.progress import Snapshot
from sparsefleet.train.reporting import console_reporter

SNAPSHOT = Snapshot(
    epoch=1, epochs=12, step=45_000, rows=45_840_617, seconds=1000.0, share=0.25, loss=0.45678, auc=0.76543,
    batch_auc=0.78901,
)  # fmt: skip
FIGURES = ("45,840,617 rows", "45,841 rows/s", "loss 0.45678", "auc 0.76543", "window auc 0.78901", "2:23:20 left")


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=terminal, color_system=None)
    reporter = console_reporter(console, log_seconds=0.0)
    reporter.tick(lambda: SNAPSHOT)
    reporter.close()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())


def test_a_bar_loses_no_figure_in_80_columns() -> None:
    text = shown(terminal=True)
    assert "…" not in text
    text = " ".join(text.split())
    for figure in ("epoch 2/12", "25%", *FIGURES):
        assert figure in text, figure


def test_lines_say_the_same() -> None:
    text = shown(terminal=False)
    for figure in ("epoch 2/12  25%", *FIGURES):
        assert figure in text, figure


def test_without_a_console_it_is_standard_error(capsys) -> None:  # type: ignore[no-untyped-def]
    console_reporter().epoch_end(SNAPSHOT)
    heard = capsys.readouterr()
    assert heard.out == ""
    assert "epoch 2/12 done" in heard.err
