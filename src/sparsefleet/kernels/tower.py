"""Dense layers with relu between them, forward and backward, in one call each.

Legend: B rows, `widths` from input to output.
"""

from __future__ import annotations

from collections.abc import Sequence

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
