"""What the launcher of a job that heals makes of processes that end, without any: they are stand-ins."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from healing_jobs import Watching

from sparsefleet import launch
from sparsefleet.fleet.healing import START_AGAIN
from sparsefleet.fleet.roles import Role
from sparsefleet.launch.healing_job import HealingJob
from sparsefleet.launch.process import Exit
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.train.healing import HEAL, cut_record

ENDPOINTS = ("127.0.0.1:1",)
KILLED = Exit(128 + 9, "SIGKILL")


@dataclass(eq=False)
class StandIn:
    """For a `RoleProcess`."""

    role: Role
    exit: Exit | None = None
    ended_by_us: bool = False
    ended_at: float | None = None
    stopped: bool = False
    seconds: float = 1.0
    incomplete: bool = False

    @property
    def running(self) -> bool:
        return self.exit is None

    @property
    def failed(self) -> bool:
        return self.exit is not None and self.exit.status != 0 and not self.ended_by_us

    def kill(self) -> None:
        """There is nothing."""


class Launcher(HealingJob):
    """Its servers have come up, and say what `answer` has; nobody need reach them."""

    def __init__(self, folder: Path, workers: int, restarts: int) -> None:
        roles = [
            Role.server(0, workers, ENDPOINTS),
            *(Role.worker(index, workers, ENDPOINTS) for index in range(workers)),
        ]
        settings = launch.RunSettings(log_dir=folder, restart=launch.RestartPolicy(restarts))
        self.view = Watching()
        super().__init__(roles, settings, self.view, {"SPARSEFLEET_TOKEN": "t" * 32})
        self._processes = [StandIn(role) for role in roles]  # type: ignore[misc]
        self.answer: dict[str, Any] = {"attempt": 1, "members": list(range(workers)), "leased": False}
        assert self._attempts is not None
        self._attempts.make_folder()
        self._attempts.look_now = self._look_now  # type: ignore[method-assign]
        self._look_now()

    def _look_now(self) -> bool:
        assert self._attempts is not None
        self._attempts._answers[0] = {**self.answer, "attempt": self._attempts.number}
        return True

    def _successor(self, process: Any, attempts: Any) -> Any:
        return StandIn(process.role)

    def end(self, role: str, how: Exit) -> None:
        """A process is seen to have ended."""
        (process,) = [process for process in self._processes if str(process.role) == role]
        process.exit, process.ended_at = how, time.monotonic()
        assert self._takes_over(process)
        self._heal()

    @property
    def losses(self) -> int:
        assert self._attempts is not None
        return len(self._attempts._losses)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path, workers=8, restarts=1)


def test_one_loss_is_one_however_many_workers_ask_to_be_started_again_for_it(launcher: Launcher) -> None:
    launcher.end("server 0", KILLED)
    for worker in range(8):  # outside of fit, all of them
        launcher.end(f"worker {worker}", Exit(START_AGAIN))
    assert launcher.losses == 1
    assert launcher._too_many is None, launcher.view.said
    assert all(process.running for process in launcher._processes)


def test_a_worker_that_asks_again_and_again_is_not_started_for_ever(launcher: Launcher) -> None:
    for _ in range(2):  # the first time, it may have met the end of an attempt
        launcher.end("worker 3", Exit(START_AGAIN))
    assert launcher.losses == 1
    launcher.end("worker 3", Exit(START_AGAIN))
    assert launcher._too_many is not None
    assert launcher._too_many.startswith("2 losses within")


def cut_of(launcher: Launcher, fit: int, ended: bool, positions: dict[str, Any]) -> None:
    assert launcher._attempts is not None
    place = launcher._attempts.folder / "attempt-0001" / f"step-00000007-{fit:03d}{int(ended)}"
    record = cut_record(fit, {0: 10, 1: 10}, fit, {"test": None} if ended else None)
    LocalStore().save(str(place), RunFacts(step=7, positions=positions, extra={"training": {HEAL: record}}))


@pytest.mark.parametrize(
    ("cut", "answer", "begins"),
    [
        pytest.param((1, False, {"0": {}, "1": {}}), {"shares": True}, False, id="within the epoch"),
        pytest.param((1, False, {"0": {}, "1": {}}), {"shares": False}, False, id="as the cut itself says"),
        pytest.param((1, False, {}), {"shares": True}, False, id="before the first step"),
        pytest.param(None, {"shares": True}, False, id="there is none"),
        pytest.param((1, True, {}), {"shares": True}, True, id="at the end"),
        pytest.param((1, True, {}), {"shares": True, "fits_ended": 2}, False, id="at the end of the call before"),
        pytest.param((2, True, {}), {"shares": True, "fits_ended": 2}, True, id="at the end of the second"),
        pytest.param((2, False, {}), {"shares": True}, True, id="of a call that the others make without it"),
        pytest.param((1, False, {"leases": {}}), {"shares": False}, True, id="leased"),
        pytest.param(None, {"shares": False, "fits_ended": 0}, True, id="nobody trains"),
    ],
)
def test_no_attempt_begins_without_workers_whose_shares_are_not_all_in_the_cut(
    tmp_path: Path, cut: Any, answer: dict[str, Any], begins: bool
) -> None:
    launcher = Launcher(tmp_path, workers=2, restarts=5)
    if cut is not None:
        cut_of(launcher, *cut)
    launcher.answer |= {"fits_ended": 1, "stopped": [1], **answer}
    launcher._processes[2].exit = Exit(0)
    launcher.end("worker 0", KILLED)  # while it saves, say
    said = "\n".join(launcher.view.said)
    assert (launcher._too_many is None) == begins, said
    assert ("attempt 2 begins from" in said) == begins, said
    if not begins:
        assert "giving up: worker 0 ended (killed by SIGKILL), and worker 1 had come to the end of the job" in said
        assert ("start the whole job again, with --resume " in said) == (cut is not None)
        assert [str(process.role) for process in launcher._failures] == ["worker 0"]
