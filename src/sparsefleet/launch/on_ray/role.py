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
LOST = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class LostExit(Exit):
    """Nobody saw how the process ended: its actor, or the node that it was on, is gone."""

    address: str = ""

    def __str__(self) -> str:
        return f"lost with its actor: node {self.address} is gone, or Ray has killed it"


class RayRole(RoleProcess):
    """The same face as a process of this host. Its log is here: the actor reports what the role prints."""

    def __init__(self, role: Role, actor: Any, place: Place, log: Path) -> None:
        self.role, self.log, self.actor, self.place = role, log, actor, place
        self.exit: Exit | None = None
        self.ended_by_us = False
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self.listened = False
        self._stopped = False
        self._pid = 0
        self._report: Any = None
        try:
            self._file = open(log, "wb", buffering=0)  # noqa: SIM115  (open as long as the role is)
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
        except ray.exceptions.RayError:
            self._lost()
            return
        self._report = self.actor.report.remote(REPORT_SECONDS)

    @property
    def pid(self) -> int:
        """On its node."""
        return self._pid

    def look(self) -> bool:
        if not self.running or self._report is None:
            return False
        ready, _ = ray.wait([self._report], timeout=0)
        if not ready:
            return False
        try:
            report: Report = ray.get(self._report)
        except ray.exceptions.RayError:
            self._lost()
            return True
        self._file.write(report.output)
        self.listened = self.listened or report.listened
        self._stopped = report.stopped
        if report.exit is None:
            self._report = self.actor.report.remote(REPORT_SECONDS)
            return False
        self.exit, self.ended_at, self._report = report.exit, time.monotonic(), None
        return True

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

    def reap(self, timeout: float) -> None:
        """Let actor and log go."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self.actor.close.remote(), timeout=timeout)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.actor)
        self._file.close()
