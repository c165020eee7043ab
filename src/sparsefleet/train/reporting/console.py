"""What a person sees: a progress bar in a terminal, plain log lines elsewhere. Both write to standard error."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn
from rich.text import Text

from sparsefleet.train.progress import Snapshot
from sparsefleet.train.reporting.base import Look, Reporter

logger = logging.getLogger("sparsefleet.train")


Describe = Callable[[Snapshot], str]


def console_reporter(
    console: Console | None = None, log_seconds: float = 10.0, describe: Describe | None = None
) -> Reporter:
    """The one that fits where the console writes to: standard error, unless told.

    `describe`: what to tell of a moment, where samples and AUC are not what the run is about.
    """
    console = console or Console(stderr=True, highlight=False, emoji=False)
    describe = describe or describe_training
    return BarReporter(console, describe) if console.is_terminal else LogReporter(console, log_seconds, describe)


def with_time_left(text: str, snapshot: Snapshot) -> str:
    left = time_left(snapshot)
    return text + (f"  {left}" if left else "")


def describe_training(snapshot: Snapshot) -> str:
    parts = [
        f"{snapshot.rows:,} rows",
        f"{_number(snapshot.rows_per_second, ',.0f')} rows/s",
        f"loss {_number(snapshot.loss, '.5f')}",
        f"auc {_number(snapshot.auc, '.5f')}",
        f"window auc {_number(snapshot.batch_auc, '.5f')}",
    ]
    if snapshot.own:
        parts.append(describe_metrics(snapshot.own))
    return "  ".join(parts)


def time_left(snapshot: Snapshot) -> str:
    left = seconds_left(snapshot)
    return "" if left is None else f"{_clock(left)} left"


def seconds_left(snapshot: Snapshot) -> float | None:
    """Until the last epoch's end, at the speed so far."""
    if not snapshot.share or not snapshot.seconds:
        return None
    done = snapshot.epoch + snapshot.share
    here = done - snapshot.done_before
    if done >= snapshot.epochs or here <= 0:
        return None
    return snapshot.seconds * (snapshot.epochs - done) / here


class _Bar(Progress):
    """The bar, and the figures in a line of their own: side by side they do not fit into 80 columns."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield from (Text(task.fields["text"]) for task in self.tasks)


class BarReporter(Reporter):
    def __init__(self, console: Console, describe: Describe | None = None) -> None:
        self._console, self._describe = console, describe or describe_training
        self._bar = _Bar(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(),
            TextColumn("{task.fields[left]}"), console=console, transient=True,
        )  # fmt: skip
        self._task: TaskID | None = None
        self._next = 0.0

    def tick(self, look: Look) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.5
        snapshot = look()
        if self._task is None:
            self._task = self._bar.add_task("", total=1.0, text="", left="")
        self._bar.update(
            self._task,
            description=f"epoch {snapshot.epoch + 1}/{snapshot.epochs}",
            completed=snapshot.share or 0.0,
            text=self._describe(snapshot),
            left=time_left(snapshot),
        )
        self._bar.start()

    def epoch_end(self, snapshot: Snapshot) -> None:
        self._hide()
        told = with_time_left(self._describe(snapshot), snapshot)
        self._console.print(f"[bold]epoch {snapshot.epoch + 1}/{snapshot.epochs}[/]  {escape(told)}")

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        self._console.print(f"[bold]test[/]  {escape(describe_metrics(values))}")

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        mark = "  [bold]best so far[/]" if best else ""
        self._console.print(f"[bold]valid[/]  {escape(describe_metrics(values))}{mark}")

    def saved(self, path: str, step: int) -> None:
        self._console.print(f"[bold]saved[/]  {escape(path)}", soft_wrap=True)

    def close(self) -> None:
        self._hide()

    def _hide(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._bar.stop()
            self._task = None


class LogReporter(Reporter):
    def __init__(self, console: Console, seconds: float, describe: Describe | None = None) -> None:
        self._console, self._seconds, self._describe = console, seconds, describe or describe_training
        self._next = time.monotonic() + seconds

    def tick(self, look: Look) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            snapshot = look()
            share = "" if snapshot.share is None else f" {snapshot.share:4.0%}"
            self._say(f"epoch {snapshot.epoch + 1}/{snapshot.epochs}{share}  {self._tell(snapshot)}")

    def epoch_end(self, snapshot: Snapshot) -> None:
        self._say(f"epoch {snapshot.epoch + 1}/{snapshot.epochs} done  {self._tell(snapshot)}")

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        self._say(f"test  {describe_metrics(values)}")

    def validated(self, step: int, values: Mapping[str, float], best: bool) -> None:
        self._say(f"valid  {describe_metrics(values)}{'  best so far' if best else ''}")

    def saved(self, path: str, step: int) -> None:
        self._say(f"saved {path}")

    def _tell(self, snapshot: Snapshot) -> str:
        return with_time_left(self._describe(snapshot), snapshot)

    def _say(self, text: str) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        self._console.print(f"{now}  {text}", markup=False, highlight=False, soft_wrap=True)


def describe_metrics(values: Mapping[str, float]) -> str:
    return "  ".join(
        f"{name.replace('_', ' ')} {_number(value, ',d' if isinstance(value, int) else '.5f')}"
        for name, value in values.items()
    )


def _number(value: float, form: str) -> str:
    return "-" if isinstance(value, float) and math.isnan(value) else format(value, form)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
