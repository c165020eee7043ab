"""Run the roles of a job on this host until it is over, and leave no process behind.

```
every worker here ended well ─► servers may stop by themselves for `timeout` seconds ─► end what is left ─► success
a role fails                 ─► the others may report for `timeout` seconds          ─► end what is left ─► its status
a worker fails, keep_going   ─► the others work to their end                         ─► end what is left ─► its status
Ctrl-C, SIGTERM, SIGHUP      ─► end everything; a second one kills                   ─► 128 + the signal
the launcher is killed       ─► its reaper ends everything
```
"To end" is SIGTERM, `grace` seconds, SIGKILL. Where other hosts have workers too, servers stop only by themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role
from sparsefleet.launch import reaper
from sparsefleet.launch.policy import goes_on_without_lost_trainers
from sparsefleet.launch.process import Exit, RoleProcess, signal_name
from sparsefleet.launch.view import ENDED_WELL, View, state_of, view_for

SHOWN_LINES = 20
"""Lines of the log of the first role that failed."""

CommandForRole = Callable[[Role], Sequence[str]]


@dataclass(frozen=True, slots=True)
class RunSettings:
    log_dir: Path = Path("log")
    """serverlog.N and workerlog.N are written here, anew for each run."""
    timeout: float = 30.0
    """Seconds that roles may go on by themselves once a role has failed, or servers once all workers have ended."""
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    keep_going: bool | None = None
    """A worker that fails does not end the others: they work to their end. The job has failed all the same.

    None: as the job's mode has it (`lost_trainer` of its strategy), which its servers know.
    """

    def __post_init__(self) -> None:
        for name in ("timeout", "grace"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name}={value} must be a number of seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Outcome:
    exit_code: int
    """0, or what the launcher should exit with: the status of the first failure."""
    failed: tuple[tuple[Role, Exit], ...] = ()
    """Roles that failed by themselves, first one first."""


def run_roles(
    command_for_role: CommandForRole,
    roles: Sequence[Role],
    settings: RunSettings | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    view: View | None = None,
) -> Outcome:
    """Start every role with its variables set, and wait for the end of the job. Returns with all processes gone."""
    if not roles:
        raise ConfigError("there is no role to run")
    with _Job(settings or RunSettings(), view or view_for(), os.environ if environment is None else environment) as job:
        job.start(command_for_role, roles)
        return job.wait()


class _Job:
    def __init__(self, settings: RunSettings, view: View, environment: Mapping[str, str]) -> None:
        self._settings, self._view, self._environment = settings, view, environment
        self._id = f"sparsefleet-{uuid.uuid4().hex}"
        self._processes: list[RoleProcess] = []
        self._failures: list[RoleProcess] = []
        self._interrupts: list[int] = []
        self._handlers: dict[int, Any] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        self._workers_elsewhere = 0
        self._told = 0
        """Failures that people have been told of."""
        self._keeps_going = settings.keep_going
        """None: not asked yet."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # What was ignored stays so: nohup means it, and so does a shell's "&".
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._interrupted)
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, self._id, str(self._settings.grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._end_all()
            if kind is not None:
                self._view.close(self._processes)
        finally:
            if self._reaper is not None and self._reaper.stdin is not None:
                try:
                    self._reaper.stdin.close()
                except OSError:
                    self._reaper.poll()  # it is gone already
                try:
                    self._reaper.wait(self._settings.grace + 2 * reaper.KILLED_SECONDS)
                except subprocess.TimeoutExpired:
                    self._reaper.kill()
            # Only now that nobody looks for them any more may the numbers of the roles be used anew.
            for process in self._processes:
                process.reap(timeout=1.0)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self._interrupts.append(number)

    def start(self, command_for_role: CommandForRole, roles: Sequence[Role]) -> None:
        log_dir, environment = self._settings.log_dir, self._environment
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"log_dir={str(log_dir)!r} cannot be made: {error.strerror}") from None
        plain = {name: value for name, value in environment.items() if name not in ROLE_VARIABLES}
        # A job within a job keeps the outer one's id too, so that the outer one finds all that is its own.
        job = ":".join(filter(None, (environment.get(reaper.JOB_VARIABLE), self._id)))
        for role in roles:
            own = {**plain, **role.environment(), reaper.JOB_VARIABLE: job, "PYTHONUNBUFFERED": "1"}
            process = RoleProcess(role, command_for_role(role), own, log_dir / f"{role.kind}log.{role.index}")
            self._processes.append(process)
            self._tell_reaper(process.pid)
        workers = sum(role.is_worker for role in roles)
        self._workers_elsewhere = roles[0].worker_num - workers
        here = f" of {roles[0].worker_num}" if self._workers_elsewhere else ""
        self._view.say(
            f"started {_count(len(roles) - workers, 'server')} and {_count(workers, 'worker')}{here}; logs in {log_dir}"
        )

    def _tell_reaper(self, pid: int) -> None:
        assert self._reaper is not None
        assert self._reaper.stdin is not None
        try:
            self._reaper.stdin.write(b"%d\n" % pid)
            self._reaper.stdin.flush()
        except BrokenPipeError:
            raise ConfigError("the process that watches over the launcher has ended; start the job again") from None

    def wait(self) -> Outcome:
        deadline: float | None = None
        while not self._interrupts and any(process.running for process in self._processes):
            self._look()
            if deadline is None and (patience := self._patience()) is not None:
                deadline = time.monotonic() + patience
            if deadline is not None and (time.monotonic() >= deadline or self._nothing_to_wait_for()):
                break
            time.sleep(reaper.TICK_SECONDS)
        if self._interrupts:
            self._view.say(f"{signal_name(self._interrupts[0])}: ending all roles (once more: at once)")
        elif not self._failures and (left := [str(process.role) for process in self._processes if process.running]):
            self._view.say(
                f"{', '.join(left)} did not stop within {self._settings.timeout:g} s of the workers' end; ending "
                f"{'it' if len(left) == 1 else 'them'} (does every worker call fleet.stop_worker?)"
            )
        self._end_all()
        self._view.close(self._processes)
        return self._conclude()

    def _look(self) -> None:
        # Servers come first in the list: when a server's death takes workers along at once, it is named as the first.
        self._failures += [process for process in self._processes if process.look() and process.failed]
        self._view.update(self._processes)

    def _patience(self) -> float | None:
        """Seconds until the roles that still run are ended; None: as long as they like."""
        if self._failures and not self._go_on():
            first = self._failures[0]
            if any(process.running for process in self._processes):
                self._view.say(
                    f"{first.role} failed ({first.exit}); the others may go on for {self._settings.timeout:g} s"
                )
            return self._settings.timeout
        if self._workers_running() or self._workers_elsewhere:
            return None
        return self._settings.timeout

    def _go_on(self) -> bool:
        """Whether the others work to their end after these failures."""
        if any(process.role.is_server for process in self._failures):
            return False
        if self._keeps_going is None:
            self._keeps_going = goes_on_without_lost_trainers(self._processes[0].role, self._environment)
        for process in self._failures[self._told :] if self._keeps_going and self._workers_running() else ():
            self._view.say(f"{process.role} failed ({process.exit}); the others go on without it")
        self._told = len(self._failures)
        return self._keeps_going

    def _nothing_to_wait_for(self) -> bool:
        """Only servers are left, and nobody who could tell them to stop: no worker has ended well."""
        if self._workers_elsewhere or self._workers_running():
            return False
        return not any(p.role.is_worker and p.exit is not None and not p.failed for p in self._processes)

    def _workers_running(self) -> bool:
        return any(process.running and process.role.is_worker for process in self._processes)

    def _end_all(self) -> None:
        """End what still runs, and what the roles have left behind. Does nothing where all is over."""
        left = [process for process in self._processes if process.running]
        for process in left:
            # One that has ended in this very moment has ended by itself.
            process.ended_by_us = not process.look()
        self._failures += [process for process in left if process.failed]
        first_interrupts = len(self._interrupts)
        stuck = reaper.end_processes(
            self._id,
            [process.pid for process in self._processes],
            self._settings.grace,
            hurry=lambda: len(self._interrupts) > first_interrupts,
            tick=self._look,
        )
        self._look()
        if stuck:
            self._view.say(f"processes {', '.join(map(str, stuck))} cannot be killed; they hang inside the system")

    def _conclude(self) -> Outcome:
        failed = tuple((process.role, process.exit) for process in self._failures if process.exit is not None)
        if failed:
            self._report()
            return Outcome(failed[0][1].status, failed)
        if self._interrupts:
            return Outcome(128 + self._interrupts[0])
        workers = sum(process.role.is_worker for process in self._processes)
        seconds = max(process.seconds for process in self._processes)
        what = _count(workers, "worker") if workers else _count(len(self._processes), "server")
        self._view.say(f"all done: {what} ended well after {seconds:.1f} s")
        return Outcome(0)

    def _report(self) -> None:
        first, *others = self._failures
        lines = first.last_lines(SHOWN_LINES)
        self._view.say(
            f"{first.role} failed first: {first.exit} after {first.seconds:.1f} s; "
            + (f"the last lines of {first.log}:" if lines else f"{first.log} is empty")
        )
        self._view.quote(lines)
        if others:
            self._view.say("failed too: " + ", ".join(f"{process.role} ({process.exit})" for process in others))
        finished = [
            process for process in self._processes if process.role.is_worker and state_of(process) == ENDED_WELL
        ]
        if finished:
            lost = ", ".join(str(process.role) for process in self._failures)
            self._view.say(f"the job went on without {lost}: {', '.join(str(p.role) for p in finished)} ended well")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
