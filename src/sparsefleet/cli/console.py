"""What all commands share: messages and progress on stderr, results on stdout, errors without tracebacks."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sparsefleet.core.errors import SparseFleetError

P = ParamSpec("P")
R = TypeVar("R")

console = Console(stderr=True, highlight=False)
"""For people. What other programs read goes to stdout with `print`."""

LOG_SECONDS = 10.0
"""Where stderr is no terminal: a line this often."""
INTERRUPTED = 130

Update = Callable[[int, int | None], None]
"""(done, total); total None where it is not known."""


def errors_to_exit(command: Callable[P, R]) -> Callable[P, R]:
    """A command whose errors become one red message and exit status 1, and Ctrl-C status 130. Bugs keep their
    traceback.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except SparseFleetError as error:
            console.print(f"[bold red]error:[/] [red]{escape(str(error))}[/]", soft_wrap=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            console.print("[yellow]interrupted[/]")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output (`| head`) has seen enough. Python would complain again when it flushes
            # at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return wrapped


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """A polite end asked for by a scheduler is treated like Ctrl-C: stop between two steps, save if asked to."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress(title: str, unit: str = "rows", to: Console = console) -> Iterator[Update]:
    """A progress bar, or plain lines every few seconds where stderr is no terminal. `unit` is "rows" or
    "bytes".
    """
    if to.is_terminal:
        with _bar(unit, to) as bar:
            task = bar.add_task(title, total=None, speed="")
            started = time.monotonic()

            def update(done: int, total: int | None) -> None:
                speed = done / max(time.monotonic() - started, 1e-3)
                bar.update(task, completed=done, total=total, speed=f"{speed:,.0f} {unit}/s")

            yield update
        return
    log = _Lines(title, unit, to)
    yield log.update
    log.end()


def _bar(unit: str, to: Console) -> Progress:
    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
    if unit == "bytes":
        return Progress(*columns, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), console=to)
    return Progress(*columns, TextColumn("{task.fields[speed]}"), TimeRemainingColumn(), console=to)


class _Lines:
    """Progress as log lines."""

    def __init__(self, title: str, unit: str, to: Console) -> None:
        self._title, self._unit, self._to = title, unit, to
        self._started = self._logged = time.monotonic()
        self._first: int | None = None
        self._done, self._total = 0, None  # type: tuple[int, int | None]

    def update(self, done: int, total: int | None) -> None:
        if self._first is None:
            self._first = done if done and self._unit == "bytes" else 0
        self._done, self._total = done, total
        now = time.monotonic()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            share = f" ({100 * done / total:.0f} %)" if total else ""
            of = f" of {self._amount(total)}" if total else ""
            self._print(f"{self._amount(done)}{of}{share}, {self._speed(now)}")

    def end(self) -> None:
        if self._first is not None:
            now = time.monotonic()
            self._print(f"done, {self._amount(self._done)} in {now - self._started:.1f} s, {self._speed(now)}")

    def _amount(self, number: int) -> str:
        return f"{number / 1e6:,.1f} MB" if self._unit == "bytes" else f"{number:,} {self._unit}"

    def _speed(self, now: float) -> str:
        return self._amount(int((self._done - (self._first or 0)) / max(now - self._started, 1e-3))) + "/s"

    def _print(self, text: str) -> None:
        self._to.print(f"{self._title}: {text}", markup=False, soft_wrap=True)
