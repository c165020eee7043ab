"""What the wire costs, on loopback: pull + push against a bare Flight exchange of the same bytes; many clients at once.

    python benchmarks/wire.py [--seconds 3] [--clients 1,2,4,8]

Everything runs on this machine: clients and servers share its cores, so look at ratios, not at absolute times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from sparsefleet import optim
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.remote import RemoteConfig, RemoteStore
from sparsefleet.table.spec import TableSpec

KEYS, DIM = 10_000, 10
SPEC = TableSpec("rows", DIM, optim.Adam(1e-3))
SCHEMA = pa.schema([("body", pa.uint8())])


class BareServer(flight.FlightServerBase):
    """Answers a message of any size with one of the size asked for."""

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            writer.write_with_metadata(_batch(int(chunk.app_metadata.to_pybytes())), b"ok")


def _batch(size: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(np.zeros(size, np.uint8))], schema=SCHEMA)


def _bare_main() -> None:
    server = BareServer("grpc://127.0.0.1:0")
    print(json.dumps({"endpoint": f"127.0.0.1:{server.port}"}), flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    server.serve()


def _end_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


class Process:
    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.endpoint = str(json.loads(self._process.stdout.readline())["endpoint"])

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def parameter_server() -> Process:
    return Process("-m", "sparsefleet.server", "--watch-parent")


def timed(act: Callable[[], object], seconds: float) -> list[float]:
    for _ in range(20):
        act()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return times


def ms(times: list[float], quantile: float) -> float:
    return float(np.quantile(times, quantile)) * 1e3


def bare_against_ours(seconds: float) -> None:
    with Process(__file__, "--bare") as bare, parameter_server() as server:
        writer, reader = flight.FlightClient(f"grpc://{bare.endpoint}").do_exchange(
            flight.FlightDescriptor.for_command(b"")
        )
        writer.begin(SCHEMA)
        keys_bytes, rows_bytes = 8 * KEYS, 4 * KEYS * DIM

        def exchange() -> None:
            for size, answer in ((keys_bytes, rows_bytes), (keys_bytes + rows_bytes, 8)):
                writer.write_with_metadata(_batch(size), str(answer).encode())
                reader.read_chunk()

        store = RemoteStore(RemoteConfig((server.endpoint,)))
        store.create_table(SPEC)
        rng = np.random.default_rng(0)
        keys = rng.choice(1 << 40, KEYS, replace=False).astype(np.uint64)
        grads = rng.standard_normal((KEYS, DIM)).astype(np.float32)

        def pull_push() -> None:
            store.pull("rows", keys).wait()
            store.push("rows", keys, grads).wait()

        ours, theirs = [], []
        for _ in range(4):  # in turns, so that noise of the machine meets both
            theirs += timed(exchange, seconds / 4)
            ours += timed(pull_push, seconds / 4)
        ratio = ms(ours, 0.5) / ms(theirs, 0.5)
        print(f"{KEYS:,} keys x {DIM} floats, pull + push (Adam), median of {len(ours)} and {len(theirs)}:")
        print(f"  bare exchange {ms(theirs, 0.5):6.2f} ms   p90 {ms(theirs, 0.9):6.2f}")
        print(f"  ours          {ms(ours, 0.5):6.2f} ms   p90 {ms(ours, 0.9):6.2f}   ratio {ratio:.2f} (at most 2.5)")
        store.close()


def step_rate(seconds: float, servers: int) -> None:
    """What async mode does at batch 100: 1,500 keys pulled and pushed, a dense block of 431,000 floats at times."""
    made = [Process("-m", "sparsefleet.server", "--watch-parent", "--index", str(index)) for index in range(servers)]
    try:
        store = RemoteStore(RemoteConfig(tuple(process.endpoint for process in made)))
        store.create_table(SPEC)
        block = np.zeros(431_000, np.float32)
        store.create_dense("net", block, optim.Adam(1e-3), [("w", (len(block),))])
        rng = np.random.default_rng(0)
        keys = rng.choice(1 << 40, 1500, replace=False).astype(np.uint64)
        grads = rng.standard_normal((1500, DIM)).astype(np.float32)

        def sparse_step() -> None:
            rows = store.pull("rows", keys)
            rows.wait()
            store.push("rows", keys, grads).wait()

        def whole_step() -> None:
            store.pull("rows", keys).wait()
            pushed, dense = store.push("rows", keys, grads), store.push_dense("net", block)
            pulled = store.pull_dense("net", block)
            for pending in (pushed, dense, pulled):
                pending.wait()

        for name, act in (("sparse only", sparse_step), ("with the dense block pushed and pulled", whole_step)):
            times = timed(act, seconds / 2)
            rate = 1 / np.mean(times)
            print(f"  {servers} server(s), 1,500 keys, {name}: {rate:6.0f} steps/s, p50 {ms(times, 0.5):.2f} ms")
        store.close()
    finally:
        for process in made:
            process.__exit__()


def message_cost(seconds: float) -> None:
    """What one message more costs a step: a push with the next pull behind it, beside the same without the pull.

    The pull asks for one row, so nearly all that it adds is the message itself: what a push and the next pull in one
    message could save at most.
    """
    with parameter_server() as server:
        store = RemoteStore(RemoteConfig((server.endpoint,)))
        store.create_table(SPEC)
        block = np.zeros(431_000, np.float32)
        store.create_dense("net", block, optim.Adam(1e-3), [("w", (len(block),))])
        rng = np.random.default_rng(0)
        keys = rng.choice(1 << 40, 1500, replace=False).astype(np.uint64)
        grads = rng.standard_normal((1500, DIM)).astype(np.float32)

        def push(and_pull: bool) -> None:
            pushed = store.push_step({"rows": KeyedRows(keys, grads)}, {"net": block}, fresh={"net": block})
            if and_pull:
                rows = store.pull("rows", keys[:1])
                pushed.wait()
                rows.wait()
            pushed.wait()

        costs: dict[bool, list[tuple[float, float, int]]] = {False: [], True: []}
        for _ in range(9):
            for and_pull in (False, True):
                client, served = time.process_time(), server.cpu_seconds()
                count = len(timed(lambda: push(and_pull), seconds / 9)) + 20  # noqa: B023  (called before the next)
                costs[and_pull].append((time.process_time() - client, server.cpu_seconds() - served, count))
        store.close()
    per_step = {
        and_pull: [float(np.median([run[who] / run[2] for run in runs])) * 1e6 for who in (0, 1)]
        for and_pull, runs in costs.items()
    }
    print("a step of batch 100 on one server, µs of processor, trainer and server (medians of nine runs in turn):")
    for and_pull, name in ((False, "push, dense values back"), (True, "the same and a pull of one row behind it")):
        print(f"  {name}: {per_step[and_pull][0]:.0f} and {per_step[and_pull][1]:.0f}")


def _client(endpoint: str, worker: int, workers: int, seconds: float, results: Any) -> None:
    store = RemoteStore(RemoteConfig((endpoint,), worker, workers))
    store.create_table(SPEC)
    rng = np.random.default_rng(worker)
    keys = rng.choice(1 << 20, KEYS, replace=False).astype(np.uint64)
    grads = rng.standard_normal((KEYS, DIM)).astype(np.float32)
    store.crew.barrier("start")
    pulls, pushes, end = [], [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        store.pull("rows", keys).wait()
        middle = time.perf_counter()
        store.push("rows", keys, grads).wait()
        pulls.append(middle - start)
        pushes.append(time.perf_counter() - middle)
    results.put((pulls, pushes))
    store.crew.barrier("end")
    store.close()


def many_clients(counts: list[int], seconds: float) -> None:
    print(f"clients at once, each pulling and pushing {KEYS:,} keys x {DIM} (Adam) as fast as it can, one server:")
    print("  clients   row updates/s   per core of the server   pull p50 / p99 ms   push p50 / p99 ms")
    context = multiprocessing.get_context("spawn")
    for count in counts:
        with parameter_server() as server:
            results = context.Queue()
            clients = [
                context.Process(target=_client, args=(server.endpoint, worker, count, seconds, results), daemon=True)
                for worker in range(count)
            ]
            for client in clients:
                client.start()
            answers = [results.get(timeout=120 + seconds) for _ in clients]
            cpu = server.cpu_seconds()
            for client in clients:
                client.join(timeout=30)
        pulls = [t for answer in answers for t in answer[0]]
        pushes = [t for answer in answers for t in answer[1]]
        rows = len(pushes) * KEYS
        print(
            f"  {count:7d}   {rows / seconds:13,.0f}   {rows / max(cpu, 1e-9):22,.0f}   "
            f"{ms(pulls, 0.5):8.2f} / {ms(pulls, 0.99):6.2f}   {ms(pushes, 0.5):8.2f} / {ms(pushes, 0.99):6.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", default="1,2,4,8")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.bare:
        _bare_main()
        return
    bare_against_ours(chosen.seconds)
    for servers in (1, 2):
        step_rate(chosen.seconds, servers)
    message_cost(chosen.seconds * 3)
    many_clients([int(count) for count in chosen.clients.split(",")], chosen.seconds)


if __name__ == "__main__":
    main()
