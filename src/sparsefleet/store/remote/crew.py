"""RemoteCrew: the trainers of a job on parameter servers. They meet at server 0, and send each other letters."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, TypeVar

from sparsefleet.core.errors import Disagreement, StoreError
from sparsefleet.crew.base import Crew, CutMember, Entry, Reports
from sparsefleet.store.base import Pending
from sparsefleet.store.remote.calls import Calls
from sparsefleet.store.remote.connection import reason_of
from sparsefleet.store.remote.joint_cut import JointCutWatch, open_cut
from sparsefleet.store.remote.leases import RemoteLender
from sparsefleet.store.remote.long_wait import LongWait
from sparsefleet.store.remote.meetings import Meetings
from sparsefleet.store.wire import Frame, Letter
from sparsefleet.store.wire.frames import EMPTY, Bytes

log = logging.getLogger(__name__)
T = TypeVar("T")

LETTER_BYTES = 4 << 20
"""About as much as a letter carries."""


class RemoteCrew(Crew):
    def __init__(self, calls: Calls) -> None:
        self._calls, self._connection = calls, calls.connection
        config = self._connection.config
        self.index, self.size = config.worker, config.workers
        first_link, self._heartbeats = self._connection.links[0], self._connection.heartbeats
        self._meetings = Meetings(
            first_link, self._connection.identity, self._heartbeats.check, self._heartbeats.hear_first
        )
        self._watch: JointCutWatch | None = None
        self._entered: dict[str, Any] | None = None
        """What the servers told this trainer when it came late."""
        self.catching_up = False
        self._came_late = self._connection.late

    @property
    def late(self) -> bool:
        return self._came_late and self.catching_up

    def first(self) -> int:
        return self._heartbeats.first

    def barrier(self, name: str, timeout: float | None = None) -> None:
        if not self._past(f"barrier {name!r}"):
            self._meetings.meet("barrier", name, None, _seconds(timeout))

    def reduce(self, name: str, payload: Mapping[str, Any], timeout: float | None = None) -> list[Any]:
        if self._past(f"reduce {name!r}"):
            return [payload]
        return self._meetings.meet("reduce", name, payload, _seconds(timeout))

    def _past(self, meeting: str) -> bool:
        if self.catching_up:
            log.warning("%s: the others have met before this trainer was started again; it goes on alone", meeting)
        return self.catching_up

    def lender(self, name: str, *, told: Mapping[str, Any] | None = None) -> RemoteLender:
        laps = self._entered["laps"] if self._entered is not None and self._entered["name"] == name else 0
        first, identity = self._connection.links[0], self._connection.identity
        return RemoteLender(first, identity, name, self.barrier, told=told, laps=laps)

    def begin_run(self, *, leased: bool) -> None:
        # Server 0 first: it is the last that a launcher asks to go on without a lost trainer.
        for link in self._connection.links:
            link.action("begin_run", {**self._connection.identity, "leased": leased})

    def enter(self) -> Entry | None:
        if self._entered is None:
            if not self._connection.late:
                return None
            self._entered = self._let_in()
        told = self._entered
        fit, epoch = _numbers_in(told["name"])
        scored = f"fit {fit}, evaluation "
        evaluations = [_numbers_in(name)[1] for _, name, _ in told["turns"] if name.startswith(scored)]
        return Entry(fit, epoch - 1, int(told["step"]), told["position"], max(evaluations, default=0), told["told"])

    def _let_in(self) -> dict[str, Any]:
        links, identity = self._connection.links, self._connection.identity
        limit, wait = links[0].config.timeout, LongWait()
        while True:
            answer = links[0].action("enter", {**identity, "patience": min(1.0, limit / 4)}, limit)
            if answer.get("over"):
                self._leave("which came to its end before this trainer could take part")
            if "name" in answer:
                break
            self._heartbeats.check()
            wait.tell("joining the job", "until the others train")
        for link in links[1:]:
            link.action("let_in", identity)
        self._meetings.go_on_from(answer["turns"])
        return answer

    def caught_up(self) -> None:
        self.catching_up = False

    def leave_job(self) -> NoReturn:
        self._leave("as it was asked to")

    def _leave(self, why: str) -> NoReturn:
        log.warning("worker %d leaves the job, %s", self.index, why)
        if self._watch is not None:
            self._watch.abandon()  # before the connection: a client that is closed under a call ends the process
        self._connection.close()
        raise SystemExit(0)

    def lost(self) -> list[str]:
        return list(self._stats()["lost"])

    def not_begun(self) -> list[int]:
        return list(self._stats()["not_begun"])

    @contextlib.contextmanager
    def attending(self, member: CutMember) -> Iterator[None]:
        watch = JointCutWatch(self._connection.links[0], self._connection.identity, member)
        watch.start()
        self._watch = watch
        try:
            yield
            watch.end(member.report(None))
        except BaseException:
            watch.abandon()
            raise
        finally:
            self._watch = None

    def at_one_moment(self, member: CutMember, hold: AbstractContextManager[object], act: Callable[[Reports], T]) -> T:
        """All members send what they keep back; the store is held; all say where they stand."""
        watch = self._watch
        with open_cut(self._connection.links[0], self._connection.identity) as cut:
            try:
                cut.ask("pause", meanwhile=member.pause)
                with hold:
                    reports, applied = cut.ask("report")
                    mine = member.report(None if watch is None else watch.run_steps(applied))
                    return act({**reports, self.index: mine})
            finally:
                member.resume()

    def report(self, status: Mapping[str, Any]) -> None:
        """From the next heartbeat on."""
        self._heartbeats.status = dict(status)

    @property
    def given_up(self) -> bool:
        """`give_up` was called: to the servers this trainer is lost."""
        return self._connection.given_up

    def give_up(self, error: BaseException | None) -> None:
        """So a script may end with `stop_worker` whatever happens, and is not taken for one that is out of samples."""
        self._connection.give_up(
            "it ended without fleet.stop_worker()" if error is None else reason_of(error),
            own_error=error is not None and _is_own(error),
            no_error=error is None,
        )

    def stop(self) -> None:
        """This trainer is done; servers end when all are."""
        if not self.given_up:
            for link in self._connection.links:
                link.action("stop", self._connection.identity)

    def send_letter(self, box: str, to: int, body: Bytes, *, last: bool = False) -> Pending[None]:
        """Leave bytes for another trainer to take; the answer comes when a server has them."""

        def nothing(frames: list[Frame]) -> None:
            return None

        if self.catching_up:
            raise StoreError(
                f"exchange {box!r}: the others have exchanged samples before this trainer was started again, and it "
                "cannot have its own back (global_shuffle). Start the job again and resume it"
            )
        header = {"op": "put_letter", "box": box, "to": to, "last": last}
        return self._calls.send(f"letter to worker {to}", {to % self._calls.servers: (header, body, 0)}, nothing)

    def take_letter(self, box: str, number: int, expected: Sequence[int]) -> Letter | None:
        """This trainer's letter `number` (from 0) of a box, or None where it has not come within a second.

        expected: the trainers that still have letters for us; one that is lost is an error.
        """
        header = {"op": "take_letter", "box": box, "number": number, "expected": list(expected)}

        def letter(frames: list[Frame]) -> Letter | None:
            (frame,) = frames
            if "sender" not in frame.header:
                return None
            return Letter(int(frame.header["sender"]), frame.header.get("last") is True, frame.body.copy())

        server = self.index % self._calls.servers
        return self._calls.send(f"letters of {box!r}", {server: (header, EMPTY, LETTER_BYTES)}, letter).wait()

    def _stats(self) -> dict[str, Any]:
        return self._connection.links[0].action("stats", {})


def _numbers_in(name: str) -> list[int]:
    """Of a pass or a meeting: "fit 1, epoch 2" is [1, 2]."""
    return [int(number) for number in re.findall(r"\d+", name)]


def _seconds(timeout: float | None) -> float | None:
    if timeout is not None and timeout <= 0:
        raise StoreError(f"timeout={timeout} must be above 0 seconds")
    return timeout


def _is_own(error: BaseException) -> bool:
    """Whether the error is this trainer's own, not that it was interrupted or cut off."""
    return isinstance(error, Disagreement) or not isinstance(error, StoreError | KeyboardInterrupt)
