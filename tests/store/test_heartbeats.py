"""Signs of life: a server that is too busy for heartbeats is not taken for dead while it answers anything else."""

from __future__ import annotations

import threading
import time

import pytest

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.heartbeats import Heartbeats
from sparsefleet.store.remote.link import ServerLink


class BusyLink(ServerLink):
    """Every heartbeat takes longer than it may."""

    def __init__(self) -> None:
        super().__init__(RemoteConfig(("127.0.0.1:1",), timeout=0.2), 0)
        self.missed = threading.Semaphore(0)

    def action(self, name, data, timeout=None):
        self.missed.release()
        raise StoreError(f"did not answer {name} within {timeout:g} s")


def test_a_busy_server_that_answers_a_stream_is_alive_and_one_that_answers_nothing_is_not():
    link = BusyLink()
    heartbeats = Heartbeats([link], {"worker": 0}, 0.01)
    try:
        end = time.monotonic() + 2 * link.config.timeout
        while time.monotonic() < end:
            assert link.missed.acquire(timeout=5)
            link.heard = time.monotonic()  # as when a pull's answer comes, or word that a round waits for others
            heartbeats.check()
        while time.monotonic() - link.heard <= link.config.timeout:
            assert link.missed.acquire(timeout=5)
        with pytest.raises(StoreError, match=r"did not answer signs of life within 0\.2 s"):
            heartbeats.check()
    finally:
        heartbeats.stop()
        link.client.close()
