"""What commands say, in a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sparsefleet.cli.console import say

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
