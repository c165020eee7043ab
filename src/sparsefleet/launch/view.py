"""What people see of a running job: a live line per role in a terminal, a line per change of state elsewhere."""

from __future__ import annotations

import contextlib
import re
import sys
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparsefleet.launch.process import RoleProcess

REDRAW_SECONDS = 0.25
PROGRAM = "fleetrun"
ENDED_WELL = "ended well"
PID_WIDTH = 110
"""Narrower terminals have no room for process numbers: what a role says is worth more."""
_DISPENSABLE = tuple(
    re.compile(pattern)
    for pattern in (
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?\s+(INFO )?",
        r"(?<=\S) +(?= )",
        r" window auc \S+",
        r" [\d,]+ (rows|words)(?= )",
        r" [\d:]+ left$",
    )
)
"""What a line goes without where there is no room for all of it, one after the other: the time of day, double spaces,
and of a trainer's figures (`train/reporting`) those that are missed least. Speed, loss and AUC stay."""


class View(ABC):
    wants_progress: bool = False
    """Whether to tell now and then how far the job is: a live line of each role does that by itself."""

    @abstractmethod
    def update(self, processes: Sequence[RoleProcess]) -> None:
        """Called often while the job runs."""

    @abstractmethod
    def say(self, text: str) -> None:
        """One line about the job as a whole."""

    @abstractmethod
    def quote(self, lines: Sequence[str]) -> None:
        """Lines of a role's log."""

    def close(self, processes: Sequence[RoleProcess]) -> None:
        """The job is over; show how every role ended."""
        self.update(processes)


def view_for(stream: TextIO | None = None, *, program: str = PROGRAM, show_result: bool = True) -> View:
    """Live where the stream (standard error) is a terminal. `program` stands before each line about the job.

    show_result: at the end of a job quote the last line of the first worker's log; a program that tells of the result
    in words of its own has it left out.
    """
    stream = stream or sys.stderr
    if stream.isatty():
        return LiveView(Console(file=stream, emoji=False), program, show_result=show_result)
    return PlainView(stream, program, show_result=show_result)


class PlainView(View):
    wants_progress = True

    def __init__(self, stream: TextIO, program: str = PROGRAM, *, show_result: bool = True) -> None:
        self._stream, self._program, self._show_result = stream, program, show_result
        self._shown: dict[int, str] = {}

    def update(self, processes: Sequence[RoleProcess]) -> None:
        for process in processes:
            state = state_of(process)
            if self._shown.get(process.pid) != state:
                self._shown[process.pid] = state
                self.say(f"{process.role}: {state}, {self._more(process)}")

    def _more(self, process: RoleProcess) -> str:
        if process.running:
            return f"pid {process.pid}, log {process.log}"
        said = None if process.exit is None or process.exit.status == 0 else process.error_line()
        if said is None and (process.failed or self._show_result):
            said = next(iter(process.last_lines(1)), None)
        return f"after {process.seconds:.1f} s" + (f": {said}" if said else "")

    def say(self, text: str) -> None:
        self._print(f"{self._program}: {text}")

    def quote(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print(f"    {line}")

    def _print(self, text: str) -> None:
        # A job does not end because nobody listens any more.
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self._stream, flush=True)


class LiveView(View):
    def __init__(self, console: Console, program: str = PROGRAM, *, show_result: bool = True) -> None:
        self._console, self._program, self._show_result = console, program, show_result
        self._live: Live | None = None
        self._drawn_at = 0.0

    def update(self, processes: Sequence[RoleProcess]) -> None:
        if time.monotonic() - self._drawn_at >= REDRAW_SECONDS:
            self._draw(processes)

    def close(self, processes: Sequence[RoleProcess]) -> None:
        self._draw(processes)
        if self._live is not None:
            with contextlib.suppress(OSError, ValueError):
                self._live.stop()
            self._live = None
        for process in processes:
            # A job's result stands there; the table may have cut it short.
            if self._show_result and process.role.is_first_worker and state_of(process) == ENDED_WELL:
                self.quote(process.last_lines(1))

    def say(self, text: str) -> None:
        self._print(f"{self._program}: {text}")

    def quote(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print(line, indent="    ")

    def _print(self, text: str, indent: str = "") -> None:
        # Between words; a path that is longer than a line stays whole, to be copied.
        lines = textwrap.wrap(
            text,
            self._console.width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        with contextlib.suppress(OSError, ValueError):
            self._console.print(Text("\n".join(lines)), soft_wrap=True)

    def _draw(self, processes: Sequence[RoleProcess]) -> None:
        self._drawn_at = time.monotonic()
        with contextlib.suppress(OSError, ValueError):
            if self._live is None:
                # Drawn by us, never by a thread: processes are forked from here.
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(_table(processes, self._console.width), refresh=True)


def state_of(process: RoleProcess) -> str:
    if process.running:
        return "stopping" if process.ended_by_us else "running"
    if process.failed:
        return f"failed, {process.exit}"
    return "stopped" if process.ended_by_us else ENDED_WELL


_COLOURS = {"running": "green", "stopping": "yellow", "stopped": "yellow", ENDED_WELL: "cyan"}


def _table(processes: Sequence[RoleProcess], width: int) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    # The terminal writes ^C behind the last line: it must not wrap, or the lines are redrawn one too low.
    table.width = max(width - 3, 1)
    rows = [_facts(process, with_pid=width >= PID_WIDTH) for process in processes]
    widths = [max(text.cell_len for text in column) for column in zip(*rows, strict=True)]
    for _ in widths:
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    room = table.width - sum(column + 2 for column in widths)
    for process, facts in zip(processes, rows, strict=True):
        table.add_row(*facts, Text(shortened(next(iter(process.last_lines(1)), ""), room)))
    return table


def _facts(process: RoleProcess, *, with_pid: bool) -> list[Text]:
    state = state_of(process)
    return [
        Text(str(process.role), style="bold"),
        Text(state, style=_COLOURS.get(state, "bold red")),
        *([Text(f"pid {process.pid}", style="dim")] if with_pid else []),
        Text(_clock(process.seconds), style="dim"),
    ]


def shortened(line: str, room: int) -> str:
    """The line without what it can go without, as far as it must; it may still be too long."""
    for pattern in _DISPENSABLE:
        if cell_len(line) <= room:
            break
        line = pattern.sub("", line)
    return line


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        if whole >= 3600
        else f"{whole // 60}:{whole % 60:02d}"
    )
