"""Dense layers with relu between them, forward and backward, in one call each.

Legend: B rows, `widths` from input to output.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.kernels.levels import native as _native


class TowerSpace:
    """Buffers of one forward and backward pass over B rows; one thread at a time."""

    def __init__(self, rows: int, widths: Sequence[int]) -> None:
        self._native = _native.TowerSpace(rows, list(widths))

    def forward(self, x: F32, weights: Sequence[F32], biases: Sequence[F32], out: F32, half: bool) -> None:
        """out [B, widths[-1]] from x [B, widths[0]]; weights[i] is [widths[i+1], widths[i]].

        `half`: products of bfloat16; sums, biases and everything between the layers stay float32.
        """
        self._native.forward(x, weights, biases, out, half)

    def backward(
        self,
        x: F32,
        weights: Sequence[F32],
        grad_out: F32,
        grad_weights: Sequence[F32],
        grad_biases: Sequence[F32],
        grad_x: F32 | None,
        half: bool,
    ) -> None:
        """After `forward` of the same x: write the gradients of all weights and biases, and of x where asked."""
        self._native.backward(x, weights, grad_out, grad_weights, grad_biases, grad_x, half)


def half_speedup(rows: int = 256, widths: Sequence[int] = (256, 400, 400), rounds: int = 4) -> float:
    """How many times as fast as float32 a pass with `half` is on this machine. Takes some hundredths of a second."""
    x, out = np.ones((rows, widths[0]), np.float32), np.empty((rows, widths[-1]), np.float32)
    weights = [np.full((b, a), 1 / a, np.float32) for a, b in pairwise(widths)]
    biases = [np.zeros(b, np.float32) for b in widths[1:]]
    grad_weights, grad_biases = [w.copy() for w in weights], [b.copy() for b in biases]
    spaces = {half: TowerSpace(rows, widths) for half in (False, True)}
    best = {False: float("inf"), True: float("inf")}
    for _ in range(rounds):  # in turn, and the best of each, by processor time: others use the machine too
        for half, space in spaces.items():
            begin = time.thread_time()
            space.forward(x, weights, biases, out, half)
            space.backward(x, weights, out, grad_weights, grad_biases, None, half)
            best[half] = min(best[half], time.thread_time() - begin)
    return best[False] / best[True]
