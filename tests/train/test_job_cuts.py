"""JobCuts: how often a job that heals takes its cuts, and that one which cannot be written ends nothing."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from sparsefleet.checkpoint import Chain, Manifest, loadable, prune
from sparsefleet.core.errors import Rejoin
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.train import job_cuts
from sparsefleet.train.job_cuts import LEAST_SECONDS, MOST_SECONDS, RECENT, Distance, JobCuts

WRITTEN = Manifest(step=7)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(job_cuts.time, "monotonic", lambda: self.now)


class Writes:
    """In place of a Saver: keeps what is to be written until it is told how that went."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.end: Callable[[Manifest | Exception], None] = lambda outcome: None

    def aside(
        self,
        path_of: Any,
        keep: int,
        ended: Callable[[Manifest | Exception], None],
        *,
        chain: Chain,
        wait: bool,
    ) -> None:
        self.paths.append(path_of(RunFacts(step=7)))
        self.end = ended


class Attempt:
    """In place of a trainer's `Healing`."""

    def __init__(self, folder: str, cut_every: float | None) -> None:
        self.folder, self.cut_every, self.chain = folder, cut_every, Chain()
        self.cut_wanted: str | None = None
        self.told: list[tuple[str, str | None, str | None]] = []

    def cut_taken(self, ticket: str, cut: str | None, error: str | None) -> None:
        self.told.append((ticket, cut, error))


def cuts_of(writes: Writes, attempt: Attempt) -> JobCuts:
    return JobCuts(writes, attempt)  # type: ignore[arg-type]


def test_the_distance_follows_the_cost(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clock, writes = Clock(monkeypatch), Writes()
    cuts = cuts_of(writes, Attempt("cuts/attempt-0001", None))
    assert not cuts.due()
    clock.now += 10
    assert cuts.due()
    cuts.take()
    assert writes.paths[0].endswith("cuts/attempt-0001/step-00000007-0001")
    clock.now += 2  # so long it is written
    assert not cuts.due(), "one at a time"
    with caplog.at_level(logging.INFO, "sparsefleet.train"):
        writes.end(WRITTEN)
    assert "a whole cut at step 7: 0 rows, 0.0 MB in 2.00 s; the next in 200 s" in caplog.text
    clock.now += 199
    assert not cuts.due()
    clock.now += 2
    assert cuts.due(), "a hundred times what the last one took"


def test_cuts_take_a_hundredth_of_the_time_within_bounds() -> None:
    distance = Distance(None)
    assert distance.seconds == LEAST_SECONDS
    distance.took(0.01)
    assert distance.seconds == LEAST_SECONDS
    distance = Distance(None)
    distance.took(2.0)  # a whole one
    assert distance.seconds == pytest.approx(200)
    for _ in range(RECENT - 1):
        distance.took(0.4)  # deltas upon it
    assert distance.seconds == pytest.approx(100 * (2.0 + 0.4 * (RECENT - 1)) / RECENT)
    distance.took(0.4)
    assert distance.seconds == pytest.approx(40), "the whole one is long ago"
    distance.took(10_000.0)
    assert distance.seconds == MOST_SECONDS
    given = Distance(7.0)
    given.took(100.0)
    assert given.seconds == 7.0


def test_one_that_fails_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, writes = Clock(monkeypatch), Writes()
    cuts = cuts_of(writes, Attempt("cuts", 5.0))
    clock.now += 5
    cuts.take()
    with caplog.at_level(logging.WARNING, "sparsefleet.train"):
        writes.end(OSError("no space left on device"))
        assert "a cut was not written, training goes on" in caplog.text
        assert "no space left on device" in caplog.text
        clock.now += 5
        assert cuts.due()
        cuts.take()
        writes.end(WRITTEN)
        assert "cuts are written again" in caplog.text


def test_one_that_is_asked_for_is_taken_at_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    writes, attempt = Writes(), Attempt("cuts", 1000.0)
    cuts = cuts_of(writes, attempt)
    for number, outcome in enumerate((WRITTEN, OSError("no space left on device"))):
        assert not cuts.due()
        attempt.cut_wanted = f"ticket {number}"
        assert cuts.due()
        cuts.take()
        assert attempt.told[number:] == []
        writes.end(outcome)
        assert not cuts.due(), "servers may ask for a moment longer"
    assert attempt.told[0][0] == "ticket 0"
    assert str(attempt.told[0][1]).endswith("cuts/step-00000007-0001")
    assert attempt.told[0][2] is None
    assert attempt.told[1][2] == "no cut could be written: no space left on device"


def test_cuts_go_on_while_their_trainer_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, taken = Clock(monkeypatch), SimpleQueue[None]()
    asked = threading.Event()
    """Somebody has asked whose the cuts are."""

    class Told(Writes):
        def aside(self, *arguments: Any, **more: Any) -> None:
            super().aside(*arguments, **more)
            taken.put(None)

    def mine() -> bool:
        asked.set()
        return first

    writes, first = Told(), False
    cuts = cuts_of(writes, Attempt("cuts", 5.0))
    clock.now += 5
    with cuts.while_waiting(mine):
        assert asked.wait(20)
        assert not writes.paths, "they are another trainer's to take"
        first = True
        for _ in range(3):
            taken.get(timeout=20)
            writes.end(WRITTEN)
            clock.now += 5
        taken.get(timeout=20)
        writes.end(WRITTEN)
    clock.now += 5
    assert cuts.due(), "nobody looks any more"
    assert len(writes.paths) == 4


def test_each_has_a_name_of_its_own_though_its_trainer_stands_still(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Clock(monkeypatch)
    writes, attempt = Writes(), Attempt(str(tmp_path), 5.0)
    names = ["step-00000007-0001", "step-00000007-0002", "step-00000007-0003"]
    for taker in (cuts_of(writes, attempt), cuts_of(writes, attempt)):  # the second goes on for one that was lost
        taker.take()
        LocalStore().save(writes.paths[-1], RunFacts(step=7))
        writes.end(WRITTEN)
    shutil.rmtree(tmp_path / names[0])  # as a prune does
    cuts_of(writes, attempt).take()
    assert [Path(path).name for path in writes.paths] == names
    LocalStore().save(writes.paths[-1], RunFacts(step=7))
    assert [checkpoint.location.name for checkpoint in loadable(tmp_path)] == [names[2], names[1]]
    assert prune(tmp_path, keep=1) == [names[1]]


def test_an_error_of_who_waits_comes_out_and_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    cuts, before = cuts_of(Writes(), Attempt("cuts", 5.0)), threading.active_count()
    with pytest.raises(OSError, match="a server is gone"), cuts.while_waiting(lambda: True):
        raise OSError("a server is gone")
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("failures", "tries"),
    [
        ([OSError("disk full")], 2),
        ([OSError("disk full")] * 5, 3),
        ([Rejoin("attempt 2 has begun")], 1),
    ],
)
def test_one_that_all_wait_for_is_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch, failures: list[Exception], tries: int
) -> None:
    """After the one at the end of fit there is no other: without it, a loss goes back to before that."""
    slept: list[float] = []
    monkeypatch.setattr(job_cuts.time, "sleep", slept.append)

    class Failing(Writes):
        def aside(self, path_of: Any, keep: int, ended: Any, *, chain: Chain, wait: bool) -> None:
            super().aside(path_of, keep, ended, chain=chain, wait=wait)
            ended(failures.pop(0) if failures else WRITTEN)

    writes, once = Failing(), list(failures)
    cuts_of(writes, Attempt("cuts", 5.0)).take(wait=True)
    assert len(writes.paths) == tries == len(slept) + 1
    failures[:] = once
    cuts_of(writes, Attempt("cuts", 5.0)).take()
    assert len(writes.paths) == tries + 1, "others come soon"
