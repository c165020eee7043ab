"""Links that are cut for a while, in both directions or in one: below the time-out nobody is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from link_proxy import LinkProxy
from small_jobs import Cluster, cluster
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.errors import Rejoin, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote import RemoteConfig, RemoteStore
from sparsefleet.table import TableSpec

SPEC = TableSpec("t", 1, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(100, dtype=np.uint64)
DOWN = 3.0
"""Seconds that a link is cut."""


@contextlib.contextmanager
def linked(servers: Cluster, timeout: float, attempt: int | None = None) -> Iterator[tuple[RemoteStore, LinkProxy]]:
    """A trainer whose link to the last server can be cut."""
    with LinkProxy(servers.endpoints[-1]) as link:
        endpoints = (*servers.endpoints[:-1], link.endpoint)
        config = RemoteConfig(endpoints, timeout=timeout, heartbeat=0.5, shared_memory=False, attempt=attempt)
        store = RemoteStore(config)
        servers.stores.append(store)
        yield store, link


def push(store: RemoteStore) -> None:
    store.push_step({"t": KeyedRows(KEYS, np.full((len(KEYS), 1), -1.0, np.float32))}, steps=1).wait()


def values(servers: Cluster) -> set[float]:
    tables = [table for server in servers.servers for table in server.state.holdings.tables()]
    return {float(value) for table in tables for rows in table.scan() for value in rows.values.reshape(-1)}


@pytest.mark.parametrize("way", [{}, {"there": False}, {"back": False}], ids=["both ways", "answers", "requests"])
def test_a_link_that_is_down_for_three_seconds_heals(way: dict[str, bool]) -> None:
    with cluster(2, timeout=20.0) as servers, linked(servers, 20.0) as (store, link):
        store.create_table(SPEC)
        push(store)
        link.cut(**way)
        mend = threading.Timer(DOWN, link.mend)
        mend.start()
        begun = time.monotonic()
        for _ in range(5):
            push(store)
        assert time.monotonic() - begun >= DOWN - 0.1, "nothing came through meanwhile"
        assert servers.servers[1].state.sessions.silent() == []
        assert values(servers) == {6.0}, "each push counts once"


@pytest.mark.parametrize("way", [{}, {"there": False}, {"back": False}], ids=["both ways", "answers", "requests"])
def test_one_that_is_down_for_longer_is_a_loss_and_the_old_life_does_no_harm(tmp_path, way) -> None:
    """The job goes back to a cut; what the old life has sent arrives late, and is told to rejoin."""
    cut = str(tmp_path / "cut")
    with cluster(2, attempt=1, timeout=2.0) as servers, linked(servers, 2.0, attempt=1) as (old, link):
        old.create_table(SPEC)
        push(old)
        old.save(cut, RunFacts(step=1))
        link.cut(**way)
        with pytest.raises(StoreError, match=r"server 1 .* did not answer .* within 2 s"):
            push(old)
        if not way:
            wait_until(lambda: servers.servers[1].state.sessions.silent() == [0], 20, "a trainer that is silent")
        told = {"attempt": 2, "cut": cut, "stopped": [], "why": "the link was down"}
        for server in servers.servers:
            server._service._begin_attempt(told)
        link.mend()
        new = servers.store(attempt=2)
        new.create_table(SPEC)
        push(new)
        for _ in range(2):
            with pytest.raises((Rejoin, StoreError), match=r"attempt 2 of the job has begun|this is 2|restarted"):
                push(old)
        assert values(servers) == {2.0}
