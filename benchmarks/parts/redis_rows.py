"""A Redis for benchmarks, and what publishing to it is measured against: `redis-cli --pipe` of the same bytes."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sparsefleet.export import Bundle
from sparsefleet.serving.kernels.redis_rows import encode_buckets
from sparsefleet.serving.redis import RedisAddress, publish
from sparsefleet.serving.redis.connection import Connection
from sparsefleet.serving.redis.record import Names, VersionRecord
from sparsefleet.serving.redis.tables import LIMITS


def installed() -> bool:
    return shutil.which("redis-server") is not None and shutil.which("redis-cli") is not None


class RedisProcess:
    """A Redis on loopback that keeps nothing on disk: after a restart it is empty."""

    def __init__(self, folder: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = RedisAddress("127.0.0.1", probe.getsockname()[1])
        self._folder = folder
        self.start()

    def start(self) -> None:
        options = ("--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", self._folder)
        command = ["redis-server", "--port", str(self.address.port), *options, "--loglevel", "warning"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.address.port), timeout=5).close()
                return
            except OSError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)


@contextlib.contextmanager
def redis_process() -> Iterator[RedisProcess]:
    with tempfile.TemporaryDirectory() as folder:
        process = RedisProcess(folder)
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def redis_server() -> Iterator[RedisAddress]:
    with redis_process() as process:
        yield process.address


def commands_file(bundle: Bundle, path: Path) -> int:
    """All commands that write a bundle's rows, for `redis-cli --pipe`."""
    record = VersionRecord.of(bundle, "2026-01-01T00:00:00Z")
    buffer, total = np.empty(1 << 20, np.uint8), 0
    with path.open("wb") as out:
        for index, table in enumerate(record.tables):
            file = bundle.tables[table.name]
            place, at = Names("sparsefleet").buckets(record.tag, index, record.layout), (0, 0)
            while at[0] < table.buckets:
                done = encode_buckets(file.data, file.header.layout, table.bits, place, at, LIMITS, buffer)
                total += out.write(buffer[: done.bytes].data)
                at = (done.bucket, done.row)
    return total


def pipe_seconds(address: RedisAddress, commands: Path) -> float:
    _empty(address)
    with commands.open("rb") as file:
        started = time.perf_counter()
        command = ["redis-cli", "-p", str(address.port), "--pipe"]
        subprocess.run(command, stdin=file, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - started


def publish_seconds(address: RedisAddress, bundle: Bundle) -> float:
    """All of it: the lock, every row, the count, the switch."""
    _empty(address)
    started = time.perf_counter()
    publish(bundle, address)
    return time.perf_counter() - started


def memory(address: RedisAddress) -> int:
    connection = Connection(address, 30)
    facts = connection.command("INFO", "memory").decode().splitlines()
    connection.close()
    return int(next(line for line in facts if line.startswith("used_memory:")).partition(":")[2])


def _empty(address: RedisAddress) -> None:
    connection = Connection(address, 30)
    connection.command("FLUSHALL")
    connection.close()
