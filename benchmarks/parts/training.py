"""Training from raw text to the end of the epoch, against the dense network alone and against a user's own script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parts.common import Line, Scale, criteo_files, in_child, in_turn
from peers.dense_ceiling import ARRANGEMENTS
from sparsefleet.kernels import levels
from sparsefleet.nn.precision import this_machine

SCRIPT = "pyarrow + EmbeddingBag + SparseAdam"


@dataclass(frozen=True)
class Wanted:
    """What is asked of one batch size."""

    ceiling: float
    """Of the dense network alone, in the best arrangement of plain torch."""
    script: float
    """Of a competent user's script."""
    script_on_intel: float
    bf16: dict[str, float]
    """Of our own float32, by level of the processor."""


BATCHES = {
    1000: Wanted(0.95, 1.6, 2.0, {"amx": 2.5, "avx512bf16": 1.4}),
    100: Wanted(1.05, 2.0, 2.0, {"amx": 1.5, "avx512bf16": 1.2}),
}
WITHOUT_GAIN = 0.98
"""What bf16 must reach of float32 where the processor gains nothing by it."""
SMALL_OF_LARGE = 0.7


def lines(folder: Path, scale: Scale) -> Iterator[Line]:
    data = criteo_files(folder, scale.rows)
    intel = "Intel" in levels.this_processor().name
    float32 = {}
    for batch, wanted in BATCHES.items():
        ours, script, *ceilings = in_turn(
            [
                _train(data, batch, "float32"),
                lambda b=batch: in_child("peers/user_script.py", data / "train", b)[0],  # type: ignore[misc]
                *(_ceiling(name, batch, scale.seconds) for name in ARRANGEMENTS),
            ],
            scale.rounds,
        )
        float32[batch] = ours
        best, name = max(zip(ceilings, ARRANGEMENTS, strict=True))
        yield _line(f"train, batch {batch}", ours, f"dense network alone, {name}", best, wanted.ceiling)
        least = wanted.script_on_intel if intel else wanted.script
        yield _line(f"train, batch {batch}", ours, SCRIPT, script, least)
    yield _line("train, batch 100", float32[100], "our own batch 1000", float32[1000], SMALL_OF_LARGE)
    yield from _bf16(data, scale)


def _bf16(data: Path, scale: Scale) -> Iterator[Line]:
    gains = this_machine().tower
    for batch, wanted in BATCHES.items():
        bf16, plain = in_turn([_train(data, batch, "bf16"), _train(data, batch, "float32")], scale.rounds)
        least = wanted.bf16.get(levels.chosen.level, 1.0) if gains else WITHOUT_GAIN
        yield _line(f"train bf16, batch {batch}", bf16, "our own float32", plain, least)
    for level in ("amx", "avx512bf16"):
        if level != levels.chosen.level:
            yield Line(f"train bf16 with {level}", "", "", "", "", None)
    half, full = (in_child("train_once.py", data, 1000, precision, 1)[1] for precision in ("bf16", "float32"))
    gap = half - full
    yield Line("test AUC, bf16", f"{half:.4f}", f"float32: {full:.4f}", f"{gap:+.4f}", "within .002", abs(gap) <= 0.002)


def _train(data: Path, batch: int, precision: str) -> Callable[[], float]:
    return lambda: in_child("train_once.py", data, batch, precision, 0)[0]


def _ceiling(name: str, batch: int, seconds: float) -> Callable[[], float]:
    return lambda: in_child("ceiling_once.py", name, batch, seconds, "float32")[0]


def _line(what: str, ours: float, against: str, theirs: float, wanted: float) -> Line:
    ratio = ours / theirs
    figure, compared = f"{ours:,.0f} rows/s", f"{against}: {theirs:,.0f}"
    return Line(what, figure, compared, f"{ratio:.2f}", f">= {wanted}", ratio >= wanted)
