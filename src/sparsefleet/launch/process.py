"""One role's process: start it, send it signals, see how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role
from sparsefleet.launch.logs import error_line, last_lines
from sparsefleet.server.config import INCOMPLETE


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: an exit status, or the signal that killed it."""

    status: int
    """As a shell has it: 0 to 255, or 128 + the signal's number."""
    signal_name: str | None = None

    def __str__(self) -> str:
        return f"killed by {self.signal_name}" if self.signal_name else f"exit status {self.status}"


class RoleProcess:
    """Runs in a session of its own, so that nothing meant for the launcher's terminal reaches it."""

    def __init__(
        self, role: Role, command: Sequence[str], environment: Mapping[str, str], log: Path, *, again: bool = False
    ) -> None:
        """again: it takes the place of a process that was lost, and writes on in its log."""
        self.role, self.log = role, log
        self.exit: Exit | None = None
        self.ended_by_us = False
        """It was told to end before it did: its exit is no failure of its own."""
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        try:
            with open(log, "ab" if again else "wb") as output:
                self._popen = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{role} cannot be started ({command[0]}, log {log}): {reason}") from None

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self.exit is None

    @property
    def incomplete(self) -> bool:
        """A server that tells by its status that trainers were lost to the job: it has not failed itself."""
        return self.role.is_server and self.exit is not None and self.exit.status == INCOMPLETE

    @property
    def failed(self) -> bool:
        return self.exit is not None and self.exit.status != 0 and not self.ended_by_us

    @property
    def seconds(self) -> float:
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    def look(self) -> bool:
        """Note the end of the process; True the first time it is seen.

        The process is not reaped: while it is there as a zombie, its number, which is also that of its session, cannot
        come to mean someone else's process.
        """
        if not self.running:
            return False
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return False
        self.ended_at = time.monotonic()
        if result.si_code == os.CLD_EXITED:
            self.exit = Exit(result.si_status)
        else:
            self.exit = Exit(128 + result.si_status, signal_name(result.si_status))
        return True

    @property
    def stopped(self) -> bool:
        """Stands still by SIGSTOP, or Ctrl-Z; not: in the hands of a debugger."""
        if not self.running:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it has ended since we last looked
            return False

    def interrupt(self, number: signal.Signals) -> None:
        """Ask it to end. SIGINT goes to all of its group, as from a terminal: a shell around a script expects that."""
        with contextlib.suppress(OSError):  # it has ended meanwhile
            (os.killpg if number == signal.SIGINT else os.kill)(self.pid, number)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self, timeout: float) -> None:
        """Let the process go for good, once it has ended."""
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return

    def last_lines(self, count: int) -> list[str]:
        return last_lines(self.log, count)

    def error_line(self) -> str | None:
        return error_line(self.log)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
