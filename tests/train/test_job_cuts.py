"""JobCuts: how often a job that heals takes its cuts, and that one which cannot be written ends nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from sparsefleet.store.base import RunFacts
from sparsefleet.train import job_cuts
from sparsefleet.train.job_cuts import JobCuts


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(job_cuts.time, "monotonic", lambda: self.now)


class Writes:
    """In place of a Saver: keeps what is to be written until it is told how that went."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.end: Callable[[Exception | None], None] = lambda error: None

    def aside(self, path_of: Any, keep: int, ended: Callable[[Exception | None], None], *, wait: bool) -> None:
        self.paths.append(path_of(RunFacts(step=7)))
        self.end = ended


def test_the_distance_follows_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, writes = Clock(monkeypatch), Writes()
    cuts = JobCuts(writes, "cuts/attempt-0001", None)  # type: ignore[arg-type]
    assert not cuts.due()
    clock.now += 10
    assert cuts.due()
    cuts.take()
    assert writes.paths[0].endswith("cuts/attempt-0001/step-00000007")
    clock.now += 2  # so long it is written
    assert not cuts.due(), "one at a time"
    writes.end(None)
    clock.now += 199
    assert not cuts.due()
    clock.now += 2
    assert cuts.due(), "a hundred times what the last one took"


def test_one_that_fails_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, writes = Clock(monkeypatch), Writes()
    cuts = JobCuts(writes, "cuts", 5.0)  # type: ignore[arg-type]
    clock.now += 5
    cuts.take()
    with caplog.at_level(logging.WARNING, "sparsefleet.train"):
        writes.end(OSError("no space left on device"))
        assert "a cut was not written, training goes on" in caplog.text
        assert "no space left on device" in caplog.text
        clock.now += 5
        assert cuts.due()
        cuts.take()
        writes.end(None)
        assert "cuts are written again" in caplog.text
