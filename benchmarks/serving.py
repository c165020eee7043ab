"""Serving speed as ratios in one run: a server process, and clients on the same machine. See benchmarks/serving.md.

    python benchmarks/serving.py            about seven minutes
    python benchmarks/serving.py --quick    shorter, noisier
    python benchmarks/serving.py --folder kept --lines speed    some lines only; the model is kept for the next run

A request is what an ad ranker sends: one context (13 dense features, 16 slots) and 100 candidates (10 slots each); also
measured is the same as 100 whole rows. Measured against it: ONNX Runtime alone on ready arrays of 100 rows, in process,
on all cores. Clients send ready bytes and only look at the answer's status and length: they share the server's cores.

On a machine that others use too, requests a second say more about them than about us. So processor time per request is
told as well, clients included, against that of ONNX Runtime alone: the ratio of throughputs on a quiet machine.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from parts import redis_rows
from parts.common import criteo_files
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.export import Bundle, export_checkpoint
from sparsefleet.models import CTRDNN
from sparsefleet.optim import Adam
from sparsefleet.serving import Predictor
from sparsefleet.serving.redis import RedisAddress
from sparsefleet.train import SavePolicy, Trainer

T = TypeVar("T")

CANDIDATES = 100
WANTED = {"context + candidates": 0.7, "whole rows": 0.6}
"""Of ONNX Runtime alone, by what a request looks like."""
WANTED_REDIS = {("context + candidates", "Redis, no cache"): 0.5, ("whole rows", "Redis, no cache"): 0.5}
"""Of rows from mapped files; what is not here: 0.9."""
WANTED_P99 = 3.5
"""Times the median, at half of the greatest load."""
NAMES = (*CRITEO.dense_names, *CRITEO.slot_names)
SHARED = NAMES[:29]


def bundle(folder: Path, rows: int) -> tuple[Path, list[dict[str, Any]]]:
    """A trained CTR-DNN of the reference size, and raw rows to ask about."""
    data = criteo_files(folder, rows)
    model = folder / f"model-{rows}"
    if not (model / "bundle").exists():
        torch.manual_seed(0)
        reader = open_reader(str(data / "train"), CRITEO, batch_size=1000)
        Trainer(Adam(1e-3), reporters=(), threads=2).fit(CTRDNN(), reader, save=SavePolicy(str(model / "run")))
        export_checkpoint(model / "run", model / "bundle")
    raw = []
    for file in sorted((data / "test").iterdir()):
        for line in file.read_text().splitlines():
            fields = line.split("\t")[1:]
            dense = [int(text) if text else None for text in fields[:13]]
            raw.append(dict(zip(NAMES, [*dense, *fields[13:]], strict=True)))
    return model / "bundle", raw


def requests(raw: list[dict[str, Any]], whole: bool, count: int = 50, samples: int = CANDIDATES) -> list[bytes]:
    """HTTP requests, ready to send."""
    made = []
    for number in range(count):
        rows = [raw[(number * samples + index) % len(raw)] for index in range(samples)]
        if whole:
            body = json.dumps({"rows": rows})
        else:
            context = {name: rows[0][name] for name in SHARED}
            candidates = [{name: row[name] for name in NAMES if name not in context} for row in rows]
            body = json.dumps({"context": context, "candidates": candidates})
        head = (
            "POST /v1/predict HTTP/1.1",
            "host: x",
            "content-type: application/json",
            f"content-length: {len(body)}",
        )
        made.append(("\r\n".join(head) + "\r\n\r\n" + body).encode())
    return made


def _alone(path: Path, raw: list[dict[str, Any]], seconds: float, callers: int, threads: int) -> tuple[float, float]:
    """Requests' worth of rows a second, and processor seconds for each."""
    predictor = Predictor(path, threads=threads)
    batch = predictor.parser.samples(raw[:CANDIDATES])
    random = np.random.default_rng(0)
    network = predictor.bundle.network
    inputs = {
        entry.input: random.standard_normal((CANDIDATES, len(entry.slots) * entry.dim)).astype(np.float32)
        for entry in network.embeddings
    }
    if network.dense:
        inputs[network.dense.input] = batch.dense
    predictor._session.run([network.output], inputs)  # the first one makes its buffers
    used = time.process_time()
    end = time.perf_counter() + seconds

    def run() -> int:
        count = 0
        while time.perf_counter() < end:
            predictor._session.run([network.output], inputs)
            count += 1
        return count

    count = sum(in_threads(run, callers))
    return count / seconds, (time.process_time() - used) / count


def in_threads(work: Callable[[], T], threads: int) -> list[T]:
    """What each thread returns. The first error of any is raised: a client that fails must not be left out silently."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work) for _ in range(threads)]
        return [one.result() for one in running]


@contextlib.contextmanager
def server(path: Path, sparse: str = "mmap", *options: str) -> Iterator[tuple[tuple[str, int], int]]:
    command = [sys.executable, "-m", "sparsefleet", "serve", str(path), "--port", "0", "--sparse", sparse, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        host, _, port = json.loads(process.stdout.readline())["url"].removeprefix("http://").partition(":")
        yield (host, int(port)), process.pid
    finally:
        process.terminate()
        process.wait(timeout=30)


def processor_seconds(pid: int) -> float:
    """That a process and this one have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()


class Client:
    """One connection; sends a request's bytes and reads its answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> None:
        data = self._socket.recv(65536)
        if not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(data[:500].decode(errors="replace"))
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        left = length - len(body)
        while left > 0:
            left -= len(self._more())

    def _more(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise RuntimeError("the server closed a connection within an answer")
        return data

    def ask(self, request: bytes) -> None:
        self.send(request)
        self.receive()

    def close(self) -> None:
        self._socket.close()


def throughput(address: tuple[str, int], made: list[bytes], clients: int, seconds: float) -> float:
    """Requests a second with so many clients that each ask again when they are answered.

    All in one thread, as load generators do it: waking a thread for every answer would be the server's loss.
    """
    asking, number, answered = [Client(address) for _ in range(clients)], 0, 0
    end = time.perf_counter() + seconds
    with selectors.DefaultSelector() as ready:
        for client in asking:
            ready.register(client, selectors.EVENT_READ, client)
            client.send(made[number % len(made)])
            number += 1
        while time.perf_counter() < end:
            for key, _ in ready.select(timeout=30):
                client = key.data
                client.receive()
                client.send(made[number % len(made)])
                number, answered = number + 1, answered + 1
    for client in asking:
        client.close()
    return answered / seconds


def latencies(
    address: tuple[str, int], made: list[bytes], rate: float, seconds: float, clients: int = 8
) -> list[float]:
    """Seconds from when a request was due to its answer, at a steady rate: a late start counts as waiting."""
    lock, started = threading.Lock(), time.perf_counter() + 0.1
    total = int(rate * seconds)
    next_number = iter(range(total))

    def run() -> list[float]:
        client, mine = Client(address), []
        while True:
            with lock:
                number = next(next_number, None)
            if number is None:
                break
            due = started + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            client.ask(made[number % len(made)])
            mine.append(time.perf_counter() - due)
        client.close()
        return mine

    return [wait for mine in in_threads(run, clients) for wait in mine]


def quantiles(waits: list[float]) -> tuple[float, float]:
    """Median and p99."""
    ordered = sorted(waits)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]


@dataclass(frozen=True)
class Round:
    """Requests a second, and processor seconds per request: of ONNX Runtime alone, and served."""

    alone: float
    served: float
    alone_cpu: float
    served_cpu: float


def one_round(
    path: Path, raw: list[dict[str, Any]], address: tuple[str, int], pid: int, made: list[bytes], seconds: float
) -> Round:
    cores = len(os.sched_getaffinity(0))
    # One caller with all cores, or one for each: whichever is faster is what we are compared with.
    alone, alone_cpu = max(_alone(path, raw, seconds / 2, 1, cores), _alone(path, raw, seconds / 2, cores, 1))
    before = processor_seconds(pid)
    served = throughput(address, made, 8, seconds)
    return Round(alone, served, alone_cpu, (processor_seconds(pid) - before) / (served * seconds))


def redis_lines(table: Table, path: Path, raw: list[dict[str, Any]], seconds: float, rounds: int) -> None:
    """Redis's own time is on the same cores, too."""
    if not redis_rows.installed():
        table.add_row("Redis", "not measured: there is no redis-server", "", "", "", "")
        return
    forms = _forms(raw)
    with redis_rows.redis_server() as address:
        publishing(table, address, path, rounds)
        url = f"redis://127.0.0.1:{address.port}/0"
        places = {"mmap": "mmap", "Redis, hot rows cached": url, "Redis, no cache": f"{url}?cache_mb=0"}
        with contextlib.ExitStack() as stack:
            servers = {name: stack.enter_context(server(path, where))[0] for name, where in places.items()}
            for form, made in forms.items():
                taken: dict[str, list[float]] = {name: [] for name in servers}
                for address_of in servers.values():
                    throughput(address_of, made, 4, 1.0)  # warm
                for _ in range(rounds):
                    for name, address_of in servers.items():
                        taken[name].append(throughput(address_of, made, 8, seconds / 2))
                for name in list(servers)[1:]:
                    ratio = statistics.median(a / b for a, b in zip(taken[name], taken["mmap"], strict=True))
                    ours, theirs = statistics.median(taken[name]), statistics.median(taken["mmap"])
                    row = (f"{form}: {name}", f"{ours:,.0f} requests/s", f"mmap {theirs:,.0f}/s")
                    wanted = WANTED_REDIS.get((form, name), 0.9)
                    table.add_row(*row, f"{ratio:.2f}", f"≥ {wanted}", _mark(ratio >= wanted))


@contextlib.contextmanager
def bulk(address: tuple[str, int], raw: list[dict[str, Any]], clients: int, samples: int) -> Iterator[None]:
    """Clients that ask for long requests one after the other; refusals (429) count as answers."""
    (made,) = requests(raw, whole=True, count=1, samples=samples)
    ended = threading.Event()

    def run() -> None:
        client = Client(address)
        while not ended.is_set():
            try:
                client.ask(made)
            except RuntimeError as error:
                if " 429 " not in str(error):
                    raise
                client.close()
                client = Client(address)
                ended.wait(0.2)
        client.close()

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(run) for _ in range(clients)]
        try:
            time.sleep(1.0)
            yield
        finally:
            ended.set()
        for one in running:
            one.result()


def bad_day_lines(table: Table, path: Path, raw: list[dict[str, Any]], seconds: float, rounds: int) -> None:
    """Small requests under bulk load, idle connections, and two versions."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if (
        files < 4096 <= most or most == resource.RLIM_INFINITY
    ):  # a thousand connections are more than many systems allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, 4096), most))
    small = requests(raw, whole=True, samples=1)
    whole = requests(raw, whole=True)
    with server(path) as (address, _):
        throughput(address, small, 4, 1.0)  # warm
        calm, loaded = [], []
        for _ in range(rounds):
            calm.append(quantiles(latencies(address, small, 50, seconds))[1])
            with bulk(address, raw, 30, 2000):
                loaded.append(quantiles(latencies(address, small, 50, seconds))[1])
        ratio = statistics.median(b / a for a, b in zip(calm, loaded, strict=True))
        row = ("1 row, 30 bulk clients: p99", f"{1e3 * statistics.median(loaded):.1f} ms")
        row = (*row, f"without them {1e3 * statistics.median(calm):.1f} ms")
        table.add_row(*row, f"{ratio:.1f}", "≤ 5", _mark(ratio <= 5))
        pairs = []
        for _ in range(rounds):
            before = throughput(address, whole, 8, seconds / 2)
            held = [socket.create_connection(address, timeout=30) for _ in range(1000)]
            pairs.append((before, throughput(address, whole, 8, seconds / 2)))
            for one in held:
                one.close()
        _compared(table, "whole rows, 1,000 idle connections", "none", pairs, 0.95)
    other = path.parent / "other"
    if not other.exists():
        export_checkpoint(path.parent / "run", other, name="other")
    sides = {
        "a canary of half the requests": ("--canary", str(other), "--canary-share", "0.5"),
        "a shadow": ("--shadow", str(other)),
    }
    for name, options in sides.items():
        with server(path) as (plain, _), server(path, "mmap", *options) as (both, _):
            pairs = []
            for address in (plain, both):
                throughput(address, whole, 4, 1.0)  # warm
            for _ in range(rounds):
                pairs.append((throughput(plain, whole, 8, seconds / 2), throughput(both, whole, 8, seconds / 2)))
        _compared(table, f"whole rows, {name}", "one version", pairs, 0.8)


def _compared(table: Table, what: str, against: str, pairs: list[tuple[float, float]], wanted: float) -> None:
    ratio = statistics.median(after / before for before, after in pairs)
    before, after = (statistics.median(values) for values in zip(*pairs, strict=True))
    row = (what, f"{after:,.0f} requests/s", f"{against} {before:,.0f}/s")
    table.add_row(*row, f"{ratio:.2f}", f"≥ {wanted}", _mark(ratio >= wanted))


def publishing(table: Table, address: RedisAddress, path: Path, rounds: int) -> None:
    bundle, commands = Bundle.open(path), path.parent / "commands"
    total = redis_rows.commands_file(bundle, commands)
    pairs = []
    for _ in range(max(3, rounds)):
        pairs.append((redis_rows.pipe_seconds(address, commands), redis_rows.publish_seconds(address, bundle)))
    ratio = statistics.median(theirs / ours for theirs, ours in pairs)
    theirs, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
    rows = sum(len(file) for file in bundle.tables.values())
    row = (f"publish {rows:,} rows to Redis, {total / 1e6:.0f} MB", f"{rows / ours:,.0f} rows/s")
    table.add_row(*row, f"redis-cli --pipe {rows / theirs:,.0f}/s", f"{ratio:.2f}", "≥ 0.5", _mark(ratio >= 0.5))
    table.add_row("memory in Redis", f"{redis_rows.memory(address) / rows:.0f} bytes a row", "", "", "", "")


def speed_lines(table: Table, path: Path, raw: list[dict[str, Any]], seconds: float, rounds: int) -> None:
    """Throughput and processor time against ONNX Runtime alone, and waits at half load."""
    forms = _forms(raw)
    with server(path) as (address, pid):
        throughput(address, forms["whole rows"], 4, 1.0)  # warm
        found: dict[str, list[Round]] = {form: [] for form in forms}
        for _ in range(rounds):
            for form, made in forms.items():
                found[form].append(one_round(path, raw, address, pid, made, seconds))
        for form, taken in found.items():
            alone, served = (statistics.median(getattr(r, what) for r in taken) for what in ("alone", "served"))
            ratio = statistics.median(r.served / r.alone for r in taken)
            row = (f"{form}: throughput", f"{served:,.0f} requests/s", f"ONNX Runtime alone {alone:,.0f}/s")
            wanted = WANTED[form]
            table.add_row(*row, f"{ratio:.2f}", f"≥ {wanted}", _mark(ratio >= wanted))
            theirs, ours = (statistics.median(getattr(r, what) for r in taken) for what in ("alone_cpu", "served_cpu"))
            ratio = statistics.median(r.alone_cpu / r.served_cpu for r in taken)
            row = (f"{form}: processor time", f"{1e3 * ours:.2f} ms", f"ONNX Runtime alone {1e3 * theirs:.2f} ms")
            table.add_row(*row, f"{ratio:.2f}", f"≥ {wanted}", _mark(ratio >= wanted))
        for form, made in forms.items():
            rate = statistics.median(r.served for r in found[form]) / 2
            pairs = [quantiles(latencies(address, made, rate, seconds)) for _ in range(rounds)]
            median, p99 = (statistics.median(values) for values in zip(*pairs, strict=True))
            ratio = statistics.median(high / middle for middle, high in pairs)
            row = (f"{form}: p99 at {rate:,.0f} requests/s", f"{1e3 * p99:.1f} ms", f"median {1e3 * median:.1f} ms")
            table.add_row(*row, f"{ratio:.1f}", f"≤ {WANTED_P99}", _mark(ratio <= WANTED_P99))


def _forms(raw: list[dict[str, Any]]) -> dict[str, list[bytes]]:
    return {"context + candidates": requests(raw, whole=False), "whole rows": requests(raw, whole=True)}


LINES = {"speed": speed_lines, "bad-day": bad_day_lines, "redis": redis_lines}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--quick", action="store_true", help="shorter runs, noisier figures")
    arguments.add_argument("--lines", choices=LINES, nargs="+", default=list(LINES), help="which to measure")
    arguments.add_argument("--folder", type=Path, help="where the trained model is kept, and found the next time")
    given = arguments.parse_args()
    seconds, rounds = (2.0, 1) if given.quick else (5.0, 5)
    table = Table(
        "what", "figure", "against", "ratio", "wanted", "", title=f"Serving, {CANDIDATES} candidates a request"
    )
    with tempfile.TemporaryDirectory() as name:
        path, raw = bundle(given.folder or Path(name), 20_000 if given.quick else 200_000)
        for lines in given.lines:
            LINES[lines](table, path, raw, seconds, rounds)
    Console(width=150).print(table)


def _mark(met: bool) -> str:
    return "[green]yes[/]" if met else "[red]no[/]"


if __name__ == "__main__":
    main()
