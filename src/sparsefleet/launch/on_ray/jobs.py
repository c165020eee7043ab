"""Whole jobs on Ray: the supervisor's rules (`supervisor.py`), with roles on the nodes of a cluster.

```
driver (this process)                        a node
─────────────────────                        ──────
run_on_ray ─ Room: placement, free ports ──► RoleActor ─ RoleProcess ─ the script
             RayRole: log, exit, signals ◄── reports     guard: ends it when the actor is gone
```
Nothing above `launch` knows of Ray: roles get the variables that they get anywhere.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.healing import HEALING_VARIABLES
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role
from sparsefleet.launch import job_token, logs, reaper
from sparsefleet.launch.attempts import Attempts
from sparsefleet.launch.interrupts import Interrupts
from sparsefleet.launch.listening import Listening
from sparsefleet.launch.notices import Notices
from sparsefleet.launch.on_ray.actor import Place
from sparsefleet.launch.on_ray.cluster import FIRST_TOLD, LOOK_SECONDS, TELL_EVERY, Room, connected, shipped_already
from sparsefleet.launch.on_ray.metrics import RayMetrics
from sparsefleet.launch.on_ray.needs import RayNeeds
from sparsefleet.launch.on_ray.role import RayRole
from sparsefleet.launch.on_ray.storage import check_shared
from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.progress import JobProgress
from sparsefleet.launch.supervisor import CommandForRole, Outcome, RunSettings, _count, _Job
from sparsefleet.launch.view import View
from sparsefleet.store.wire.auth import TOKEN_VARIABLE, insecure_allowed

HANDED_ON = "SPARSEFLEET_"
"""Variables of the driver that roles get too, beside those of their node; others are runtime_env's business."""
LIVING_WAIT_SECONDS = 20.0
"""How long the roles that live wait for room for those that were lost; then they are ended, and start with them."""
PLACE_TRIES = 3


def run_on_ray(
    command_for_role: CommandForRole,
    server_num: int,
    worker_num: int,
    settings: RunSettings | None = None,
    *,
    needs: RayNeeds | None = None,
    view: View | None = None,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """A job on the cluster of RAY_ADDRESS (or of this machine). Returns with all roles ended and all room given back.

    Commands name files as the nodes see them: in the shipped folder, or in full.
    """
    from sparsefleet.launch.on_ray.view import ray_view

    for name, count in (("server_num", server_num), ("worker_num", worker_num)):
        if count < 1:
            raise ConfigError(f"{name}={count} must be at least 1; a job of one process needs no launcher")
    settings, needs, view = settings or RunSettings(), needs or RayNeeds(), view or ray_view()
    if settings.elastic is not None:
        raise ConfigError("--elastic: workers on Ray do not come and go yet, those of processes on hosts do")
    given = dict(os.environ if environment is None else environment)
    if not given.get(TOKEN_VARIABLE) and not insecure_allowed(given):
        given[TOKEN_VARIABLE] = job_token.make()
    job = f"sparsefleet-{uuid.uuid4().hex[:12]}"
    ship = None if shipped_already() else needs.ship
    with connected(ship):
        interrupts = Interrupts()
        heals = settings.restart.restarts > 0
        room = Room(job, needs, server_num, worker_num, settings.grace, view.say, lambda: interrupts.count > 0, heals)
        try:
            with interrupts:
                places = room.take()
            if places is None:
                view.say("gave up waiting for room; nothing was started")
                return Outcome(128 + (interrupts.first or 0))
            endpoints = [place.endpoint for place in places if place.endpoint is not None]
            roles = [Role.server(index, worker_num, endpoints) for index in range(server_num)]
            roles += [Role.worker(index, worker_num, endpoints) for index in range(worker_num)]
            with _RayJob(roles, settings, view, given, room, places) as running:
                running.start(command_for_role)
                return running.wait()
        finally:
            room.leave()


class _Up(Listening):
    """Servers that have come up, as their actors say."""

    def look(self, processes: Sequence[RoleProcess]) -> None:
        """Reports come by themselves."""

    def never_came_up(self, process: RoleProcess) -> bool:
        assert isinstance(process, RayRole)
        return process.role.is_server and not process.running and not process.listened


class _RayJob(_Job):
    _why_not_scale = "a job on Ray cannot change its number of servers while it runs yet: resume it with another one"

    def __init__(
        self,
        roles: Sequence[Role],
        settings: RunSettings,
        view: View,
        environment: Mapping[str, str],
        room: Room,
        places: Sequence[Place],
    ) -> None:
        super().__init__(roles, settings, view, environment)
        self._room, self._places = room, list(places)
        self._listening = _Up()
        self._metrics = RayMetrics(roles[0].server_endpoints, self._environment, room.job)

    def start(self, command_for_role: CommandForRole) -> None:
        folder, job = self._settings.log_dir, self._roles[0]
        self._command_for_role = command_for_role
        logs.make_folder(folder)
        logs.remove_others(folder, job.server_num, job.worker_num)
        if token := self._environment.get(TOKEN_VARIABLE):
            self._keep_token(token)
        if self._attempts is not None:
            check_shared(self._attempts.folder, self._room.actors, self._places)
        answers = []
        for position in range(len(self._roles)):
            started = self._role_at(position)
            self._processes.append(started)
            answers.append((started, self._ask_to_start(started)))
        for started, answer in answers:
            started.started(answer)
        workers = sum(role.is_worker for role in self._roles)
        nodes = len({place.node for place in self._places})
        self._view.say(
            f"started {_count(len(self._roles) - workers, 'server')} and {_count(workers, 'worker')} on "
            f"{_count(nodes, 'node')} of Ray ({self._room.job}); logs in {folder}; servers at "
            f"{','.join(job.server_endpoints)}"
        )
        self._progress.start()
        self._metrics.start()
        if self._attempts is not None:
            self._attempts.start()

    def _role_at(self, position: int, former: RayRole | None = None) -> RayRole:
        role = self._roles[position]
        log = logs.log_of(self._settings.log_dir, role)
        return RayRole(role, self._room.actors[position], self._places[position], log, former=former)

    def _ask_to_start(self, process: RayRole) -> Any:
        ours = (*ROLE_VARIABLES, *HEALING_VARIABLES, reaper.JOB_VARIABLE)
        variables = {
            name: value for name, value in self._environment.items() if name.startswith(HANDED_ON) and name not in ours
        }
        if self._attempts is not None:
            variables |= self._attempts.environment()
        command = self._command_for_role(process.role)
        return process.start(command, sys.executable, variables, self._room.needs.folder)

    # --- a job that heals

    def _start_again(self, lost: list[RoleProcess]) -> list[RoleProcess] | None:
        """Those that were lost; all, where a server moves to another address or room is long in coming.

        Living processes know the servers' addresses from their start, and do not wait for each other for ever.
        """
        wanted, ended, all_ended = _Wanted(self._room, self._roles), list[RoleProcess](), False
        since = time.monotonic()
        tell_at = since + FIRST_TOLD
        while True:
            for process in [*lost, *ended]:
                if isinstance(process, RayRole) and process.gone:
                    wanted.ask_for(self._processes.index(process))
            self._take_places(wanted.come())
            if self._failures or self._interrupts.count:
                self._say_what_to_resume_from()
                return None
            now = time.monotonic()
            if not all_ended and (self._moved or (wanted.waiting and now - since > LIVING_WAIT_SECONDS)):
                ended, all_ended = self._end_living(), True
                self._view.say("the others are ended too, and start again with them")
            elif not wanted.waiting:
                break
            if wanted.waiting and now >= tell_at:
                tell_at = now + TELL_EVERY
                self._view.say(self._room.waits_for(now - since, *wanted.counts()))
            self._look()
            lost += self._lost  # whoever is lost meanwhile
            self._lost = []
        if self._moved:
            self._move()
        if all_ended:
            self._look_at_servers_anew()
        return [*lost, *ended]

    def _take_places(self, places: Mapping[int, Place]) -> None:
        """Of actors that are new."""
        for position, place in places.items():
            self._places[position] = place
        if places and self._attempts is not None:
            check_shared(self._attempts.folder, [self._room.actors[one] for one in places], list(places.values()))

    @property
    def _endpoints(self) -> tuple[str, ...]:
        """Where the servers' actors are."""
        return tuple(place.endpoint for place in self._places if place.endpoint is not None)

    @property
    def _moved(self) -> bool:
        return self._endpoints != self._roles[0].server_endpoints

    def _end_living(self) -> list[RoleProcess]:
        """End what runs, but for workers that need the servers no more. Nothing is saved: all go back to a cut."""
        assert self._attempts is not None
        living = [
            process
            for process in self._processes
            if process.running and not (process.role.is_worker and self._attempts.has_stopped(process.role.index))
        ]
        for process in living:
            process.ended_by_us = True
            process.kill()
        deadline = time.monotonic() + 2 * reaper.KILLED_SECONDS
        while any(process.running for process in living) and time.monotonic() < deadline:
            self._look()
            time.sleep(reaper.TICK_SECONDS)
        return living

    def _move(self) -> None:
        """Tell everybody where the servers are from now on."""
        assert self._attempts is not None
        endpoints = self._endpoints
        self._attempts.move(endpoints)
        workers = self._roles[0].worker_num
        self._roles = [
            (Role.server if role.is_server else Role.worker)(role.index, workers, endpoints) for role in self._roles
        ]
        self._view.say(f"servers are at {','.join(endpoints)} now")
        if token := self._environment.get(TOKEN_VARIABLE):
            self._keep_token(token)

    def _look_at_servers_anew(self) -> None:
        """All servers are other processes now."""
        endpoints = self._roles[0].server_endpoints
        self._notices.close()
        self._notices = Notices(endpoints, self._environment, self._settings.timeout)
        self._progress.close()
        every = self._settings.progress if self._view.wants_progress else 0.0
        self._progress = JobProgress(endpoints, self._environment, every)
        self._progress.start()
        self._metrics.close()
        self._metrics = RayMetrics(endpoints, self._environment, self._room.job)
        self._metrics.start()

    def _successor(self, process: RoleProcess, attempts: Attempts) -> RoleProcess:
        assert isinstance(process, RayRole)
        successor = self._role_at(self._processes.index(process), former=process)
        successor.started(self._ask_to_start(successor))
        return successor

    def _say_what_to_resume_from(self) -> None:
        newest = self._attempts.newest_cut() if self._attempts is not None else None
        if newest is not None:
            self._keeps_cuts = True
            self._view.say(f"the job ends before there was room for all. Go on with: --resume {newest}")

    def _end_all(self) -> None:
        """End what still runs, and what the roles have left behind, on every node."""
        self._metrics.close()
        running = self._told_to_end(self._processes)
        interrupts = self._interrupts.count
        hurry: Callable[[], bool] = lambda: self._interrupts.count > interrupts
        ends = [process.end(at_once=False) for process in self._processes if isinstance(process, RayRole)]
        deadline = time.monotonic() + self._settings.grace + 2 * reaper.KILLED_SECONDS
        hurried = False
        while ends and time.monotonic() < deadline:
            if not hurried and hurry():
                hurried = True
                for process in running:
                    process.kill()
            _, ends = ray.wait(ends, num_returns=len(ends), timeout=reaper.TICK_SECONDS)
            self._look()
        # The last words of those that were ended are on their way.
        while any(process.running for process in self._processes) and time.monotonic() < deadline:
            self._look()
            time.sleep(reaper.TICK_SECONDS)


class _Wanted:
    """Roles that wait for an actor to be placed."""

    def __init__(self, room: Room, roles: Sequence[Role]) -> None:
        self._room, self._roles = room, roles
        self.waiting: dict[int, Any] = {}
        self._asked: dict[int, int] = {}

    def ask_for(self, position: int) -> None:
        if position not in self._asked:
            self._asked[position] = 1
            self.waiting[position] = self._room.place_again(self._roles[position])

    def come(self) -> dict[int, Place]:
        """Those that have their place since the last time."""
        if not self.waiting:
            return {}
        places = {}
        ready, _ = ray.wait(list(self.waiting.values()), num_returns=len(self.waiting), timeout=LOOK_SECONDS)
        for position in [position for position, place in self.waiting.items() if place in ready]:
            try:
                places[position] = ray.get(self.waiting.pop(position))
            except ray.exceptions.RayActorError as error:  # lost again, with another node perhaps
                if self._asked[position] >= PLACE_TRIES:
                    raise ConfigError(f"{self._roles[position]} cannot be placed again: {error}") from None
                self._asked[position] += 1
                self.waiting[position] = self._room.place_again(self._roles[position])
            except ray.exceptions.RayError as error:
                raise ConfigError(f"{self._roles[position]} cannot be placed again: {error}") from None
        return places

    def counts(self) -> tuple[int, int]:
        """Servers and workers that wait."""
        servers = sum(self._roles[position].is_server for position in self.waiting)
        return servers, len(self.waiting) - servers
