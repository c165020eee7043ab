"""Listening: which servers of this host have come up, that is, have ever listened on their port.

A worker begins by registering with every server. So where one ends before it listened, every worker still waits for it:
there is nothing that they could report.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sparsefleet.fleet.roles import parse_endpoint
from sparsefleet.launch.process import RoleProcess

LOOK_SECONDS = 0.25
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"


class Listening:
    def __init__(self) -> None:
        self._up: set[int] = set()
        self._looked_at = 0.0

    def look(self, processes: Sequence[RoleProcess]) -> None:
        """Called often; looks now and then, and no more once all servers are up."""
        waited_for = [
            process
            for process in processes
            if process.role.is_server and process.running and process.pid not in self._up
        ]
        now = time.monotonic()
        if waited_for and now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            ports = listening_ports()
            self._up |= {process.pid for process in waited_for if ports is None or _port(process) in ports}

    def never_came_up(self, process: RoleProcess) -> bool:
        return process.role.is_server and not process.running and process.pid not in self._up


def listening_ports() -> set[int] | None:
    """Ports of this host that someone listens on, on whichever address; None: the system does not say."""
    ports = set()
    for table in _TABLES:
        try:
            with open(table) as file:
                lines = file.readlines()[1:]
        except FileNotFoundError:  # a system without IPv6
            continue
        except OSError:
            return None
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _port(process: RoleProcess) -> int:
    assert process.role.current_endpoint is not None
    return parse_endpoint("servers", process.role.current_endpoint)[1]
