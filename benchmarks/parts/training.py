"""Training from raw text to the end of the epoch, against the dense network alone and against a user's own script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from parts.common import Line, Scale, criteo_files, in_child, in_turn
from peers.dense_ceiling import ARRANGEMENTS

BATCHES = {1000: 0.9, 100: 0.8}
"""Batch size, and the share of the ceiling that is wanted there."""


def lines(folder: Path, scale: Scale) -> Iterator[Line]:
    data = criteo_files(folder, scale.rows)
    float32 = 0.0
    for batch, wanted in BATCHES.items():
        ours, script, *ceilings = in_turn(
            [
                lambda b=batch: in_child("train_once.py", data, b, "float32", 0)[0],  # type: ignore[misc]
                lambda b=batch: in_child("peers/user_script.py", data / "train", b)[0],  # type: ignore[misc]
                *(_ceiling(name, batch, scale.seconds) for name in ARRANGEMENTS),
            ],
            scale.rounds,
        )
        best, name = max(zip(ceilings, ARRANGEMENTS, strict=True))
        float32 = float32 or ours
        yield _line(f"train, batch {batch}", ours, f"dense network alone, {name}", best, wanted)
        yield _line(f"train, batch {batch}", ours, "pyarrow + EmbeddingBag + SparseAdam", script, 1.5)
    (bf16, plain) = in_turn(
        [
            lambda: in_child("train_once.py", data, 1000, "bf16", 0)[0],
            lambda: in_child("train_once.py", data, 1000, "float32", 0)[0],
        ],
        scale.rounds,
    )
    yield _line("train bf16, batch 1000", bf16, "our own float32", plain, 1.4)
    half, full = (in_child("train_once.py", data, 1000, precision, 1)[1] for precision in ("bf16", "float32"))
    gap = half - full
    yield Line("test AUC, bf16", f"{half:.4f}", f"float32: {full:.4f}", f"{gap:+.4f}", "within .002", abs(gap) <= 0.002)


def _ceiling(name: str, batch: int, seconds: float) -> Callable[[], float]:
    return lambda: in_child("ceiling_once.py", name, batch, seconds, "float32")[0]


def _line(what: str, ours: float, against: str, theirs: float, wanted: float) -> Line:
    ratio = ours / theirs
    figure, compared = f"{ours:,.0f} rows/s", f"{against}: {theirs:,.0f}"
    return Line(what, figure, compared, f"{ratio:.2f}", f">= {wanted}", ratio >= wanted)
