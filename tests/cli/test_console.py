"""What commands say, in a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.markup import escape

from sparsefleet.cli.console import say, size_text
from sparsefleet.train.reporting.console import BarReporter, LogReporter

PATH = "/a/path/that/is/longer/than/any/line/of/this/terminal"
TEXT = f"[bold]error:[/] what came is named: {PATH} and what to do about it"


@pytest.mark.parametrize(
    ("terminal", "lines"),
    [
        (True, ["error: what came is named:", PATH, "and what to do about it"]),
        (False, [f"error: what came is named: {PATH} and what to do about it"]),
    ],
)
def test_lines_break_between_words_in_a_terminal_only(terminal, lines):
    file = io.StringIO()
    say(TEXT, to=Console(file=file, width=30, force_terminal=terminal, no_color=True, highlight=False))
    shown = file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert [line.rstrip() for line in shown.splitlines()] == lines


def test_names_that_look_like_emoji_or_styles_are_shown_as_they_are(cli, tmp_path):
    """A path that is shown must be one that exists."""
    done = cli("train", "--data", tmp_path / ":x:[red]", "--model", "nofile.py:X")
    assert done.exit_code == 1
    assert "nofile.py:X: there is no file nofile.py" in " ".join(done.stderr.split())
    file = io.StringIO()
    say(f"{escape('a/:x:/[red]b')} :key:", to=Console(file=file, width=80))
    assert file.getvalue() == "a/:x:/[red]b :key:\n"


@pytest.mark.parametrize("reporter", [BarReporter, lambda console: LogReporter(console, 10.0)])
def test_metrics_of_slots_named_like_styles_are_shown_by_these_names(reporter) -> None:
    file = io.StringIO()
    reporter(Console(file=file, width=100, emoji=False)).evaluated(1, {"segment_[b]col_auc": 0.5, ":key:_auc": 0.25})
    assert "segment [b]col auc 0.50000  :key: auc 0.25000" in " ".join(file.getvalue().split(" "))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_600, "1 MB"),
        (12_345_678, "12.3 MB"),
        (5e12, "5 TB"),
        (1.5e15, "1,500 TB"),
    ],
)
def test_sizes_are_three_digits_and_a_unit(count, text):
    assert size_text(count) == text
