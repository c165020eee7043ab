"""Whole jobs: on this host alone, or this host's part of a job on several."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role, join_endpoint
from sparsefleet.launch.addresses import HeldEndpoints
from sparsefleet.launch.healing_job import HealingJob
from sparsefleet.launch.plan import roles_here
from sparsefleet.launch.supervisor import CommandForRole, Outcome, RunSettings
from sparsefleet.launch.view import View, view_for

LOOPBACK = "127.0.0.1"


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
    with HealingJob(roles, settings or RunSettings(), view or view_for(), given) as job:
        job.start(command_for_role)
        return job.wait()


def run_local(
    command_for_role: CommandForRole,
    server_num: int,
    worker_num: int,
    settings: RunSettings | None = None,
    *,
    ports: Sequence[int] | None = None,
    environment: Mapping[str, str] | None = None,
    view: View | None = None,
) -> Outcome:
    """A job of this host alone, on loopback; on free ports unless `ports` gives one for each server."""
    for name, count in (("server_num", server_num), ("worker_num", worker_num)):
        if count < 1:
            raise ConfigError(f"{name}={count} must be at least 1; a job of one process needs no launcher")
    if ports is not None and len(ports) != server_num:
        raise ConfigError(f"{len(ports)} ports for {server_num} servers; give one for each")
    given = None if ports is None else [join_endpoint(LOOPBACK, port) for port in ports]
    with HeldEndpoints.free(server_num, LOOPBACK) if given is None else HeldEndpoints.given(given) as held:
        roles = _elastic(roles_here(held.endpoints, [LOOPBACK] * worker_num, [LOOPBACK]), settings)
        return run_roles(command_for_role, roles, settings, environment=environment, view=view)


def _elastic(roles: Sequence[Role], settings: RunSettings | None) -> list[Role]:
    elastic = None if settings is None else settings.elastic
    return [replace(role, elastic=elastic) for role in roles]


def run_hosts(
    command_for_role: CommandForRole,
    servers: Sequence[str],
    workers: Sequence[str],
    settings: RunSettings | None = None,
    *,
    host_ips: Collection[str] | None = None,
    environment: Mapping[str, str] | None = None,
    view: View | None = None,
) -> Outcome:
    """This host's part of a job: the roles of the lists that are here (see `roles_here`)."""
    roles = _elastic(roles_here(servers, workers, host_ips), settings)
    with HeldEndpoints.given(role.current_endpoint for role in roles if role.current_endpoint is not None):
        return run_roles(command_for_role, roles, settings, environment=environment, view=view)
