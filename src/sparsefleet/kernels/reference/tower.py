"""NumPy twin of `kernels.tower`. Denormals are zero."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.kernels.float_mode import flushed


class TowerSpace:
    def __init__(self, rows: int, widths: Sequence[int]) -> None:
        self._inputs: list[F32] = []
        """What each layer got."""

    def forward(self, x: F32, weights: Sequence[F32], biases: Sequence[F32], out: F32, half: bool) -> None:
        with flushed():
            self._inputs = [x]
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                x = np.maximum(_product(x, weight.T, half) + bias, 0.0)
                self._inputs.append(x)
            out[:] = _product(x, weights[-1].T, half) + biases[-1]

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
        with flushed():
            grad = grad_out
            for i in reversed(range(len(weights))):
                grad_weights[i][:] = _product(grad.T, self._inputs[i], half)
                grad_biases[i][:] = grad.sum(axis=0)
                if i:
                    grad = _product(grad, weights[i], half) * (self._inputs[i] > 0)
                elif grad_x is not None:
                    grad_x[:] = _product(grad, weights[0], half)


def _product(a: F32, b: F32, half: bool) -> F32:
    return (_rounded(a) @ _rounded(b)) if half else a @ b


def _rounded(values: F32) -> F32:
    """To the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(values), values, nearest.astype(np.uint32).view(np.float32))
