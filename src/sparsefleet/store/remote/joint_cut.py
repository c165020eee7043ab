"""A trainer's side of a checkpoint of the whole job; `server/joint_cut.py` has the other side, and the phases.

`JointCutWatch` answers for this trainer when another one saves; `JointCutRequest` asks the others when this one does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.crew import CutMember
from sparsefleet.store.remote.link import NOT_UP, ServerLink

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
WATCH_SECONDS = 1.0
"""A question waits at the server for so long, and as long again for its answer; less where the time-out is short. A
server that is stopped must not keep this thread, and with it the process (which crashes if it ends while a thread is
within a call)."""


class JointCutWatch:
    """Waits at server 0 for checkpoints of others, in a thread of its own, from `start` to `end`."""

    def __init__(self, link: ServerLink, identity: Mapping[str, Any], member: CutMember) -> None:
        self._link, self._identity, self._member = link, dict(identity), member
        self._patience = min(WATCH_SECONDS, link.config.timeout / 8)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparsefleet-cuts", daemon=True)
        self._steps_before = 0
        """Batches of this trainer that servers had applied before the run."""

    def start(self) -> None:
        self._steps_before = int(self._until_free("attend", {})["steps"])
        self._thread.start()

    def end(self, report: Mapping[str, Any]) -> None:
        """The run is over, and left this trainer where `report` says."""
        self._until_free("depart", {"report": report})
        self.abandon()

    def abandon(self) -> None:
        """The run has failed: nobody answers for this trainer any more."""
        self._stop.set()
        self._thread.join(2 * self._patience + WATCH_SECONDS)

    def run_steps(self, applied: int) -> int:
        """Of the batches that servers have applied, those of this run."""
        return applied - self._steps_before

    def _until_free(self, action: str, data: Mapping[str, Any]) -> dict[str, Any]:
        while True:
            answer = self._ask(action, data, self._link.config.timeout)
            if not answer.get("busy"):
                return answer

    def _ask(self, action: str, data: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        request = {**self._identity, **data, "patience": self._patience}
        return self._link.action(action, request, self._patience + seconds)

    def _run(self) -> None:
        cut, phase, paused, answered = None, None, False, time.monotonic()
        try:
            while not self._stop.is_set():
                try:
                    answer = self._ask("watch_cuts", {"cut": cut, "phase": phase}, self._patience)
                    answered = time.monotonic()
                except StoreError as error:
                    # Whoever trains gets that error too, and ends with it; here there is only to wait. But while all
                    # stand still for a checkpoint, nobody else finds out.
                    log.debug("watching for checkpoints: %s", error)
                    over = not isinstance(error.__cause__, NOT_UP)
                    if paused and (over or time.monotonic() - answered > self._link.config.timeout):
                        self._member.fail(error)
                        return
                    self._stop.wait(RETRY_SECONDS)
                    continue
                if answer.get("departed"):
                    return
                if not answer:
                    continue
                self._link.heard_of(answer)
                cut, phase = answer["cut"], answer["phase"]
                if paused and phase != "report":
                    self._member.resume()
                    paused = False
                if phase is not None and not self._stop.is_set():
                    paused = paused or phase == "pause"
                    self._serve(cut, phase, int(answer["steps"]))
        finally:
            if paused:
                self._member.resume()

    def _serve(self, cut: str, phase: str, applied: int) -> None:
        answer: dict[str, Any] = {"cut": cut, "phase": phase}
        try:
            if phase == "pause":
                self._member.pause()
            else:
                answer["report"] = self._member.report(self.run_steps(applied))
        except SparseFleetError as error:
            answer["failure"] = str(error)
        except Exception as error:
            log.exception("a checkpoint's cut failed here")
            answer["failure"] = repr(error)
        try:
            self._link.action("answer_cut", {**self._identity, **answer})
        except StoreError as error:
            log.warning("a checkpoint of another trainer: %s", error)


class JointCutRequest:
    def __init__(self, link: ServerLink, name: str) -> None:
        self._link, self._name = link, name

    def ask(self, phase: str, meanwhile: Callable[[], None] = lambda: None) -> tuple[dict[int, Any], int]:
        """Every other trainer's report, and how many batches of this trainer servers have applied.

        `meanwhile` is called once the others have been asked.
        """
        # Longer than servers take to tell who is lost: one that stands still is theirs to leave out.
        limit = 2 * self._link.config.timeout
        answer = self._ask(phase, 0.0)
        meanwhile()
        deadline = time.monotonic() + limit
        while "reports" not in answer:
            if time.monotonic() > deadline:
                raise StoreError(
                    f"no checkpoint was written: after {limit:g} s still without {', '.join(answer['missing'])}"
                )
            answer = self._ask(phase, min(2.0, limit / 8))
        return {int(worker): report for worker, report in answer["reports"].items()}, int(answer["steps"])

    def _ask(self, phase: str, patience: float) -> dict[str, Any]:
        request = {"cut": self._name, "phase": phase, "patience": patience}
        return self._link.action("ask_all", request, patience + self._link.config.timeout)


@contextmanager
def open_cut(link: ServerLink, identity: Mapping[str, Any]) -> Iterator[JointCutRequest]:
    name = str(link.action("open_cut", identity)["cut"])
    try:
        yield JointCutRequest(link, name)
    finally:
        try:
            link.action("close_cut", {"cut": name})
        except StoreError as error:
            log.warning("after a save: %s; the others go on once this trainer is lost to them", error)
