"""Which roles run on this host."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role, parse_endpoint
from sparsefleet.launch.addresses import is_local


def roles_here(servers: Sequence[str], workers: Sequence[str], host_ips: Collection[str] | None = None) -> list[Role]:
    """The roles of the job that belong to this host, servers first.

    servers: host:port of every server of the job. workers: the host of every worker (a host of two workers twice).
    host_ips: this host's addresses as the lists write them; None: find out.
    """
    if not servers or not workers:
        raise ConfigError(f"a job has at least one server and one worker; given are {len(servers)} and {len(workers)}")
    server_hosts = [parse_endpoint("servers", endpoint)[0] for endpoint in servers]
    here = _matcher(host_ips, [*server_hosts, *workers])
    roles = [Role.server(index, len(workers), servers) for index, host in enumerate(server_hosts) if here(host)]
    roles += [Role.worker(index, len(workers), servers) for index, host in enumerate(workers) if here(host)]
    if not roles:
        hosts = ", ".join(dict.fromkeys([*server_hosts, *workers]))
        given = f"{', '.join(host_ips)} is not" if host_ips else "no address of this host is"
        raise ConfigError(
            f"nothing to start here: {given} among the job's hosts ({hosts}); "
            f"give --host-ip with this host's address as the lists write it"
        )
    return roles


def _matcher(host_ips: Collection[str] | None, hosts: Sequence[str]) -> Callable[[str], bool]:
    if host_ips:
        return set(host_ips).__contains__
    return {host for host in set(hosts) if is_local(host)}.__contains__


def parse_hosts(source: str, text: str) -> list[str]:
    """Hosts of a comma-separated list; a port, as some write it for workers too, is left off."""
    hosts = []
    for part in text.split(","):
        host = part.strip()
        if re.fullmatch(r"[^:\s]+:\d+|\[[^\]\s]+\]:\d+", host):
            host = parse_endpoint(source, host)[0]
        if not host or any(character.isspace() for character in host):
            raise ConfigError(f"{source}={text!r} has an empty or broken entry; write ip,ip,…")
        hosts.append(host)
    return hosts


def parse_ports(source: str, text: str, count: int) -> list[int]:
    """`count` ports of "36011,36012" or "36011-36012"."""
    ports: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:\s*-\s*(\d{1,5}))?\s*", part)
        if match is None:
            raise ConfigError(f"{source}={text!r} is not a list of ports; write 36011,36012 or 36011-36012")
        low, high = int(match[1]), int(match[2] or match[1])
        if not 1 <= low <= high <= 65535:
            raise ConfigError(f"{source}={text!r}: {part.strip()} is not a port or range; allowed is 1 to 65535")
        ports += range(low, high + 1)
    if len(ports) != count or len(set(ports)) != count:
        raise ConfigError(f"{source}={text!r} gives {len(set(ports))} different ports; {count} servers need {count}")
    return ports
