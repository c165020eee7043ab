"""A real redis-server on a free loopback port, ended whatever happens. Skips, loudly, where none is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from waiting import wait_until

BINARY = shutil.which("redis-server") or ""
SKIPPED = "there is no redis-server on this machine: apt-get install redis-server (make redis)"


class RedisServer:
    """Nothing of it is saved: after a restart it is empty."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: object) -> redis.Redis:
        """Another's client: what it reads is not our own code's word."""
        return redis.Redis(port=self.port, socket_timeout=10, **options)

    def start(self) -> None:
        plain = ("--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", str(self.port))
        self.process = subprocess.Popen(
            [BINARY, *plain, "--dir", str(self._folder), "--loglevel", "warning", *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "")},
        )
        wait_until(self._answers, 20, "an answer of redis-server")

    def _answers(self) -> bool:
        assert self.process is not None
        try:
            self.client().ping()
        except redis.exceptions.AuthenticationError:
            return True
        except redis.exceptions.ConnectionError:
            assert self.process.poll() is None, "redis-server ended at once"
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=10)
            self.process = None

    def restart(self) -> None:
        self.kill()
        self.start()


@contextlib.contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    if not BINARY:
        pytest.skip(SKIPPED)
    server = RedisServer(folder, *options)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server
