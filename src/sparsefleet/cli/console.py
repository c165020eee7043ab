"""What all commands share: messages and progress on stderr, results on stdout, errors without tracebacks."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import rich.progress
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sparsefleet.cli import INTERRUPTED
from sparsefleet.core.errors import SparseFleetError

P = ParamSpec("P")
R = TypeVar("R")

console = Console(stderr=True, highlight=False, emoji=False)
"""For people. What other programs read goes to stdout with `print`."""

PIPED_WIDTH = 200
LOG_SECONDS = 10.0
"""Where stderr is no terminal: a line this often."""


def say(text: str, *, to: Console = console, style: str | None = None, markup: bool = True) -> None:
    """A line for people. In a terminal it is broken between words, and within none: a long path stays whole."""
    line = Text.from_markup(text, emoji=False) if markup else Text(text)
    if to.is_terminal:
        line = Text("\n").join(line.divide(_breaks(line.plain, to.width)))
    to.print(line, style=style, soft_wrap=True)


def _breaks(line: str, width: int) -> list[int]:
    """Where to begin a new line; rich itself would break long words too, or nothing."""
    places, column = list[int](), 0
    for match in re.finditer(r"\S+\s*", line):
        word = match[0]
        if column and column + cell_len(word.rstrip()) > width:
            places.append(match.start())
            column = 0
        column += cell_len(word)
    return places


def tell_error(error: SparseFleetError) -> None:
    say(f"[bold red]error:[/] [red]{escape(str(error))}[/]")


def errors_exit_with(status: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A command whose errors become one red message and this exit status, and Ctrl-C status 130.

    Bugs keep their traceback.
    """

    def decorate(command: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(command)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                result = command(*args, **kwargs)
                sys.stdout.flush()
                return result
            except SparseFleetError as error:
                tell_error(error)
                raise typer.Exit(status) from None
            except KeyboardInterrupt:
                console.print("[yellow]interrupted[/]")
                raise typer.Exit(INTERRUPTED) from None
            except BrokenPipeError:
                # The reader of our output (`| head`) has seen enough. Python would complain again when it flushes
                # at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(0) from None

        return wrapped

    return decorate


def errors_to_exit(command: Callable[P, R]) -> Callable[P, R]:
    """Errors become exit status 1: what most commands want."""
    return errors_exit_with(1)(command)


def results() -> Console:
    """Results for people, on stdout. In a pipe, lines are as long as they need be."""
    out = Console(highlight=False, emoji=False)
    if not out.is_terminal:
        out.width = PIPED_WIDTH
    return out


def figures(*columns: str) -> Table:
    """A table for `add_figures`. Columns of numbers are marked by `>`: they stand to the right and stay whole, while
    names go on in the next line where the terminal is narrow. Nothing is ever cut off.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        number = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def add_figures(table: Table, *cells: str | Text) -> None:
    """A row. What stands in it is no markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def size_text(count: float) -> str:
    """Bytes, as people read them: three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} TB" if count >= 999.5 else f"{count:.3g} TB"


class Progress(ABC):
    """How far a command has come: called with (done, total), total None where it is not known."""

    @abstractmethod
    def __call__(self, done: int, total: int | None) -> None: ...

    @abstractmethod
    def another(self, title: str) -> Progress:
        """For a second stage of the same command."""


@contextmanager
def progress(title: str, unit: str = "rows", to: Console = console) -> Iterator[Progress]:
    """A progress bar, or plain lines every few seconds where stderr is no terminal.

    `unit` is "rows" or "bytes".
    """
    if to.is_terminal:
        with _display(unit, to) as display:
            yield _Bar(display, title, unit)
    else:
        stages: list[_Lines] = []
        yield _Lines(title, unit, to, stages)
        for lines in stages:
            lines.end()


class _Pace:
    """Speed since the first report, which may start above 0: a resumed download."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._started = 0.0

    def speed(self, done: int) -> float:
        if self._first is None:
            self._first, self._started = done, time.monotonic()
        return (done - self._first) / max(time.monotonic() - self._started, 1e-3)


class _Bar(Progress):
    """A bar of a live display; it appears when there is something to show."""

    def __init__(self, display: rich.progress.Progress, title: str, unit: str) -> None:
        self._display, self._title, self._unit = display, title, unit
        self._task: rich.progress.TaskID | None = None
        self._pace = _Pace()

    def __call__(self, done: int, total: int | None) -> None:
        speed = f"{self._pace.speed(done):,.0f} {self._unit}/s"
        if self._task is None:
            self._task = self._display.add_task(self._title, total=total, completed=done, speed=speed)
        self._display.update(self._task, completed=done, total=total, speed=speed)

    def another(self, title: str) -> Progress:
        return _Bar(self._display, title, self._unit)


def _display(unit: str, to: Console) -> rich.progress.Progress:
    if unit == "bytes":
        amount = [rich.progress.DownloadColumn(), rich.progress.TransferSpeedColumn()]
    else:
        amount = [rich.progress.TextColumn("{task.fields[speed]}")]
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        *amount,
        rich.progress.TimeRemainingColumn(),
        console=to,
    )


class _Lines(Progress):
    """Log lines, for files and pipes."""

    def __init__(self, title: str, unit: str, to: Console, stages: list[_Lines]) -> None:
        self._title, self._unit, self._to, self._stages = title, unit, to, stages
        self._pace = _Pace()
        self._logged = time.monotonic()
        self._done: int | None = None
        stages.append(self)

    def __call__(self, done: int, total: int | None) -> None:
        if self._done is None:
            self._logged = time.monotonic()
        self._done = done
        speed = self._pace.speed(done)
        if time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            of = f" of {self._amount(total)} ({100 * done / total:.0f} %)" if total else ""
            self._print(f"{self._amount(done)}{of}, {self._amount(speed)}/s")

    def another(self, title: str) -> Progress:
        return _Lines(title, self._unit, self._to, self._stages)

    def end(self) -> None:
        if self._done is not None:
            speed = self._pace.speed(self._done)
            self._print(f"{self._amount(self._done)}, {self._amount(speed)}/s, done")

    def _amount(self, number: float) -> str:
        return size_text(number) if self._unit == "bytes" else f"{number:,.0f} {self._unit}"

    def _print(self, text: str) -> None:
        self._to.print(f"{self._title}: {text}", markup=False, soft_wrap=True)
