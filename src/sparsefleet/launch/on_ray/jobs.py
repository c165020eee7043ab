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

import ray

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import ROLE_VARIABLES, Role
from sparsefleet.launch import job_token, logs, reaper
from sparsefleet.launch.interrupts import Interrupts
from sparsefleet.launch.listening import Listening
from sparsefleet.launch.on_ray.actor import Place
from sparsefleet.launch.on_ray.cluster import Room, connected, shipped_already
from sparsefleet.launch.on_ray.metrics import RayMetrics
from sparsefleet.launch.on_ray.needs import RayNeeds
from sparsefleet.launch.on_ray.role import RayRole
from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.supervisor import CommandForRole, Outcome, RunSettings, _count, _Job
from sparsefleet.launch.view import View
from sparsefleet.store.wire.auth import TOKEN_VARIABLE, insecure_allowed

HANDED_ON = "SPARSEFLEET_"
"""Variables of the driver that roles get too, beside those of their node; others are runtime_env's business."""


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
    if settings.restart.restarts:
        raise ConfigError(
            "--restarts: a job on Ray does not heal by itself yet, one on this host does; without it, the same command "
            "with --resume auto goes on from the last checkpoint"
        )
    given = dict(os.environ if environment is None else environment)
    if not given.get(TOKEN_VARIABLE) and not insecure_allowed(given):
        given[TOKEN_VARIABLE] = job_token.make()
    job = f"sparsefleet-{uuid.uuid4().hex[:12]}"
    ship = None if shipped_already() else needs.ship
    with connected(ship):
        interrupts = Interrupts()
        room = Room(job, needs, server_num, worker_num, settings.grace, view.say, lambda: interrupts.count > 0)
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
        self._room, self._places = room, places
        self._listening = _Up()
        self._metrics = RayMetrics(roles[0].server_endpoints, self._environment, room.job)

    def start(self, command_for_role: CommandForRole) -> None:
        folder, job = self._settings.log_dir, self._roles[0]
        logs.make_folder(folder)
        logs.remove_others(folder, job.server_num, job.worker_num)
        if token := self._environment.get(TOKEN_VARIABLE):
            self._keep_token(token)
        variables = {
            name: value
            for name, value in self._environment.items()
            if name.startswith(HANDED_ON) and name not in (*ROLE_VARIABLES, reaper.JOB_VARIABLE)
        }
        answers = []
        for role, actor, place in zip(self._roles, self._room.actors, self._places, strict=True):
            started = RayRole(role, actor, place, logs.log_of(folder, role))
            self._processes.append(started)
            command, needs = command_for_role(role), self._room.needs
            answers.append((started, started.start(command, sys.executable, variables, needs.folder)))
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
