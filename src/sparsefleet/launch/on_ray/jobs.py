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
from dataclasses import replace
from typing import Any

import ray

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.healing import HEALING_VARIABLES
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role
from sparsefleet.launch import job_token, logs, reaper
from sparsefleet.launch.attempts import Attempts
from sparsefleet.launch.healing_job import HealingJob, on_servers
from sparsefleet.launch.interrupts import Interrupts
from sparsefleet.launch.listening import Listening
from sparsefleet.launch.notices import Notices
from sparsefleet.launch.on_ray.actor import Place
from sparsefleet.launch.on_ray.cluster import LOOK_SECONDS, Room, Seat, connected, seat_of, shipped_already
from sparsefleet.launch.on_ray.metrics import RayMetrics
from sparsefleet.launch.on_ray.needs import RayNeeds
from sparsefleet.launch.on_ray.role import RayRole
from sparsefleet.launch.on_ray.storage import check_shared
from sparsefleet.launch.on_ray.waiting import WaitingRoles
from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.progress import JobProgress
from sparsefleet.launch.scaling import Scaling
from sparsefleet.launch.supervisor import CommandForRole, Outcome, RunSettings, _count
from sparsefleet.launch.view import View
from sparsefleet.store.wire.auth import TOKEN_VARIABLE, insecure_allowed

HANDED_ON = "SPARSEFLEET_"
"""Variables of the driver that roles get too, beside those of their node; others are runtime_env's business."""
LIVING_WAIT_SECONDS = 20.0
"""How long the roles that live wait for room for those that were lost; then they are ended, and start with them."""


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
        settings.elastic.check_start(worker_num)
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
            endpoints = [place.endpoint for place in places.values() if place.endpoint is not None]
            roles = [Role.server(index, worker_num, endpoints) for index in range(server_num)]
            roles += [Role.worker(index, worker_num, endpoints) for index in range(worker_num)]
            roles = [replace(role, elastic=settings.elastic) for role in roles]
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


class _RayJob(HealingJob):
    _why_not_scale = "a job on Ray cannot change its number of servers while it runs yet: resume it with another one"

    def __init__(
        self,
        roles: Sequence[Role],
        settings: RunSettings,
        view: View,
        environment: Mapping[str, str],
        room: Room,
        places: Mapping[Seat, Place],
    ) -> None:
        super().__init__(roles, settings, view, environment)
        self._room, self._places = room, dict(places)
        self._more = WaitingRoles(room)
        """Workers that somebody has asked for, and that there was no room for yet."""
        self._listening = _Up()
        self._restarts = {str(role): 0 for role in roles}
        """By role, how often it was started again."""
        self._metrics = self._metrics_of(roles[0].server_endpoints)

    def start(self, command_for_role: CommandForRole) -> None:
        folder, job = self._settings.log_dir, self._roles[0]
        self._command_for_role = command_for_role
        logs.make_folder(folder)
        elastic = self._settings.elastic
        logs.remove_others(folder, job.server_num, job.worker_num if elastic is None else elastic.most)
        if token := self._environment.get(TOKEN_VARIABLE):
            self._keep_token(token)
        if self._attempts is not None:
            check_shared(self._attempts.folder, self._room.actors, self._places)
        answers = []
        for role in self._roles:
            started = self._placed(role)
            self._processes.append(started)
            answers.append((started, self._ask_to_start(started)))
        for started, answer in answers:
            started.started(answer)
        workers = sum(role.is_worker for role in self._roles)
        nodes = len({place.node for place in self._places.values()})
        self._view.say(
            f"started {_count(len(self._roles) - workers, 'server')} and {_count(workers, 'worker')} on "
            f"{_count(nodes, 'node')} of Ray ({self._room.job}); logs in {folder}; servers at "
            f"{','.join(job.server_endpoints)}"
        )
        self._progress.start()
        self._metrics.start()
        if self._attempts is not None:
            self._attempts.start()
        if self._scaling is not None:
            self._scaling.start()

    def _metrics_of(self, endpoints: Sequence[str]) -> RayMetrics:
        return RayMetrics(endpoints, self._environment, self._room.job, self._restarts.copy)

    def _placed(self, role: Role, former: RayRole | None = None, *, again: bool = False) -> RayRole:
        """A role in the actor that has its seat."""
        log, seat = logs.log_of(self._settings.log_dir, role), seat_of(role)
        return RayRole(role, self._room.actors[seat], self._places[seat], log, former=former, again=again)

    def _ask_to_start(self, process: RayRole) -> Any:
        ours = (*ROLE_VARIABLES, *HEALING_VARIABLES, reaper.JOB_VARIABLE)
        variables = {
            name: value for name, value in self._environment.items() if name.startswith(HANDED_ON) and name not in ours
        }
        if self._attempts is not None:
            variables |= self._attempts.environment()
        command = self._command_for_role(process.role)
        return process.start(command, sys.executable, variables, self._room.needs.folder)

    # --- workers that come and go

    def _tend(self) -> None:
        self._start_those_with_room()
        super()._tend()
        self._give_room_back()

    def _start_worker(self, role: Role, again: bool) -> None:
        self._more.ask_for(role, again)

    def _coming(self, wanted: int) -> set[int]:
        running = sum(process.running for process in self._workers())
        for seat in sorted(self._more.seats)[max(0, wanted - running) :]:
            self._more.give_up(seat)
        return {index for _, index in self._more.seats}

    def _start_those_with_room(self) -> None:
        if self._failures or self._lost:
            return  # those that are lost come first
        try:
            for role, again, place in self._more.come(0.0):
                self._start_at(role, again, place)
        except ConfigError as error:
            self._view.say(f"the job goes on without another worker: {error}")
        if line := self._more.told():
            self._view.say(line)

    def _start_at(self, role: Role, again: bool, place: Place) -> None:
        seat = seat_of(role)
        try:
            self._take_places({seat: place})
            # Servers may have moved since it was asked for.
            started = self._placed(on_servers(role, self._roles[0].server_endpoints), again=again)
            started.started(self._ask_to_start(started))
        except ConfigError:
            self._room.give_back(seat)
            raise
        self._processes.append(started)

    def _give_room_back(self) -> None:
        """Of workers of an elastic job that have left it, or that the others go on without."""
        if self._settings.elastic is None:
            return
        for process in self._workers():
            seat, over = seat_of(process.role), not process.failed or process in self._went
            mine = isinstance(process, RayRole) and self._room.actors.get(seat) is process.actor
            if not process.running and over and process not in self._lost and mine:
                process.reap(timeout=1.0)
                self._room.give_back(seat)

    # --- a job that heals

    def _start_again(self, lost: list[RoleProcess]) -> list[RoleProcess] | None:
        """Those that were lost; all, where a server moves to another address or room is long in coming.

        Living processes know the servers' addresses from their start, and do not wait for each other for ever.
        """
        wanted, ended, all_ended = WaitingRoles(self._room), list[RoleProcess](), False
        asked, since = set[RoleProcess](), time.monotonic()
        later = self._more.put_off()  # workers more would take the room that these need
        while True:
            for process in [*lost, *ended]:
                if isinstance(process, RayRole) and process.gone and process not in asked:
                    asked.add(process)
                    wanted.ask_for(process.role)
            self._take_places({seat_of(role): place for role, _, place in wanted.come(LOOK_SECONDS)})
            if self._failures or self._interrupts.count:
                self._say_what_to_resume_from()
                return None
            long = time.monotonic() - since > LIVING_WAIT_SECONDS
            if not all_ended and (self._moved or (wanted.seats and long)):
                ended, all_ended = self._end_living(), True
                self._view.say("the others are ended too, and start again with them")
            elif not wanted.seats:
                break
            if line := wanted.told():
                self._view.say(line)
            self._look()
            lost += self._lost  # whoever is lost meanwhile
            self._lost = []
        if self._moved:
            self._move()
        if all_ended:
            self._look_at_servers_anew()
        for role, again in later:
            self._more.ask_for(role, again)
        return [*lost, *ended]

    def _take_places(self, places: Mapping[Seat, Place]) -> None:
        """Of actors that are new."""
        self._places |= places
        if places and self._attempts is not None:
            check_shared(self._attempts.folder, self._room.actors, places)

    @property
    def _endpoints(self) -> tuple[str, ...]:
        """Where the servers' actors are."""
        servers = range(self._roles[0].server_num)
        return tuple(str(self._places["server", index].endpoint) for index in servers)

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
        self._roles = [on_servers(role, endpoints) for role in self._roles]
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
        self._metrics = self._metrics_of(endpoints)
        self._metrics.start()
        if self._scaling is not None:
            self._scaling.close()
            self._scaling = Scaling(endpoints, self._environment)
            self._scaling.start()

    def _successor(self, process: RoleProcess, attempts: Attempts) -> RoleProcess:
        assert isinstance(process, RayRole)
        successor = self._placed(on_servers(process.role, attempts.endpoints), former=process)
        successor.started(self._ask_to_start(successor))
        self._restarts[str(process.role)] = self._restarts.get(str(process.role), 0) + 1
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
        if self._failures:
            self._name_lost(running)

    def _name_lost(self, told: Sequence[RoleProcess]) -> None:
        """Workers may fail, and the job be ended, before Ray knows that the node of their server is gone."""
        lost = [process for process in told if isinstance(process, RayRole) and process.gone]
        for process in lost:
            process.ended_by_us = False
        servers = [process for process in lost if process.role.is_server]
        self._failures = [*servers, *self._failures, *(process for process in lost if process.role.is_worker)]
