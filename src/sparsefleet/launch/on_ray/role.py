"""RayRole: what the launcher sees of a role that runs on some node of a Ray cluster."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role
from sparsefleet.launch.on_ray.actor import Place, Report
from sparsefleet.launch.process import Exit, RoleProcess

REPORT_SECONDS = 1.0
"""How long an actor waits for something to report."""
START_SECONDS = 60.0
UNREACHABLE_SECONDS = 30.0
"""How long Ray may fail to reach an actor that, as far as it knows, lives."""
LOST = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class LostExit(Exit):
    """Nobody saw how the process ended: its actor, or the node that it was on, is gone."""

    address: str = ""

    def __str__(self) -> str:
        return f"lost with its actor: node {self.address} is gone, or Ray has killed it"


class RayRole(RoleProcess):
    """The same face as a process of this host. Its log is here: the actor reports what the role prints."""

    def __init__(
        self, role: Role, actor: Any, place: Place, log: Path, *, former: RayRole | None = None, again: bool = False
    ) -> None:
        """former: whose place it takes, in the same actor or in another one; its log goes on.

        again: its number was another's before, whose log goes on too.
        """
        self.role, self.log, self.actor, self.place = role, log, actor, place
        self.exit: Exit | None = None
        self.ended_by_us = False
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self.listened = False
        self._stopped = False
        self._pid = 0
        self._report: Any = None
        self._known = former.hand_over() if former is not None and former.actor is actor else 0
        """Bytes of its output that have arrived."""
        self._seen = False
        """Its end was told by `look`."""
        self._handed_over = False
        self._unreachable_since: float | None = None
        try:
            mode = "ab" if former is not None or again else "wb"
            self._file = open(log, mode, buffering=0)  # noqa: SIM115  (open as long as the role is)
        except OSError as error:
            raise ConfigError(f"{role}: its log {log} cannot be written: {error.strerror}") from None

    def start(self, command: Sequence[str], python: str, variables: Mapping[str, str], folder: str | None) -> Any:
        """Ask for it; `started` is told the answer."""
        self.started_at = time.monotonic()
        return self.actor.start.remote(self.role, list(command), python, dict(variables), folder)

    def started(self, answer: Any) -> None:
        try:
            self._pid = int(ray.get(answer, timeout=START_SECONDS))
        except ray.exceptions.RayTaskError as error:
            raise ConfigError(f"{self.role} cannot be started: {error.cause}") from None
        except ray.exceptions.GetTimeoutError:
            raise ConfigError(
                f"{self.role} was not started within {START_SECONDS:g} s on node {self.place.address}: is the node "
                f"overloaded?"
            ) from None
        except ray.exceptions.RayError:
            self._lost()
            return
        self._report = self.actor.report.remote(self._known, REPORT_SECONDS)

    @property
    def gone(self) -> bool:
        """With its actor: whoever takes its place needs room for another one."""
        return isinstance(self.exit, LostExit)

    @property
    def pid(self) -> int:
        """On its node."""
        return self._pid

    def look(self) -> bool:
        if self.running and self._report is not None and ray.wait([self._report], timeout=0)[0]:
            self._hear()
        if self.running or self._seen:
            return False
        self._seen = True
        return True

    def _hear(self) -> None:
        try:
            report: Report = ray.get(self._report)
        except ray.exceptions.ActorUnavailableError:  # a connection broke; the actor may well be alive
            now = time.monotonic()
            self._unreachable_since = self._unreachable_since or now
            if now - self._unreachable_since > UNREACHABLE_SECONDS:
                self._lost()
            else:
                self._report = self.actor.report.remote(self._known, REPORT_SECONDS)
            return
        except ray.exceptions.RayError:
            self._lost()
            return
        self._unreachable_since = None
        self._file.write(report.output)
        self._known += len(report.output)
        self.listened = self.listened or report.listened
        self._stopped = report.stopped
        if report.exit is None:
            self._report = self.actor.report.remote(self._known, REPORT_SECONDS)
        else:
            self.exit, self.ended_at, self._report = report.exit, time.monotonic(), None

    def _lost(self) -> None:
        self.exit = LostExit(LOST, "SIGKILL", self.place.address)
        self.ended_at, self._report = time.monotonic(), None

    @property
    def stopped(self) -> bool:
        return self.running and self._stopped

    def interrupt(self, number: signal.Signals) -> None:
        self.actor.signal.remote(int(number))

    def kill(self) -> None:
        self.actor.end.remote(True)

    def end(self, *, at_once: bool) -> Any:
        return self.actor.end.remote(at_once)

    def hand_over(self) -> int:
        """Another one starts in the same actor. How much of the actor's output is in the log."""
        self._handed_over = True
        return self._known

    def reap(self, timeout: float) -> None:
        """Let actor and log go."""
        if self._handed_over:
            self._file.close()
            return
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self.actor.close.remote(), timeout=timeout)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.actor)
        self._file.close()
