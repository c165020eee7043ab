"""Addresses of a job: free ports that stay ours until the servers have them, and which hosts are this one."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import join_endpoint, parse_endpoint


class HeldEndpoints:
    """Addresses that no one else on this host gets while this is open.

    A port that is picked and let go can be taken by the time the server has started. So it stays bound, but not
    listening, with SO_REUSEADDR: then a server that sets SO_REUSEADDR too (gRPC does, so does asyncio) may bind and
    listen there, while nobody is given the port by chance, be it to listen or to connect from.
    """

    def __init__(self, endpoints: Sequence[str], sockets: Sequence[socket.socket]) -> None:
        self.endpoints = tuple(endpoints)
        self._sockets = list(sockets)

    @classmethod
    def free(cls, count: int, host: str = "127.0.0.1") -> HeldEndpoints:
        """`count` ports that nobody uses."""
        sockets = [_bound(host, 0) for _ in range(count)]
        return cls([join_endpoint(host, held.getsockname()[1]) for held in sockets], sockets)

    @classmethod
    def given(cls, endpoints: Iterable[str]) -> HeldEndpoints:
        """These very addresses of this host; an error where one is in use."""
        kept = tuple(endpoints)
        sockets: list[socket.socket] = []
        try:
            for endpoint in kept:
                host, port = parse_endpoint("servers", endpoint)
                try:
                    sockets.append(_bound(host, port))
                except OSError as error:
                    # An address that is ours only from outside (a container's host, NAT) is for the server to judge.
                    if error.errno == errno.EADDRNOTAVAIL:
                        continue
                    raise ConfigError(
                        f"{endpoint} cannot be used by a server: {os.strerror(error.errno or 0)}; "
                        f"choose another port, or end the process that has it"
                    ) from None
        except BaseException:
            for held in sockets:
                held.close()
            raise
        return cls(kept, sockets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def is_local(host: str) -> bool:
    """Whether this host has that address: whether one can bind to it."""
    try:
        _bound(host, 0).close()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return False
        raise ConfigError(f"{host!r} cannot be looked up or used: {error.strerror or error}") from None
    return True


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"{host!r} is not an address that this host knows: {error.strerror}") from None
    held = socket.socket(family, kind, protocol)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(address)
    except OSError:
        held.close()
        raise
    return held
