"""Run the roles of a job on this host until it is over, and leave no process behind.

```
every worker here ended well ─► servers may stop by themselves for `timeout` seconds ─► end what is left ─► success
a server fails               ─► the others may report for `timeout` seconds          ─► end what is left ─► its status
    before it listened       ─► they only wait for it: REPORT_SECONDS are enough     ─► end what is left ─► its status
    as INCOMPLETE            ─► its workers had all stopped: they work to their end  ─► end what is left ─► its status
a worker fails               ─► the servers are told, and say what becomes of the others (or `keep_going` does):
    they end                 ─► they may report for `timeout` seconds                ─► end what is left ─► its status
    they go on               ─► they work to their end                               ─► end what is left ─► its status
a role is killed or hangs, and the job heals; or its processes become more or fewer: `launch/healing_job.py`
Ctrl-C, SIGTERM, SIGHUP      ─► workers may save for `timeout` seconds               ─► end what is left ─► 128 + signal
    once more                ─► end everything; a third one kills
the launcher is killed       ─► its guard ends everything
```
"To end" is SIGTERM, `grace` seconds, SIGKILL. Where other hosts have workers too, servers stop only by themselves.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.healing import HEALING_VARIABLES
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role
from sparsefleet.launch import job_token, logs, reaper
from sparsefleet.launch.attempts import RestartPolicy
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.interrupts import Interrupts
from sparsefleet.launch.listening import Listening
from sparsefleet.launch.notices import Notices
from sparsefleet.launch.process import Exit, RoleProcess, signal_name
from sparsefleet.launch.progress import JobProgress
from sparsefleet.launch.summary import culprit_first, tell_failures
from sparsefleet.launch.view import ENDED_WELL, View, state_of
from sparsefleet.store.wire.auth import TOKEN_VARIABLE

CommandForRole = Callable[[Role], Sequence[str]]

REPORT_SECONDS = 3.0
"""For workers that still wait for a server when it has failed: what they could say is said, or never will be."""
STOPPED_SECONDS = 5.0
"""How long a worker may stand stopped (Ctrl-Z, SIGSTOP) once all servers have ended."""
ASK_EVERY = 1.0
"""Seconds between two questions to a server here whether it still serves anybody."""
TELL_SECONDS = 3.0
"""How long, once nothing runs here any more, servers elsewhere are tried that a bad end here has to be told to."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    log_dir: Path = Path("log")
    """serverlog.N and workerlog.N are written here, anew for each run."""
    timeout: float = 30.0
    """Seconds that roles may go on by themselves: all once one has failed, servers once all workers have ended, workers
    once the launcher is interrupted. Also how long servers may take to answer what becomes of a worker's peers."""
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    keep_going: bool | None = None
    """A worker that fails does not end the others: they work to their end. The job has failed all the same.

    None: as the job's servers say. They know the strategy of its script: a worker that ends by an error of its own ends
    the job; for one that is killed, it is as `lost_trainer` has it.
    """

    progress: float = 10.0
    """Seconds between two lines about how far the job is, where no terminal shows it; 0: none."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    """Whether and how often the job goes on by itself when a process of it is lost."""
    elastic: Elastic | None = None
    """Workers may come and go, so many of them; None: the number of them stays."""

    def __post_init__(self) -> None:
        for name in ("timeout", "grace", "progress"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name}={value} must be a number of seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Outcome:
    exit_code: int
    """0, or what the launcher should exit with: the status of the first in `failed`."""
    failed: tuple[tuple[Role, Exit], ...] = ()
    """Roles that failed by themselves: the one that ended the job, then the others as they came."""


class Job:
    """A job of fixed shape, in which a process that is lost is lost. What one that heals or changes its shape does
    otherwise (`launch/healing_job.py`) stands in methods of its own: see "for jobs that heal" below."""

    def __init__(
        self, roles: Sequence[Role], settings: RunSettings, view: View, environment: Mapping[str, str]
    ) -> None:
        self._roles, self._settings, self._view = roles, settings, view
        self._id = f"sparsefleet-{uuid.uuid4().hex}"
        self._token = job_token.make() if job_token.wanted(roles, environment) else None
        self._token_files = job_token.TokenFiles(self._id)
        self._environment = {**environment, **({TOKEN_VARIABLE: self._token} if self._token else {})}
        self._processes: list[RoleProcess] = []
        self._failures: list[RoleProcess] = []
        self._told = 0
        """Failures that people have been told the job goes on after."""
        self._workers_elsewhere = roles[0].worker_num - sum(role.is_worker for role in roles)
        self._servers_elsewhere = roles[0].server_num - sum(role.is_server for role in roles)
        self._stopped_since: dict[int, float] = {}
        self._listening = Listening()
        self._ask_at = 0.0
        self._serves_nobody = False
        self._notices = Notices(roles[0].server_endpoints, self._environment, settings.timeout)
        every = settings.progress if view.wants_progress else 0.0
        self._progress = JobProgress(roles[0].server_endpoints, self._environment, every)
        self._former: list[RoleProcess] = []
        """Others have taken their place."""
        self._too_many: str | None = None
        """Why the job is given up, though no process of it has failed by itself."""
        self._interrupts = Interrupts()
        self._guard: Guard | None = None

    def __enter__(self) -> Self:
        self._guard = Guard(self._id, self._settings.grace)
        self._interrupts.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._end_all()
            self._close()
            self._notices.close()
            self._progress.close()
            if kind is not None:
                self._view.close(self._processes)
        finally:
            if self._guard is not None:
                self._guard.close()
            self._token_files.remove()
            # Only now that nobody looks for them any more may the numbers of the roles be used anew.
            for process in [*self._former, *self._processes]:
                process.reap(timeout=1.0)
            self._interrupts.__exit__(kind, error, tb)

    def start(self, command_for_role: CommandForRole) -> None:
        assert self._guard is not None
        folder, environment, any_role = self._settings.log_dir, self._environment, self._roles[0]
        logs.make_folder(folder)
        most = any_role.worker_num if self._settings.elastic is None else self._settings.elastic.most
        logs.remove_others(folder, any_role.server_num, most)
        ours = (*ROLE_VARIABLES, *HEALING_VARIABLES)
        plain = {name: value for name, value in environment.items() if name not in ours}
        # A job within a job keeps the outer one's id too, so that the outer one finds all that is its own.
        job = ":".join(filter(None, (environment.get(reaper.JOB_VARIABLE), self._id)))
        if self._token:
            self._keep_token(self._token)

        def start_role(role: Role, again: bool) -> RoleProcess:
            assert self._guard is not None
            own = {
                **plain,
                **role.environment(),
                **self._variables(),
                reaper.JOB_VARIABLE: job,
                "PYTHONUNBUFFERED": "1",
            }
            process = RoleProcess(role, command_for_role(role), own, logs.log_of(folder, role), again=again)
            self._guard.watch(process.pid)
            return process

        self._start_role = start_role
        for role in self._roles:
            self._processes.append(start_role(role, False))
        workers = sum(role.is_worker for role in self._roles)
        here = f" of {any_role.worker_num}" if self._workers_elsewhere else ""
        self._view.say(
            f"started {_count(len(self._roles) - workers, 'server')} and {_count(workers, 'worker')}{here}; "
            f"logs in {folder}; servers at {','.join(any_role.server_endpoints)}"
        )
        self._progress.start()

    def _keep_token(self, token: str, endpoints: Sequence[str] | None = None) -> None:
        assert self._guard is not None
        try:
            self._token_files.keep(self._roles[0].server_endpoints if endpoints is None else endpoints, token)
        except OSError as error:
            self._view.say(
                f"the job's token cannot be kept for sparsefleet status ({error}); to use it, start the job with "
                f"{TOKEN_VARIABLE} set"
            )
        for path in self._token_files.paths:
            self._guard.remove(path)

    def wait(self) -> Outcome:
        deadline: float | None = None
        while not self._interrupts.count and self._something_to_wait_for():
            self._look()
            self._tend()
            if self._too_many is not None:
                break
            self._kill_stopped_workers()
            if deadline is None and (patience := self._patience()) is not None:
                deadline = time.monotonic() + patience
            if deadline is not None and (time.monotonic() >= deadline or self._nobody_left()):
                break
            time.sleep(reaper.TICK_SECONDS)
        if self._interrupts.count:
            self._let_workers_save()
        elif (
            not self._failures
            and self._too_many is None
            and (left := [str(process.role) for process in self._processes if process.running])
        ):
            self._view.say(
                f"{', '.join(left)} did not stop within {self._settings.timeout:g} s of the workers' end; ending "
                f"{'it' if len(left) == 1 else 'them'} (does every worker call fleet.stop_worker?)"
            )
        self._end_all()
        self._tell_elsewhere()
        self._view.close(self._processes)
        return self._conclude()

    def _something_to_wait_for(self) -> bool:
        if self._starts_more():
            return True
        if self._workers_elsewhere:
            return any(process.running for process in self._processes)
        if any(process.running for process in self._workers()):
            return True
        # Only servers are left: unless a worker has ended well, there is nobody who has told them to stop.
        ended_well = any(not process.failed for process in self._workers())
        return ended_well and any(process.running for process in self._processes)

    def _nobody_left(self) -> bool:
        """The job has failed, and the servers here, all that still runs, serve nobody elsewhere any more."""
        running = [process.role for process in self._processes if process.running]
        if not self._workers_elsewhere or not running or any(role.is_worker for role in running):
            return False
        if (now := time.monotonic()) >= self._ask_at:
            self._ask_at = now + ASK_EVERY
            self._serves_nobody = not self._notices.someone_left(running[0].index, running[0].worker_num)
        return self._serves_nobody

    def _tell_elsewhere(self) -> None:
        """Servers elsewhere are to hear of a bad end, also where it was that of the last process here.

        They may have ended with the job, or not have been started yet: nobody knows, so it is not tried for long. Where
        a server here serves nobody any more, or has stopped by itself, neither do they, or so have they: all servers
        have the same workers.
        """
        servers = [process for process in self._processes if process.role.is_server]
        stopped = any(process.incomplete or state_of(process) == ENDED_WELL for process in servers)
        if stopped or self._serves_nobody:
            return
        interrupts, deadline = self._interrupts.count, time.monotonic() + min(TELL_SECONDS, self._settings.timeout)
        while self._servers_elsewhere and (untold := self._notices.untold()):
            if time.monotonic() >= deadline or self._interrupts.count > interrupts:
                self._view.say(f"{', '.join(untold)} cannot be reached, and so was not told who failed here")
                return
            time.sleep(reaper.TICK_SECONDS)

    def _look(self) -> None:
        self._listening.look(self._processes)
        # Servers come first in the list: when a server's death takes workers along at once, it is named as the first.
        self._note([process for process in self._processes if process.look()])
        self._view.update(self._processes)
        if line := self._progress.line():
            self._view.say(line)

    def _note(self, ended: Iterable[RoleProcess]) -> None:
        """Processes that were seen to have ended."""
        for process in ended:
            if self._takes_over(process):
                continue
            if process.role.is_server:
                self._notices.server_ended(process.role.index)
            if process.failed and process.exit is not None:
                if not self._goes_alone(process):
                    self._failures.append(process)
                if process.role.is_worker:
                    self._notices.worker_ended(process.role.index, process.exit)
                elif self._servers_elsewhere:
                    self._notices.server_failed(process.role.index, process.exit)

    # --- for jobs that heal, or whose processes become more or fewer while they run

    def _variables(self) -> dict[str, str]:
        """Of a process that is started now, besides those of its role."""
        return {}

    def _tend(self) -> None:
        """Called often while the job runs, after each look at its processes."""

    def _takes_over(self, process: RoleProcess) -> bool:
        """A process has ended. Whether it is about to be started again, so that nobody need hear of it."""
        return False

    def _goes_alone(self, process: RoleProcess) -> bool:
        """A process has ended badly. Whether the others go on without it, so that the job has not failed."""
        return False

    def _starts_more(self) -> bool:
        """Whether processes are about to be started, though none may run."""
        return False

    def _close(self) -> None:
        """The job is over, and its processes have ended."""

    # ---

    def _patience(self) -> float | None:
        """Seconds until the roles that still run are ended; None: as long as they like."""
        if self._failures:
            goes_on = self._go_on()
            if goes_on is None:
                return None
            if not goes_on:
                first, seconds, when = self._failures[0], self._settings.timeout, ""
                if any(map(self._listening.never_came_up, self._failures)):
                    seconds = min(REPORT_SECONDS, seconds)
                    when = " before it listened" if first.role.is_server else ""
                if any(process.running for process in self._processes):
                    self._view.say(f"{first.role} failed{when} ({first.exit}); the others may go on for {seconds:g} s")
                return seconds
        if self._workers_elsewhere or self._starts_more() or any(process.running for process in self._workers()):
            return None
        return self._settings.timeout

    def _go_on(self) -> bool | None:
        """Whether the others work to their end after these failures; None: the servers have not answered yet."""
        if any(process.role.is_server and not process.incomplete for process in self._failures):
            return False
        for process in self._failures[self._told :]:
            if process.role.is_server:
                self._told += 1
                continue
            goes_on = self._settings.keep_going
            if goes_on is None:
                goes_on = self._notices.goes_on(process.role.index)
            if not goes_on:
                return goes_on
            self._told += 1
            if any(other.running for other in self._workers()):
                # Where nobody has asked the servers, they may see to it that the others end too.
                asked = self._settings.keep_going is None
                then = "go on without it" if asked else "are left to themselves (--keep-going)"
                self._view.say(f"{process.role} failed ({process.exit}); the others {then}")
        return True

    def _kill_stopped_workers(self) -> None:
        """A worker that stands stopped never ends by itself; nothing can come of it any more once its servers have."""
        servers = [process for process in self._processes if process.role.is_server]
        if not servers or any(process.running for process in servers):
            return
        now = time.monotonic()
        for process in self._workers():
            if not process.stopped:
                self._stopped_since.pop(process.pid, None)
            elif now - self._stopped_since.setdefault(process.pid, now) >= min(STOPPED_SECONDS, self._settings.timeout):
                self._view.say(f"{process.role} stands stopped (SIGSTOP), and its servers have ended; killing it")
                process.kill()
                self._stopped_since[process.pid] = float("inf")  # once is enough

    def _workers(self) -> list[RoleProcess]:
        return [process for process in self._processes if process.role.is_worker]

    def _let_workers_save(self) -> None:
        """Interrupted: ask the workers to end while the servers, which they save on, are still there."""
        assert self._interrupts.first is not None
        name, limit = signal_name(self._interrupts.first), self._settings.timeout
        workers = self._told_to_end(self._workers())
        if workers:
            self._view.say(
                f"{name}: workers may end by themselves, and save if their script does, up to {limit:g} s "
                f"(once more: at once)"
            )
        for process in workers:
            process.interrupt(self._interrupts.handed_on)
        deadline = time.monotonic() + limit
        while self._interrupts.count == 1 and (left := [process for process in workers if process.running]):
            if time.monotonic() >= deadline:
                who = ", ".join(str(process.role) for process in left)
                self._view.say(f"{who} did not end within {limit:g} s; ending all roles (once more: at once)")
                return
            self._look()
            time.sleep(reaper.TICK_SECONDS)
        if self._interrupts.count > 1 or not workers:
            self._view.say(f"{name}: ending all roles (once more: at once)")

    def _told_to_end(self, processes: Iterable[RoleProcess]) -> list[RoleProcess]:
        """Those of them that still run; from now on how they end is no failure of theirs."""
        running = [process for process in processes if process.running]
        for process in running:
            # One that has ended in this very moment has ended by itself.
            process.ended_by_us = process.ended_by_us or not process.look()
        self._note(process for process in running if not process.running)
        return [process for process in running if process.running]

    def _end_all(self) -> None:
        """End what still runs, and what the roles have left behind. Does nothing where all is over."""
        self._told_to_end(self._processes)
        interrupts = self._interrupts.count
        stuck = reaper.end_processes(
            self._id,
            [process.pid for process in [*self._former, *self._processes]],
            self._settings.grace,
            hurry=lambda: self._interrupts.count > interrupts,
            tick=self._look,
        )
        self._look()
        if stuck:
            self._view.say(f"processes {', '.join(map(str, stuck))} cannot be killed; they hang inside the system")

    def _conclude(self) -> Outcome:
        failures = culprit_first(self._failures)
        failed = tuple((process.role, process.exit) for process in failures if process.exit is not None)
        if failed:
            tell_failures(self._view, self._processes, failures)
            return Outcome(failed[0][1].status, failed)
        if self._too_many is not None:
            return Outcome(1)
        # One that came when all had ended by themselves has changed nothing.
        if self._interrupts.first is not None and any(process.ended_by_us for process in self._processes):
            return Outcome(128 + self._interrupts.first)
        workers = len(self._workers())
        seconds = max(process.seconds for process in self._processes)
        what = _count(workers, "worker") if workers else _count(len(self._processes), "server")
        self._view.say(f"all done: {what} ended well after {seconds:.1f} s")
        return Outcome(0)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
