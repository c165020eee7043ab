"""Our own Redis and HTTP clients against redis-py and httpx, in one run on loopback. See benchmarks/clients.md.

    python benchmarks/clients.py

Redis: the rows of one request (2,600 keys, those of 100 samples of 26 slots), none of them cached. Our client asks,
finds each key's row in its bucket and returns float32 rows. redis-py only asks: it returns the buckets as Python
bytes. HTTP: a small prediction, asked again and again on one connection of a server that answers at once.

Told are the median and the quartiles of nine interleaved pairs, of the client's processor time: the clock alone is too
noisy where others use the machine too. Where hiredis is installed, redis-py uses it and the first line says so.
"""

from __future__ import annotations

import json
import socketserver
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path

import httpx
import numpy as np
import redis

sys.path.insert(0, str(Path(__file__).parent))

from parts import redis_rows
from serving import bundle
from sparsefleet.export import Bundle
from sparsefleet.serving.kernels.redis_rows import bucket_numbers
from sparsefleet.serving.redis import RedisAddress, RedisSource, publish
from sparsefleet.serving.redis.record import Names
from sparsefleet.verify.http_client import HttpClient

PAIRS = 9
KEYS = 2600
BODY = {"rows": [{f"C{index}": "68fd1e64" for index in range(26)}]}
ANSWER = b'{"version": "v1", "scores": [0.25]}'


def seconds(job: Callable[[], object], calls: int) -> tuple[float, float]:
    """Processor and wall seconds of one call, in the calling thread."""
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(calls):
        job()
    return (time.thread_time() - cpu) / calls, (time.perf_counter() - wall) / calls


def compare(what: str, calls: int, ours: Callable[[], object], theirs: Callable[[], object], name: str) -> None:
    for job in (ours, theirs):
        seconds(job, calls // 4 + 1)
    pairs = [(seconds(ours, calls), seconds(theirs, calls)) for _ in range(PAIRS)]
    figures = []
    for label, kind in (("processor", 0), ("clock", 1)):
        mine, other = ([pair[side][kind] * 1e6 for pair in pairs] for side in (0, 1))
        ratios = statistics.quantiles([b / a for a, b in zip(mine, other, strict=True)], n=4)
        figures.append(
            f"{label}: ours {statistics.median(mine):,.0f} µs, {name} {statistics.median(other):,.0f} µs, "
            f"ratio {ratios[1]:.2f} ({ratios[0]:.2f} to {ratios[2]:.2f})"
        )
    print(what, *figures, sep="\n  ")


def rows_in_redis(folder: Path) -> None:
    path, _ = bundle(folder, 20_000)
    opened = Bundle.open(path)
    with redis_rows.redis_server() as found:
        address = RedisAddress(found.host, found.port, cache_mb=0, timeout=30)
        publish(opened, address)
        source = RedisSource(opened, address)
        record = source.record.tables[0]
        keys = np.random.default_rng(0).permutation(opened.tables[record.name].keys())[:KEYS]
        place = Names(address.prefix).buckets(source.record.tag, 0, source.record.layout)
        client = redis.Redis(address.host, address.port)

        def theirs() -> list[bytes]:
            buckets = bucket_numbers(keys, record.seed, record.bits).tolist()
            return client.hmget(place.hash, [bucket.to_bytes(4, "little") for bucket in buckets])

        rows, there = source.rows(record.name, keys)
        assert there.all()
        assert len(rows) == len(theirs()) == KEYS
        name = "redis-py with hiredis" if find_spec("hiredis") else "redis-py"
        compare(f"HMGET of {KEYS:,} packed rows", 30, lambda: source.rows(record.name, keys), theirs, name)
        source.close()
        client.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
        self.wfile.write(head + ANSWER)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line a request would be measured too."""


def predictions_over_http() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        ours = HttpClient(url)
        with httpx.Client(base_url=url, timeout=30) as theirs:
            headers = {"content-type": "application/json"}
            compare(
                "a small prediction over HTTP",
                100,
                lambda: ours.post("/v1/predict", BODY),
                lambda: theirs.post("/v1/predict", content=json.dumps(BODY).encode(), headers=headers).json(),
                "httpx",
            )
        ours.close()
        server.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        rows_in_redis(Path(temporary))
    predictions_over_http()
