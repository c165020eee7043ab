"""What a trainer tells its store about itself, for `sparsefleet status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sparsefleet.store import LocalStore
from sparsefleet.train import status
from sparsefleet.train.progress import Progress
from sparsefleet.train.status import StatusReports


class Listening(LocalStore):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Any]] = []

    def report(self, status: Mapping[str, Any]) -> None:
        self.heard.append(dict(status))


def test_once_a_second_with_the_speed_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(status.time, "monotonic", lambda: now)
    monkeypatch.setattr(status.time, "perf_counter", lambda: now)
    store, progress = Listening(), Progress(epochs=2)
    reports = StatusReports(store, progress)
    reports.staleness = lambda: 7
    progress.start_clock()
    for tenth in range(101):
        now = 100.0 + tenth / 10
        progress.step += 1
        progress.rows += 100 if tenth < 50 else 300  # a tenth of a second
        reports.tick()
    assert len(store.heard) in (10, 11)
    last = store.heard[-1]
    assert last["doing"] == "training"
    assert last["step"] == pytest.approx(101, abs=10)
    assert last["rows_per_s"] == pytest.approx(3000, rel=0.01), "of the last seconds, not of the whole run"
    assert last["staleness"] == 7

    reports.resting("scoring")
    assert store.heard[-1] == {**last, "doing": "scoring", "staleness": 0} | {
        name: store.heard[-1][name] for name in ("step", "rows", "rows_per_s")
    }


def test_epochs_shorter_than_a_report_have_a_speed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(status.time, "monotonic", lambda: now)
    monkeypatch.setattr(status.time, "perf_counter", lambda: now)
    store, progress = Listening(), Progress(epochs=20)
    reports = StatusReports(store, progress)
    for _ in range(20):
        progress.start_clock()
        reports.tick()
        now += 0.5
        progress.rows += 1000
        progress.stop_clock()
        reports.resting("scoring")
        now += 10.0
    assert [heard["rows_per_s"] for heard in store.heard[1:]] == pytest.approx([2000.0] * 39, rel=0.01)
    assert store.heard[0]["rows_per_s"] is None, "nothing trained yet"


def test_a_speed_that_is_not_known_yet_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(status.time, "monotonic", lambda: now)
    monkeypatch.setattr(status.time, "perf_counter", lambda: now)
    store, progress = Listening(), Progress(epochs=1)
    progress.step = 1500  # of an earlier pass
    reports = StatusReports(store, progress)
    reports.resting("waiting for the others")
    progress.start_clock()
    now += 0.01
    reports.tick()
    assert [heard["rows_per_s"] for heard in store.heard] == [None, None]
    now += 5.0
    reports.tick()
    assert store.heard[-1]["rows_per_s"] == 0.0, "in five seconds not one row"
    progress.rows += 1000
    now += 5.0
    reports.tick()
    assert store.heard[-1]["rows_per_s"] == pytest.approx(200, rel=0.01), "of the last five seconds"


def test_the_loss_is_of_the_samples_since_the_report_before() -> None:
    store, progress = Listening(), Progress(epochs=1)
    reports = StatusReports(store, progress)
    reports.resting("waiting for the others")
    assert store.heard[-1]["loss"] is None, "no sample yet"
    progress.rows, progress._loss = 10, 7.0
    reports.resting("scoring")
    assert store.heard[-1]["loss"] == pytest.approx(0.7)
    progress.rows, progress._loss = 30, 11.0
    reports.resting("scoring")
    assert store.heard[-1]["loss"] == pytest.approx(0.2)
