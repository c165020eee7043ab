"""A job whose lost processes are started again, and whose servers and workers become more or fewer while it runs.

```
a role is killed or hangs, and the job heals (`RestartPolicy`):
                             ─► it is started again; a new attempt begins from the last cut (`launch/attempts.py`)
    a worker of leased data  ─► where all servers have the same of its steps: it is started again, and joins the others
    too often                ─► end everything ─► its status; an elastic job goes on without such a worker
a worker of an elastic job is killed, and the job does not heal:
                             ─► the others go on with its data
`sparsefleet scale`:
    --servers                ─► once a cut is taken, a new attempt begins from it with more or fewer servers
    --workers                ─► those that are missing are started; those that are too many leave by themselves
```
All else is the supervisor's (`launch/supervisor.py`), which calls what stands here through the methods that it names.

Where roles are started elsewhere than on this host (`launch/on_ray/jobs.py`), a class derived from this one says three
things: who starts again when some were lost (`_start_again`), how one takes another's place (`_successor`), and how a
worker more is started (`_start_worker`), which may have to wait for room (`_coming`).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from sparsefleet.checkpoint import locate
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.fleet.healing import START_AGAIN
from sparsefleet.fleet.roles import Role, parse_endpoint
from sparsefleet.launch import logs
from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.launch.attempts import Attempts
from sparsefleet.launch.notices import Notices
from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.scaling import Scaling
from sparsefleet.launch.supervisor import CommandForRole, Job, Outcome, RunSettings, _count
from sparsefleet.launch.view import ENDED_WELL, View, state_of

STOPPED_SERVERS_SECONDS = 2.0
"""How long to wait for servers to say whether a worker that was killed had come to its end."""

CUTS_SECONDS = 60.0
"""How long a loss waits for the place where the cuts are, where that does not answer."""

LEAVING_SECONDS = 3.0
"""How long a worker that has left its job may take to end."""


class HealingJob(Job):
    _why_not_scale: ClassVar[str | None] = None
    """Why this kind of job cannot change its number of servers; None: it can."""

    def __init__(
        self, roles: Sequence[Role], settings: RunSettings, view: View, environment: Mapping[str, str]
    ) -> None:
        super().__init__(roles, settings, view, environment)
        self._attempts: Attempts | None = None
        if settings.restart.restarts:
            if self._workers_elsewhere or self._servers_elsewhere:
                raise ConfigError(
                    "restarts are for jobs of one host so far: run this one without, and resume it when it was ended"
                )
            with _refused_cuts(settings):
                folder = locate(settings.restart.cuts or settings.log_dir) / f"cuts-{self._id[-8:]}"
            self._attempts = Attempts(roles[0].server_endpoints, self._environment, settings.restart, folder)
        elastic_here = settings.elastic is not None and not (self._workers_elsewhere or self._servers_elsewhere)
        self._scaling = Scaling(roles[0].server_endpoints, self._environment) if elastic_here else None
        self._went: list[RoleProcess] = []
        """Workers of an elastic job that were killed and are not started again: the others go on with their data."""
        self._given_up: set[int] = set()
        """Numbers of silent workers of an elastic job that were not started here, and that were seen to."""
        self._torn: str | None = None
        """Such a worker was lost, and not all servers have the same of its steps: why a new attempt is to begin."""
        self._lost: list[RoleProcess] = []
        """To be started again."""
        self._asked: set[tuple[int, int]] = set()
        """Workers that have asked to be started again, each with the attempt that was the present one then."""
        self._hung: list[RoleProcess] = []
        self._standing: dict[RoleProcess, float] = {}
        """Since when processes have stood stopped. Not by their number: on Ray two nodes may have the same one."""
        self._cuts_away: float | None = None
        """Since when a loss has waited for the place where the cuts are."""
        self._keeps_cuts = False
        """Somebody was told to resume from one, though the job has not failed."""
        self._held: list[HeldEndpoints] = []
        """Addresses of servers that were added to the job."""
        self._begun_by = "the loss"
        """What the present attempt goes on after, in words."""

    def start(self, command_for_role: CommandForRole) -> None:
        if self._attempts is not None:
            logs.make_folder(self._settings.log_dir)
            with _refused_cuts(self._settings):
                self._attempts.make_folder()
        super().start(command_for_role)
        if self._attempts is not None:
            self._attempts.start()
        if self._scaling is not None:
            self._scaling.start()

    def _variables(self) -> dict[str, str]:
        return self._attempts.environment() if self._attempts is not None else {}

    def _tend(self) -> None:
        self._scale()
        self._heal()
        if self._too_many is None:
            self._end_who_comes_too_late()

    def _starts_more(self) -> bool:
        return bool(self._lost) and not self._failures

    def _close(self) -> None:
        if self._attempts is not None:
            self._attempts.close()
        for held in self._held:
            held.__exit__(None, None, None)
        if self._scaling is not None:
            self._scaling.close()

    def _conclude(self) -> Outcome:
        servers = [process for process in self._processes if process.role.is_server]
        interrupted = self._interrupts.count and any(process.ended_by_us for process in self._processes)
        if servers and not interrupted and not any(state_of(process) == ENDED_WELL for process in servers):
            self._failures += self._went  # nobody has come to the end of the data in their place
        if self._attempts is not None and not self._failures and self._too_many is None and not self._keeps_cuts:
            newest = self._attempts.newest_cut() if interrupted else None
            if newest is None:
                if (why := self._attempts.remove_cuts()) is not None:
                    self._view.say(f"the job's cuts in {self._attempts.folder} could not be removed: {why}")
            else:
                self._view.say(f"the job's cuts stay. Where nothing newer was saved, go on with: --resume {newest}")
        return super()._conclude()

    # --- workers that come and go

    def _goes_alone(self, process: RoleProcess) -> bool:
        """A worker of an elastic job was killed, and there are others. Of too few, the servers end the job."""
        if self._settings.elastic is None or process.role.is_server or process.exit is None:
            return False
        others = any(one.running or not one.failed for one in self._workers() if one is not process)
        if process.exit.signal_name is None or not (others or self._workers_elsewhere):
            return False
        self._went.append(process)
        self._view.say(f"{process.role} ended ({process.exit}); the others go on with its data")
        return True

    def _scale(self) -> None:
        """Start the workers that somebody has asked for; those that are too many leave by themselves."""
        if self._scaling is None or self._failures or self._lost or (asked := self._scaling.wanted()) is None:
            return  # those that are lost are to be started again first: their numbers are not free
        request, wanted = asked
        running = {process.role.index for process in self._workers() if process.running}
        here = running | self._coming(wanted)
        if here - self._scaling.taken and len(self._scaling.taken) < wanted:
            return  # they have left and are about to end, or have not come yet: soon it is known who is missing
        self._scaling.serve(request)
        most = self._settings.elastic.most if self._settings.elastic is not None else 0
        free = [index for index in range(most) if index not in here and index not in self._scaling.taken]
        for index in free[: max(0, wanted - len(here | self._scaling.taken))]:
            former = [process for process in self._workers() if process.role.index == index]
            for process in former:
                self._processes.remove(process)
                self._former.append(process)
            role = replace(next(role for role in self._roles if role.is_worker), index=index)
            if self._attempts is not None:
                role = on_servers(role, self._attempts.endpoints)
            self._start_worker(role, bool(former))
        self._view.say(f"{_count(wanted, 'worker')} wanted: {len(running)} were running")

    def _start_worker(self, role: Role, again: bool) -> None:
        """Start one more. again: its number was another's before."""
        self._processes.append(self._start_role(role, again))

    def _coming(self, wanted: int) -> set[int]:
        """Numbers of workers that are to be started as soon as there is room for them: no more than are wanted."""
        return set()

    # --- losses

    def _takes_over(self, process: RoleProcess) -> bool:
        """Killed, not failed by an error of its own: that would come again."""
        if self._attempts is None or not process.failed or process.exit is None:
            return False
        if self._interrupts.count or self._failures:
            return False
        if process.exit.signal_name is None and not _starts_again(process):
            return False
        self._lost.append(process)
        return True

    def _heal(self) -> None:
        attempts = self._attempts
        if attempts is None or self._failures or self._interrupts.count:
            return
        self._kill_hung(attempts)
        if self._settings.elastic is not None:
            self._go_on_without_strangers(attempts)
            attempts.left = self._who_left()
        ended = [process.ended_at for process in self._lost if process.ended_at is not None]
        # Had a worker that was killed come to its end? A server that does not say is about to be seen to have ended.
        unknown = bool(ended) and not attempts.look_now() and all(process.role.is_worker for process in self._lost)
        if unknown and time.monotonic() - min(ended) < STOPPED_SERVERS_SECONDS:
            return
        lost, self._lost = self._without_those_done(attempts, self._lost), []
        done = self._done(attempts)
        at_work = any(process.running and process.role.index not in done for process in self._workers())
        if not at_work and not any(process.role.is_worker for process in lost):
            for process in lost:  # a server, when all workers have come to their end: nobody needs it any more
                process.ended_by_us = True
            return
        wanted, self._torn = attempts.wanted() or self._torn, None
        if not lost and wanted is None:
            if (seconds := attempts.healed()) is not None:
                self._view.say(f"attempt {attempts.number} trains on, {seconds:.1f} s after {self._begun_by}")
            elif (scale := attempts.scale_wanted()) is not None:
                self._go_on_with(attempts, *scale)
            return
        why = "; ".join(f"{process.role} ended ({process.exit})" for process in lost) or str(wanted)
        if self._waits_for_cuts(attempts, why, lost):
            self._lost, self._torn = [*lost, *self._lost], wanted
            return
        if self._too_many is not None:
            return
        # Status 75 only passes on an end of an attempt whose cause was counted when it was seen.
        counts = wanted is not None or not self._only_ask(lost, attempts.number)
        if counts and (too_many := attempts.another(why)) is not None:
            if wanted is None and self._others_go_on(attempts, lost):
                self._view.say(f"{why}: the others go on with its data; it is not started again ({attempts.allowed})")
                self._went += lost
                return
            self._too_many = too_many
            self._failures += lost
            newest = attempts.newest_cut()
            self._view.say(f"giving up: {too_many}{f'. Go on with: --resume {newest}' if newest else ''}")
            return
        killed = [process.role.index for process in lost if process.role.is_worker and not _starts_again(process)]
        held = {worker: attempts.held_by(worker) for worker in killed}
        again = self._start_again(lost)
        if again is None:
            return
        only_joins = [p for p in lost if p.role.is_worker and (_starts_again(p) or not attempts.joined(p.role.index))]
        others = any(process.running for process in self._workers() if process not in lost)
        if others and wanted is None and all(process.role.is_worker for process in again):
            joined = [process for process in lost if process not in only_joins]
            only_joins += [process for process in joined if attempts.goes_on_without(process.role.index)]
        if len(only_joins) < len(again) or not lost:
            if self._settings.elastic is None and (leaves_out := attempts.leaves_out(done)) is not None:
                self._too_many = f"{why}, and {leaves_out}"
                self._failures += lost
                newest = attempts.newest_cut()
                self._view.say(f"giving up: {self._too_many}{f', with --resume {newest}' if newest else ''}")
                return
            gone = [process.role.index for process in again if process.role.is_server]
            attempts.begin(why, done, gone, crew=self._crew(again, done))
            self._begun_by = "the loss"
            begins = f"attempt {attempts.number} begins from {attempts.cut or 'the beginning'}"
        else:
            begins = f"it joins attempt {attempts.number}"
        self._view.say(f"{why}: {begins} ({attempts.allowed})")
        for worker in killed:
            if same := attempts.same_place(worker, held[worker]):
                self._view.say(same)
        for process in again:
            self._former.append(process)
            self._processes[self._processes.index(process)] = self._successor(process, attempts)

    def _only_ask(self, lost: Sequence[RoleProcess], attempt: int) -> bool:
        """Whether these only ask to be started again, each for the first time in this attempt: one that asks again and
        again (a script whose own exit status is 75) must not be started for ever."""
        asked = {(process.role.index, attempt) for process in lost if _starts_again(process)}
        first = not asked & self._asked
        self._asked |= asked
        return first and len(asked) == len(lost)

    def _waits_for_cuts(self, attempts: Attempts, why: str, lost: Sequence[RoleProcess]) -> bool:
        """Whether nobody can say now which cuts there are: to begin without one would train everything again. After
        `CUTS_SECONDS` of that the job ends."""
        problem, now = attempts.unreachable(), time.monotonic()
        if problem is None:
            self._cuts_away = None
            return False
        if self._cuts_away is None:
            self._cuts_away = now
            self._view.say(f"{why}, and the job's cuts cannot be read: {problem}. It waits for them")
        if now - self._cuts_away < CUTS_SECONDS:
            return True
        self._too_many = f"{why}, and the job's cuts could not be read for {now - self._cuts_away:.0f} s: {problem}"
        self._failures += lost
        self._view.say(f"giving up: {self._too_many}. Once {attempts.folder} can be read, resume from the newest there")
        return False

    def _start_again(self, lost: list[RoleProcess]) -> list[RoleProcess] | None:
        """Everybody who starts again when these were lost: at the least these. None: the job ends instead.

        Where roles need room elsewhere, this waits for it.
        """
        return lost

    def _successor(self, process: RoleProcess, attempts: Attempts) -> RoleProcess:
        """The process that takes its place, started."""
        process.kill()  # what it has left behind
        return self._start_role(on_servers(process.role, attempts.endpoints), True)

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
        why = f"the job goes on with {_count(servers, 'server')} instead of {len(before)} (sparsefleet scale)"
        done = self._done(attempts)
        attempts.begin(why, done, [], endpoints, self._crew([], done))
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
            self._processes.insert(index, self._start_role(replace(role, elastic=self._settings.elastic), True))

    def _done(self, attempts: Attempts) -> set[int]:
        """Workers that have come to their end, and that the next attempt does not wait for."""
        stopped = {process.role.index for process in self._workers() if attempts.has_stopped(process.role.index)}
        if self._settings.elastic is None:  # of an elastic job, one that has ended well may have left it before its end
            stopped |= {process.role.index for process in self._workers() if state_of(process) == ENDED_WELL}
        return stopped | attempts.done

    def _crew(self, again: Sequence[RoleProcess], done: set[int]) -> set[int] | None:
        """Of an elastic job, the workers that an attempt begins with: those that are there or start again."""
        if self._settings.elastic is None:
            return None
        return {process.role.index for process in self._workers() if process.running or process in again} - done

    def _who_left(self) -> set[int]:
        """Of an elastic job: numbers whose worker is not there and not started again, whatever a server may expect."""
        return {process.role.index for process in self._workers()} - self._ours()

    def _ours(self) -> set[int]:
        """Numbers of the workers that this launcher has, those that it is about to start again too."""
        return {process.role.index for process in self._workers() if process.running or process in self._lost}

    def _others_go_on(self, attempts: Attempts, lost: Sequence[RoleProcess]) -> bool:
        """Whether an elastic job that may start nobody again can go on without these: there are enough others, and all
        servers have applied the same of their steps."""
        elastic = self._settings.elastic
        if elastic is None or not all(process.role.is_worker and not _starts_again(process) for process in lost):
            return False
        left = sum(process.running for process in self._workers())
        return left >= elastic.least and all(attempts.goes_on_without(process.role.index) for process in lost)

    def _go_on_without_strangers(self, attempts: Attempts) -> None:
        """Workers of an elastic job that were started by hand, and give no sign of life any more."""
        strangers = set(attempts.silent_workers()) - self._ours()
        self._given_up &= strangers
        for worker in strangers - self._given_up:
            self._given_up.add(worker)
            if attempts.goes_on_without(worker):
                self._view.say(f"worker {worker} gives no sign of life; the others go on with its data")
            else:
                self._torn = f"worker {worker} gives no sign of life"

    def _without_those_done(self, attempts: Attempts, lost: list[RoleProcess]) -> list[RoleProcess]:
        """Leave out who was killed when its work was done: a worker that had stopped, or had left an elastic job; all,
        once servers have ended."""
        over = any(p.role.is_server and state_of(p) == ENDED_WELL for p in self._processes)  # all workers had stopped
        done = [p for p in lost if over or (p.role.is_worker and attempts.has_stopped(p.role.index))]
        left = [p for p in lost if p.role.is_worker and p not in done and attempts.has_left_everywhere(p.role.index)]
        for process in done:
            if process.role.is_worker:
                attempts.done.add(process.role.index)
        for process in (*done, *left):
            process.ended_by_us = True
        return [process for process in lost if process not in done and process not in left]

    def _kill_hung(self, attempts: Attempts) -> None:
        silent = {("server", index) for index in attempts.silent_servers()}
        silent |= {("worker", index) for index in attempts.silent_workers()}
        running = {process.role.index: process.seconds for process in self._workers() if process.running}
        silent |= {("worker", index) for index in attempts.missing_workers(running)}
        silent |= {(process.role.kind, process.role.index) for process in self._stopped_for(attempts.time_out)}
        for process in self._processes:
            if (process.role.kind, process.role.index) in silent and process.running and process not in self._hung:
                self._hung.append(process)
                self._view.say(f"{process.role} gives no sign of life: killing it")
                process.kill()

    def _stopped_for(self, seconds: float) -> list[RoleProcess]:
        """Processes that have stood stopped (SIGSTOP) for so long: also before a server could have heard of them."""
        now, before = time.monotonic(), self._standing
        self._standing = {process: before.get(process, now) for process in self._processes if process.stopped}
        return [process for process, since in self._standing.items() if now - since > seconds]

    def _end_who_comes_too_late(self) -> None:
        """A worker that starts again, when the others have trained its data and the job has come to its end."""
        servers = [process for process in self._processes if process.role.is_server]
        if self._attempts is None or not servers or any(state_of(process) != ENDED_WELL for process in servers):
            return
        late = [p for p in self._workers() if p.running and self._comes_too_late(self._attempts, p.role.index)]
        for process in self._told_to_end(late):
            self._view.say(f"{process.role} comes too late: the others have trained its data, and the job has ended")
            process.kill()

    def _comes_too_late(self, attempts: Attempts, worker: int) -> bool:
        if attempts.has_not_come_back(worker) or attempts.waits_to_join(worker):
            return True
        if self._settings.elastic is None:
            return False
        # One that has just left is about to end by itself; after that, it is another one that has its number.
        ended = [process.ended_at for process in self._processes if process.role.is_server]
        over = min((time.monotonic() - at for at in ended if at is not None), default=0.0)
        return over > LEAVING_SECONDS and (attempts.has_left(worker) or not attempts.joined(worker))


@contextlib.contextmanager
def _refused_cuts(settings: RunSettings) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        place = settings.restart.cuts or settings.log_dir
        raise ConfigError(f"{place} cannot hold the job's cuts: {error}; --cuts names another place") from error


def on_servers(role: Role, endpoints: Sequence[str]) -> Role:
    """The role in a job that has these servers by now."""
    own = endpoints[role.index] if role.is_server else None
    return replace(role, server_endpoints=tuple(endpoints), current_endpoint=own)


def _starts_again(process: RoleProcess) -> bool:
    """A worker that met the end of an attempt outside of fit, and asks to be started again."""
    return process.role.is_worker and process.exit is not None and process.exit.status == START_AGAIN
