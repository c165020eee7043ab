"""Run the roles of a job on this host until it is over, and leave no process behind.

```
every worker here ended well ─► servers may stop by themselves for `timeout` seconds ─► end what is left ─► success
a server fails               ─► the others may report for `timeout` seconds          ─► end what is left ─► its status
    before it listened       ─► they only wait for it: REPORT_SECONDS are enough     ─► end what is left ─► its status
    as INCOMPLETE            ─► its workers had all stopped: they work to their end  ─► end what is left ─► its status
a worker fails               ─► the servers are told, and say what becomes of the others (or `keep_going` does):
    they end                 ─► they may report for `timeout` seconds                ─► end what is left ─► its status
    they go on               ─► they work to their end                               ─► end what is left ─► its status
a role is killed or hangs, and the job heals (`RestartPolicy`):
                             ─► it is started again; a new attempt begins from the last cut (`launch/attempts.py`)
    too often                ─► end everything ─► its status
`sparsefleet scale`          ─► once a cut is taken, a new attempt begins from it with more or fewer servers
Ctrl-C, SIGTERM, SIGHUP      ─► workers may save for `timeout` seconds               ─► end what is left ─► 128 + signal
    once more                ─► end everything; a third one kills
the launcher is killed       ─► its guard ends everything
```
"To end" is SIGTERM, `grace` seconds, SIGKILL. Where other hosts have workers too, servers stop only by themselves.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.healing import HEALING_VARIABLES, START_AGAIN
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role, parse_endpoint
from sparsefleet.launch import job_token, logs, reaper
from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.launch.attempts import Attempts, RestartPolicy
from sparsefleet.launch.guard import Guard
from sparsefleet.launch.interrupts import Interrupts
from sparsefleet.launch.listening import Listening
from sparsefleet.launch.notices import Notices
from sparsefleet.launch.process import Exit, RoleProcess, signal_name
from sparsefleet.launch.progress import JobProgress
from sparsefleet.launch.scaling import Scaling
from sparsefleet.launch.summary import culprit_first, tell_failures
from sparsefleet.launch.view import ENDED_WELL, View, state_of, view_for
from sparsefleet.store.wire.auth import TOKEN_VARIABLE

CommandForRole = Callable[[Role], Sequence[str]]

REPORT_SECONDS = 3.0
"""For workers that still wait for a server when it has failed: what they could say is said, or never will be."""
STOPPED_SECONDS = 5.0
"""How long a worker may stand stopped (Ctrl-Z, SIGSTOP) once all servers have ended."""
STOPPED_SERVERS_SECONDS = 2.0
"""How long to wait for servers to say whether a worker that was killed had come to its end."""
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
        if self.elastic is not None and self.restart.restarts:
            raise ConfigError(
                "elastic and restarts do not go together yet: an elastic job goes on without workers that are lost, "
                "and more can be started at any time (sparsefleet scale --workers)"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    exit_code: int
    """0, or what the launcher should exit with: the status of the first in `failed`."""
    failed: tuple[tuple[Role, Exit], ...] = ()
    """Roles that failed by themselves: the one that ended the job, then the others as they came."""


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
    given = os.environ if environment is None else environment
    with _Job(roles, settings or RunSettings(), view or view_for(), given) as job:
        job.start(command_for_role)
        return job.wait()


class _Job:
    _why_not_scale: ClassVar[str | None] = None
    """Why this kind of job cannot change its number of servers; None: it can."""

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
        self._attempts: Attempts | None = None
        if settings.restart.restarts:
            if self._workers_elsewhere or self._servers_elsewhere:
                raise ConfigError(
                    "restarts are for jobs of one host so far: run this one without, and resume it when it was ended"
                )
            folder = settings.log_dir / f"cuts-{self._id[-8:]}"
            self._attempts = Attempts(roles[0].server_endpoints, self._environment, settings.restart, folder)
        elastic_here = settings.elastic is not None and not (self._workers_elsewhere or self._servers_elsewhere)
        self._scaling = Scaling(roles[0].server_endpoints, self._environment) if elastic_here else None
        self._went: list[RoleProcess] = []
        """Workers of an elastic job that were killed: the others go on with their data."""
        self._lost: list[RoleProcess] = []
        """To be started again."""
        self._former: list[RoleProcess] = []
        """Others have taken their place."""
        self._hung: list[RoleProcess] = []
        self._too_many: str | None = None
        self._keeps_cuts = False
        """Somebody was told to resume from one, though the job has not failed."""
        self._held: list[HeldEndpoints] = []
        """Addresses of servers that were added to the job."""
        self._begun_by = "the loss"
        """What the present attempt goes on after, in words."""
        self._interrupts = Interrupts()
        self._guard: Guard | None = None

    def __enter__(self) -> Self:
        self._guard = Guard(self._id, self._settings.grace)
        self._interrupts.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._end_all()
            if self._attempts is not None:
                self._attempts.close()
            for held in self._held:
                held.__exit__(None, None, None)
            if self._scaling is not None:
                self._scaling.close()
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
            healing = self._attempts.environment() if self._attempts is not None else {}
            own = {**plain, **role.environment(), **healing, reaper.JOB_VARIABLE: job, "PYTHONUNBUFFERED": "1"}
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
        if self._attempts is not None:
            self._attempts.start()
        if self._scaling is not None:
            self._scaling.start()

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
            self._scale()
            self._heal()
            if self._too_many is not None:
                break
            self._kill_stopped_workers()
            self._end_who_comes_too_late()
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
        if self._lost and not self._failures:
            return True  # they may be started again
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
            if self._attempts is not None and self._can_be_healed(process):
                self._lost.append(process)
                continue
            if process.role.is_server:
                self._notices.server_ended(process.role.index)
            if process.failed and process.exit is not None:
                if self._goes_alone(process):
                    self._went.append(process)
                    self._view.say(f"{process.role} ended ({process.exit}); the others go on with its data")
                else:
                    self._failures.append(process)
                if process.role.is_worker:
                    self._notices.worker_ended(process.role.index, process.exit)

    # --- a job whose workers come and go

    def _goes_alone(self, process: RoleProcess) -> bool:
        """A worker of an elastic job was killed, and there are others. Of too few, the servers end the job."""
        if self._settings.elastic is None or process.role.is_server or process.exit is None:
            return False
        others = any(one.running or not one.failed for one in self._workers() if one is not process)
        return process.exit.signal_name is not None and (others or bool(self._workers_elsewhere))

    def _scale(self) -> None:
        """Start the workers that somebody has asked for; those that are too many leave by themselves."""
        if self._scaling is None or self._failures or (wanted := self._scaling.wanted()) is None:
            return
        running = {process.role.index for process in self._workers() if process.running}
        most = self._settings.elastic.most if self._settings.elastic is not None else 0
        free = [index for index in range(most) if index not in running and index not in self._scaling.taken]
        for index in free[: max(0, wanted - len(running | self._scaling.taken))]:
            former = [process for process in self._workers() if process.role.index == index]
            for process in former:
                self._processes.remove(process)
                self._former.append(process)
            role = replace(next(role for role in self._roles if role.is_worker), index=index)
            self._processes.append(self._start_role(role, bool(former)))
        self._view.say(f"{_count(wanted, 'worker')} wanted: {len(running)} were running")

    # --- a job that heals

    def _can_be_healed(self, process: RoleProcess) -> bool:
        """Killed, not failed by an error of its own: that would come again."""
        if not process.failed or process.exit is None or self._interrupts.count or self._failures:
            return False
        return process.exit.signal_name is not None or _starts_again(process)

    def _heal(self) -> None:
        attempts = self._attempts
        if attempts is None or self._failures or self._interrupts.count:
            return
        self._kill_hung(attempts)
        ended = [process.ended_at for process in self._lost if process.ended_at is not None]
        # Had a worker that was killed come to its end? A server that does not say is about to be seen to have ended.
        unknown = bool(ended) and not attempts.look_now() and all(process.role.is_worker for process in self._lost)
        if unknown and time.monotonic() - min(ended) < STOPPED_SERVERS_SECONDS:
            return
        lost, self._lost = self._without_those_done(attempts, self._lost), []
        if not any(process.running for process in self._workers()) and not any(p.role.is_worker for p in lost):
            for process in lost:  # a server, when all workers have come to their end: nobody needs it any more
                process.ended_by_us = True
            return
        wanted = attempts.wanted()
        if not lost and wanted is None:
            if (seconds := attempts.healed()) is not None:
                self._view.say(f"attempt {attempts.number} trains on, {seconds:.1f} s after {self._begun_by}")
            elif (scale := attempts.scale_wanted()) is not None:
                self._go_on_with(attempts, *scale)
            return
        why = "; ".join(f"{process.role} ended ({process.exit})" for process in lost) or str(wanted)
        if (too_many := attempts.another(why)) is not None:
            self._too_many = too_many
            self._failures += lost
            newest = attempts.newest_cut()
            self._view.say(f"giving up: {too_many}{f'. Go on with: --resume {newest}' if newest else ''}")
            return
        again = self._start_again(lost)
        if again is None:
            return
        only_joins = [p for p in lost if p.role.is_worker and (_starts_again(p) or not attempts.joined(p.role.index))]
        others = any(process.running for process in self._workers() if process not in lost)
        if others and wanted is None and all(process.role.is_worker for process in again):
            gone = [process for process in lost if process not in only_joins]
            only_joins += [process for process in gone if attempts.goes_on_without(process.role.index)]
        if len(only_joins) < len(again) or not lost:
            done = {p.role.index for p in self._workers() if state_of(p) == ENDED_WELL} | attempts.done
            attempts.begin(why, done, [process.role.index for process in again if process.role.is_server])
            self._begun_by = "the loss"
            begins = f"attempt {attempts.number} begins from {attempts.cut or 'the beginning'}"
        else:
            begins = f"it joins attempt {attempts.number}"
        self._view.say(f"{why}: {begins} ({attempts.allowed})")
        for process in lost:
            killed = process.role.is_worker and not _starts_again(process)
            if killed and (same := attempts.same_place(process.role.index)):
                self._view.say(same)
        for process in again:
            self._former.append(process)
            self._processes[self._processes.index(process)] = self._successor(process, attempts)

    def _start_again(self, lost: list[RoleProcess]) -> list[RoleProcess] | None:
        """Everybody who starts again when these were lost: at the least these. None: the job ends instead.

        Where roles need room elsewhere, this waits for it.
        """
        return lost

    def _successor(self, process: RoleProcess, attempts: Attempts) -> RoleProcess:
        """The process that takes its place, started."""
        process.kill()  # what it has left behind
        return self._start_role(_on_servers(process.role, attempts.endpoints), True)

    def _go_on_with(self, attempts: Attempts, servers: int, ticket: str) -> None:
        """Somebody wants another number of servers, and there is a cut: a new attempt begins from it with so many."""
        if self._why_not_scale is not None:
            attempts.refuse_scale(ticket, self._why_not_scale)
            return
        before = attempts.endpoints
        host, _ = parse_endpoint("servers", before[0])
        more = HeldEndpoints.free(max(0, servers - len(before)), host)
        self._held.append(more)
        endpoints = (*before[:servers], *more.endpoints)
        here = [process for process in self._processes if process.role.is_server]
        done = {p.role.index for p in self._workers() if state_of(p) == ENDED_WELL} | attempts.done
        why = f"the job goes on with {_count(servers, 'server')} instead of {len(before)} (sparsefleet scale)"
        attempts.begin(why, done, [], endpoints)
        self._begun_by = "the change"
        self._view.say(f"{why}: attempt {attempts.number} begins from {attempts.cut}; servers at {','.join(endpoints)}")
        self._notices.close()
        self._notices = Notices(endpoints, self._environment, self._settings.timeout)
        if self._token:
            self._keep_token(self._token, more.endpoints)
        for process in here[servers:]:
            # Nobody speaks to it any more but for the attempt before, which is over.
            process.ended_by_us = True
            process.interrupt(signal.SIGTERM)
            self._processes.remove(process)
            self._former.append(process)
        for index in range(len(before), servers):
            role = Role.server(index, self._roles[0].worker_num, endpoints)
            self._processes.insert(index, self._start_role(role, True))

    def _without_those_done(self, attempts: Attempts, lost: list[RoleProcess]) -> list[RoleProcess]:
        """Leave out who was killed when its work was done: a worker that had stopped; all, once servers have ended."""
        over = any(p.role.is_server and state_of(p) == ENDED_WELL for p in self._processes)  # all workers had stopped
        done = [p for p in lost if over or (p.role.is_worker and attempts.has_stopped(p.role.index))]
        for process in done:
            process.ended_by_us = True
            if process.role.is_worker:
                attempts.done.add(process.role.index)
        return [process for process in lost if process not in done]

    def _kill_hung(self, attempts: Attempts) -> None:
        silent = {("server", index) for index in attempts.silent_servers()}
        silent |= {("worker", index) for index in attempts.silent_workers()}
        running = {process.role.index: process.seconds for process in self._workers() if process.running}
        silent |= {("worker", index) for index in attempts.missing_workers(running)}
        for process in self._processes:
            if (process.role.kind, process.role.index) in silent and process.running and process not in self._hung:
                self._hung.append(process)
                self._view.say(f"{process.role} gives no sign of life: killing it")
                process.kill()

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
        if self._workers_elsewhere or any(process.running for process in self._workers()):
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

    def _end_who_comes_too_late(self) -> None:
        """A worker that starts again, when the others have trained its data and the job has come to its end."""
        servers = [process for process in self._processes if process.role.is_server]
        if self._attempts is None or not servers or any(state_of(process) != ENDED_WELL for process in servers):
            return
        late = [p for p in self._workers() if p.running and self._attempts.has_not_come_back(p.role.index)]
        for process in self._told_to_end(late):
            self._view.say(f"{process.role} comes too late: the others have trained its data, and the job has ended")
            process.kill()

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
        if self._attempts is not None and not self._failures and self._too_many is None and not self._keeps_cuts:
            self._attempts.remove_cuts()
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


def _on_servers(role: Role, endpoints: Sequence[str]) -> Role:
    """The role in a job that has these servers by now."""
    own = endpoints[role.index] if role.is_server else None
    return replace(role, server_endpoints=tuple(endpoints), current_endpoint=own)


def _starts_again(process: RoleProcess) -> bool:
    """A worker that met the end of an attempt outside of fit, and asks to be started again."""
    return process.role.is_worker and process.exit is not None and process.exit.status == START_AGAIN


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
