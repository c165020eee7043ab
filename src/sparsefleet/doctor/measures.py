"""A few seconds' measure of what training spends its time on, one core each: dense layers, tables, reading.

What is wanted is about a quarter of what an idle core of 2021 gives, or three fifths of torch's own speed in the same
seconds: less says that something is wrong, not that a processor is old.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.doctor.findings import Check, Finding, Verdict
from sparsefleet.doctor.load import Load

ROUNDS = 8
SAMPLES, WIDTHS = 1000, (273, 400, 400, 400, 2)
"""The dense network of CTR-DNN."""
PRODUCTS = 8
"""Products of torch in a round: as much work as one pass of ours. A shorter round would look faster, because it
would be interrupted less often."""
WANTED_OF_TORCH = 0.6
WANTED_BY_BASELINE = 0.1
"""Torch uses AVX2 or better, which is at least four times as fast."""
WANTED_OF_HALF = 1.1
TABLE_ROWS, CALL, DIM = 500_000, 20_000, 10
WANTED_PULL, WANTED_PUSH = 6e6, 4e6
TEXT_ROWS = 20_000
WANTED_TEXT = 0.6e6


def checks(load: Load) -> Sequence[Check]:
    return [
        Check("dense layers", partial(dense_layers, load)),
        Check("tables", partial(tables, load)),
        Check("reading", partial(reading, load)),
        Check("the machine", load.findings),
    ]


def dense_layers(load: Load) -> Iterator[Finding]:
    from sparsefleet.kernels import levels

    product = _torch_product()
    whole, half, *theirs = _shortest(
        load, _tower_pass(half=False), _tower_pass(half=True), *([product] if product else [])
    )
    flop = 6 * SAMPLES * sum(a * b for a, b in pairwise(WIDTHS))  # forward, to the weights, to the inputs
    speed, half_speed = flop / whole / 1e9, flop / half / 1e9
    facts = {"gflops": round(speed, 1)}
    if theirs:
        torch_speed = PRODUCTS * 2 * SAMPLES * 400 * 400 / theirs[0] / 1e9
        wanted = WANTED_BY_BASELINE if levels.chosen.level == "baseline" else WANTED_OF_TORCH
        text = f"{speed:.0f} GFLOP/s; torch's matrix product {torch_speed:.0f}"
        facts["torch_gflops"] = round(torch_speed, 1)
        yield _judged("dense, float32", text, speed >= wanted * torch_speed, load, facts)
    else:
        yield Finding("dense, float32", f"{speed:.0f} GFLOP/s; without torch nothing to compare with", facts=facts)
    facts = {"gflops": round(half_speed, 1)}
    text = f"{half_speed:.0f} GFLOP/s"
    if levels.chosen.half:
        yield _judged("dense, bf16", text, half_speed >= WANTED_OF_HALF * speed, load, facts)
    else:
        text += f"; level {levels.chosen.level} has no instructions for it: train in float32"
        yield Finding("dense, bf16", text, facts=facts)


def tables(load: Load) -> Iterator[Finding]:
    from sparsefleet.optim import Adam
    from sparsefleet.table import SparseTable, TableSpec

    random = np.random.default_rng(0)
    table = SparseTable(TableSpec("doctor", DIM, Adam(1e-3)))
    keys = random.permutation(np.arange(TABLE_ROWS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    table.pull(keys)
    calls = [keys[start : start + CALL] for start in range(0, TABLE_ROWS, CALL)]
    grads = random.standard_normal((CALL, DIM)).astype(np.float32)

    def pull() -> None:
        for call in calls:
            table.pull(call)

    def push() -> None:
        for call in calls:
            table.push(call, grads)

    pulling, pushing = _shortest(load, pull, push)
    for name, seconds, wanted in (("pull", pulling, WANTED_PULL), ("push", pushing, WANTED_PUSH)):
        yield _rows_a_second(f"table, {name}", TABLE_ROWS / seconds, wanted, load)


def reading(load: Load) -> Iterator[Finding]:
    from sparsefleet.data.formats.base import BadSamples
    from sparsefleet.data.formats.criteo import CriteoFormat
    from sparsefleet.datasets.synth import SynthSpec, synth

    format = CriteoFormat()
    with tempfile.TemporaryDirectory() as folder:
        synth(Path(folder) / "data", SynthSpec(rows=TEXT_ROWS, test_rows=1, parts=1, seed=1))
        units = list(format.plan([str(Path(folder) / "data" / "train" / "part-0")], 1))
        (seconds,) = _shortest(load, lambda: [len(c.batch) for unit in units for c in format.read(unit, BadSamples())])
    yield _rows_a_second("Criteo text", TEXT_ROWS / seconds, WANTED_TEXT, load)


def _shortest(load: Load, *jobs: Callable[[], object]) -> list[float]:
    """Seconds of each job's fastest round. The jobs take turns, so that a disturbance meets all of them."""
    times = [float("inf")] * len(jobs)
    for _ in range(ROUNDS):
        for number, job in enumerate(jobs):
            times[number] = min(times[number], load.seconds(job))
    return times


def _tower_pass(half: bool) -> Callable[[], object]:
    from sparsefleet.kernels.tower import TowerSpace

    random = np.random.default_rng(0)

    def values(*shape: int) -> F32:
        return (0.05 * random.standard_normal(shape)).astype(np.float32)

    x, grad_out = values(SAMPLES, WIDTHS[0]), values(SAMPLES, WIDTHS[-1])
    weights, biases = [values(b, a) for a, b in pairwise(WIDTHS)], [values(b) for b in WIDTHS[1:]]
    grad_weights, grad_biases = [np.empty_like(w) for w in weights], [np.empty_like(b) for b in biases]
    out, grad_x, space = np.empty_like(grad_out), np.empty_like(x), TowerSpace(SAMPLES, WIDTHS)

    def run() -> None:
        space.forward(x, weights, biases, out, half)
        space.backward(x, weights, grad_out, grad_weights, grad_biases, grad_x, half)

    return run


def _torch_product() -> Callable[[], object] | None:
    """Matrix products of the network's size, by torch on one core; None where there is no torch."""
    try:
        import torch
    except ImportError:
        return None
    a, b, out = torch.rand(SAMPLES, 400), torch.rand(400, 400), torch.empty(SAMPLES, 400)

    def run() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for _ in range(PRODUCTS):
                torch.mm(a, b, out=out)
        finally:
            torch.set_num_threads(threads)

    return run


def _rows_a_second(name: str, speed: float, wanted: float, load: Load) -> Finding:
    text = f"{speed / 1e6:.1f} million rows/s; {wanted / 1e6:g} wanted"
    return _judged(name, text, speed >= wanted, load, {"rows_per_s": round(speed)})


def _judged(name: str, text: str, enough: bool, load: Load, facts: dict[str, float]) -> Finding:
    return Finding(name, text, Verdict.OK if enough else Verdict.LOW, "" if enough else load.advice(), facts)
