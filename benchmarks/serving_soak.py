"""A long, bad day for one server: clients, switches, a Redis that comes and goes, hostile requests. See serving.md.

    python benchmarks/serving_soak.py               ten minutes
    python benchmarks/serving_soak.py --minutes 1

16 clients ask all the time, 5 % of what they send is hostile or cut off; the version is switched every 20 seconds. Rows
come from Redis, and from the bundle's own files while Redis cannot give them; every minute Redis is killed, and started
again, empty, two seconds later: the next switch publishes again. Told at the end: every status with its reasons, beside
what the server has counted; wrong scores; memory.

Memory is the process's own (RssAnon): what it has allocated, and the stacks of its threads. Pages of mapped files, such
as the rows of bundles, are the system's, which drops them when it needs room. It is read once a second. The first three
tenths of the run are warm-up: all versions have been open, Redis has gone and come back, every thread has worked. The
median of the tenth after that is compared with the median of the last tenth.

Exit status 1 where a score was wrong, a status is not a declared one, a good request failed without a reason that
these troubles give, the server has counted otherwise than the clients, or memory grew by more than 5 %.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from parts import redis_rows
from parts.common import criteo_files
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.export import Bundle, export_checkpoint
from sparsefleet.models import CTRDNN, CTRDNNConfig
from sparsefleet.optim import Adam
from sparsefleet.serving import Predictor
from sparsefleet.serving.redis import RedisAddress, publish
from sparsefleet.train import SavePolicy, Trainer

NAMES = (*CRITEO.dense_names, *CRITEO.slot_names)
HOSTILE = (
    b"",
    b"{",
    b"[" * 50_000,
    b'{"rows": [NaN]}',
    b'{"rows": 3}',
    b'{"rows": [{}]}',
    b'{"request_id": {}, "rows": []}',
    b"\xff\xfe" * 100,
    b'{"rows": [' + b"1" * 10_000 + b"]}",
)
SWITCH_SECONDS, REDIS_SECONDS = 20.0, 60.0
"""Of ten minutes or more; in shorter runs the same happens as often, and sooner."""
WARM = 0.3
"""Which part of the run is warm-up."""
DOWN_SECONDS = 2.0
DECLARED = {200, 400, 408, 413, 429, 503}
EXPLAINED = ("wait", "time was up", "not scored in its time")
"""Of refusals of good requests: too much was asked at once (429, 503). With --fallback file, Redis is no reason."""


class Day:
    """What all threads share."""

    def __init__(self, port: int, rows: list[dict[str, Any]], expected: dict[str, Any], minutes: float) -> None:
        self.port, self.rows, self.expected = port, rows, expected
        self.end = time.monotonic() + 60 * minutes
        self.lock = threading.Lock()
        self.statuses: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end or bool(self.wrong)

    def count(self, status: str, reason: str = "") -> None:
        with self.lock:
            self.statuses[status] += 1
            if reason:
                self.reasons[f"{status}: {reason[:60]}"] += 1


def client(day: Day, number: int) -> None:
    draw = random.Random(number)
    connection = http.client.HTTPConnection("127.0.0.1", day.port, timeout=60)
    while not day.over:
        hostile = draw.random() < 0.05
        try:
            if hostile and draw.random() < 0.3:
                leave(day, draw)
                continue
            start, count = draw.randrange(len(day.rows) - 20), draw.randrange(1, 20)
            body = draw.choice(HOSTILE) if hostile else json.dumps({"rows": day.rows[start : start + count]}).encode()
            connection.request("POST", "/v1/predict", body)
            answer = connection.getresponse()
            found = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            day.count("connection", type(error).__name__)
            connection.close()
            continue
        day.count(str(answer.status), "" if answer.status == 200 else found["error"])
        if not hostile and answer.status != 200 and not any(words in found["error"] for words in EXPLAINED):
            day.wrong.append(f"a good request got {answer.status}: {found}")
        if answer.status not in DECLARED or (hostile and answer.status == 200 and found["scores"]):
            day.wrong.append(f"{answer.status}: {found}")
        if answer.status == 200 and not hostile:
            want = day.expected[found["version"]][start : start + count]
            if not np.allclose(found["scores"], want, atol=1e-6):
                day.wrong.append(f"a wrong score of {found['version']}: {found['scores']}, not {want.tolist()}")


def leave(day: Day, draw: random.Random) -> None:
    """A request that is cut off, or whose client does not wait for its answer."""
    body = json.dumps({"rows": day.rows[:20]}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    sent = head + body
    with socket.create_connection(("127.0.0.1", day.port), timeout=20) as raw:
        raw.sendall(sent[: draw.randrange(1, len(sent) + 1)])
    day.count("left")


def switches(day: Day, bundles: list[Path], store: RedisAddress, seconds: float) -> None:
    turn = 0
    while not day.over:
        wait(day, seconds)
        turn += 1
        path = bundles[turn % len(bundles)]
        try:
            publish(Bundle.open(path), store)
            asked = http.client.HTTPConnection("127.0.0.1", day.port, timeout=60)
            asked.request("POST", "/v1/reload", json.dumps({"bundle": str(path)}))
            day.count(f"reload {asked.getresponse().status}")
            asked.close()
        except Exception as error:  # Redis is away just now
            day.count("switch put off", type(error).__name__)


def wait(day: Day, seconds: float) -> None:
    until = min(day.end, time.monotonic() + seconds)
    while time.monotonic() < until and not day.over:
        time.sleep(0.1)


def restarts(day: Day, redis: redis_rows.RedisProcess, seconds: float) -> None:
    while not day.over:
        wait(day, seconds)
        if not day.over:
            redis.kill()
            wait(day, DOWN_SECONDS)
            redis.start()
            day.count("Redis restarted")


def watch_memory(day: Day, pid: int) -> list[tuple[float, float]]:
    """Seconds since the start, and megabytes; until the day is over."""
    started, found = time.monotonic(), []
    while not day.over:
        found.append((time.monotonic() - started, resident(pid)))
        wait(day, 1.0)
    return found


def growth(found: list[tuple[float, float]], seconds: float) -> tuple[float, float]:
    """Median megabytes of the tenth after the warm-up, and of the last tenth."""

    def median(start: float, stop: float) -> float:
        return statistics.median(memory for at, memory in found if start * seconds <= at < stop * seconds)

    return median(WARM, WARM + 0.1), median(0.9, 1.0)


def resident(pid: int) -> float:
    """Megabytes of the process's own memory; pages of mapped files are the system's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no RssAnon: what system is this?")


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--minutes", type=float, default=10.0, help="shorter ones have their switches sooner")
    minutes = arguments.parse_args().minutes
    pace = min(1.0, minutes / 10)
    with tempfile.TemporaryDirectory() as name, redis_rows.redis_process() as redis:
        folder, store = Path(name), redis.address
        data = criteo_files(folder, 20_000)
        torch.manual_seed(0)
        model = CTRDNN(config=CTRDNNConfig(hidden=(64, 64)))
        reader = open_reader(str(data / "train"), CRITEO, batch_size=1000)
        Trainer(Adam(1e-2), reporters=(), threads=2).fit(
            model, reader, epochs=3, save=SavePolicy(str(folder / "run"), keep=3), quiet=True
        )
        bundles = []
        for number, checkpoint in enumerate(sorted((folder / "run").glob("step-*")), 1):
            export_checkpoint(checkpoint, folder / f"v{number}", name=f"v{number}")
            bundles.append(folder / f"v{number}")
        lines = [line for file in sorted((data / "test").iterdir()) for line in file.read_text().splitlines()][:2000]
        rows = []
        for line in lines:
            fields = line.split("\t")[1:]
            dense = [int(text) if text else None for text in fields[:13]]
            rows.append(dict(zip(NAMES, [*dense, *fields[13:]], strict=True)))
        expected = {path.name: Predictor(path).predict(rows) for path in bundles}
        publish(Bundle.open(bundles[0]), store)
        url = f"redis://127.0.0.1:{store.port}/0?cache_mb=0.5&timeout=1"
        command = [sys.executable, "-m", "sparsefleet", "serve", str(bundles[0]), "--port", "0", "--sparse", url]
        log = (folder / "log").open("w+")
        server = subprocess.Popen([*command, "--fallback", "file"], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            port = int(json.loads(server.stdout.readline())["url"].rpartition(":")[2])
            day = Day(port, rows, expected, minutes)
            threads = [threading.Thread(target=client, args=(day, number)) for number in range(16)]
            threads.append(threading.Thread(target=switches, args=(day, bundles, store, SWITCH_SECONDS * pace)))
            threads.append(threading.Thread(target=restarts, args=(day, redis, REDIS_SECONDS * pace)))
            for thread in threads:
                thread.start()
            memory = watch_memory(day, server.pid)
            for thread in threads:
                thread.join()
            day.wrong += miscounted(day, counted(port))
        finally:
            server.terminate()
            ended = server.wait(timeout=60)
        log.seek(0)
        said = log.read()
    print(f"{minutes:g} minutes, {os.cpu_count()} cores: {dict(sorted(day.statuses.items()))}")
    if day.wrong:
        before = after = float("nan")
    else:
        before, after = growth(memory, 60 * minutes)
    grown = after / before - 1
    for reason, count in day.reasons.most_common(30):
        print(f"  {count:7,} × {reason}")
    print(
        f"memory of its own {before:.1f} MB after the warm-up, {after:.1f} MB at the end: {grown:+.1%}; at most "
        f"{max(found for _, found in memory):.1f} MB; exit status {ended}"
    )
    step = max(1, len(memory) // 20)
    print("memory by second: " + ", ".join(f"{at:.0f} s {found:.1f}" for at, found in memory[::step]))
    print(f"the log has {len(said.splitlines()):,} lines, {said.count('Traceback')} tracebacks")
    for wrong in day.wrong[:5]:
        print(f"WRONG: {wrong}")
    for line in said.splitlines()[:5]:
        print(f"log: {line[:200]}")
    return 1 if day.wrong or grown > 0.05 or ended or "Traceback" in said else 0


def counted(port: int) -> dict[str, int]:
    """Predictions by status, as the server tells them."""
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    asked.request("GET", "/metrics")
    text = asked.getresponse().read().decode()
    asked.close()
    found = re.findall(r'^sparsefleet_requests_total{path="/v1/predict",status="(\d+)"} (\d+)', text, re.M)
    return {status: int(count) for status, count in found}


def miscounted(day: Day, server: dict[str, int]) -> list[str]:
    """Every answer that a client saw is counted by the server; beyond them are only those of clients that left."""
    print(f"the server has counted {dict(sorted(server.items()))}")
    wrong = []
    for status in {*server, *filter(str.isdigit, day.statuses)} - {"499"}:
        found, seen = server.get(status, 0), day.statuses[status]
        if not 0 <= found - seen <= day.statuses["left"] + day.statuses["connection"]:
            wrong.append(f"status {status}: {found} by the server, {seen} by the clients")
    if day.statuses["connection"] > 1e-4 * sum(day.statuses.values()):
        wrong.append(f"{day.statuses['connection']} connections were broken")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
