"""What commands say, in a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sparsefleet.cli.console import say, size_text

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
