"""The ceiling: CTR-DNN's dense network alone in plain torch, inputs in memory, best arrangement of the cores.

Forward, backward (to the input too: the embeddings need that gradient) and Adam on 273 -> 400 -> 400 -> 400 -> 2.
Denormals are zero here too: with them, Adam takes longer than it must.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch
from torch import nn
from torch.nn import functional

WIDTHS = (273, 400, 400, 400, 2)
Step = Callable[[], None]


def plain_step(batch: int, *, bf16: bool = False, compiled: bool = False) -> Step:
    layers: list[nn.Module] = []
    for a, b in pairwise(WIDTHS):
        layers += [nn.Linear(a, b), nn.ReLU()]
    net: Callable[[torch.Tensor], torch.Tensor] = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)  # type: ignore[attr-defined]
    if compiled:
        net = torch.compile(net)
    inputs = [torch.randn(batch, WIDTHS[0]) for _ in range(8)]
    labels = [torch.randint(0, 2, (batch,)) for _ in range(8)]
    turn = [0]

    def step() -> None:
        at = turn[0] = (turn[0] + 1) % 8
        x = inputs[at].detach().requires_grad_()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            out = net(x)
        functional.cross_entropy(out.float(), labels[at], reduction="sum").backward()
        optimizer.step()

    return step


def _count(step: Step, batch: int, seconds: float, start: float) -> float:
    while time.time() < start:
        step()  # warm up until all are ready
    begin, rows = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        step()
        rows += batch
    return rows / (time.perf_counter() - begin)


def intra_op(batch: int, seconds: float, cores: int = 2, **how: bool) -> float:
    """One model, torch's own threads on all cores."""
    torch.set_flush_denormal(True)  # before torch's threads are made: they take it over
    torch.set_num_threads(cores)
    return _count(plain_step(batch, **how), batch, seconds, time.time() + 0.5)


def replicas_in_threads(batch: int, seconds: float, cores: int = 2, **how: bool) -> float:
    """One model per core, in threads of one process."""
    torch.set_num_threads(1)
    steps = [plain_step(batch, **how) for _ in range(cores)]
    rates, start = [0.0] * cores, time.time() + 0.5

    def body(index: int) -> None:
        torch.set_num_threads(1)  # per thread: see train/threads.py
        torch.set_flush_denormal(True)
        rates[index] = _count(steps[index], batch, seconds, start)

    threads = [threading.Thread(target=body, args=(index,)) for index in range(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def _replica(batch: int, seconds: float, ready: Barrier, how: dict[str, bool], out: Queue[float]) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    step = plain_step(batch, **how)
    step()  # compiles, where it is to be compiled
    ready.wait(timeout=240)
    out.put(_count(step, batch, seconds, time.time() + 0.5))


def replicas_in_processes(batch: int, seconds: float, cores: int = 2, **how: bool) -> float:
    """One model per core, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    ready = context.Barrier(cores)
    children = [context.Process(target=_replica, args=(batch, seconds, ready, how, out)) for _ in range(cores)]
    for child in children:
        child.start()
    rates = [out.get(timeout=240) for _ in children]
    for child in children:
        child.join()
    return float(sum(rates))


def compiled_replicas(batch: int, seconds: float, cores: int = 2, **how: bool) -> float:
    """One model per core through torch.compile, each in a process of its own."""
    return replicas_in_processes(batch, seconds, cores, **how, compiled=True)


ARRANGEMENTS = {
    "2 intra-op threads": intra_op,
    "2 replicas in threads": replicas_in_threads,
    "2 replicas in processes": replicas_in_processes,
    "2 compiled replicas in processes": compiled_replicas,
}
