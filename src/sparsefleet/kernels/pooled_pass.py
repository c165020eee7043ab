"""One network forward and backward in one call each: rows pooled by slot, dense features, the loss of clicks; between
them a tower, a shallow part, or both.

Legend: B samples, N feature values, U unique keys, D values a row, n dense features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsefleet.core.batch import F32, I64
from sparsefleet.kernels.levels import native as _native
from sparsefleet.kernels.rows import I32


@dataclass(frozen=True)
class Shallow:
    """A linear term and, with `pairs`, the product of each two slots' vectors: added to the tower's one logit.

    With `pair_weights`, one for each two slots (0 and 1, 0 and 2, …), a product counts by its weight.

    A row of the table then begins with its value's weight; the D - 1 values behind it are the vector.
    """

    bias: F32
    """[1]"""
    numbers: F32
    """[n] the weights of the dense features."""
    grad_bias: F32
    grad_numbers: F32
    pairs: bool
    pair_weights: F32 | None = None
    grad_pair_weights: F32 | None = None


@dataclass(frozen=True)
class PooledNetwork:
    """The network, and the arrays of its parameters and their gradients, which stay where they are."""

    weights: Sequence[F32]
    """A layer of the tower each, from the input on: [to, from]. The last gives one or two logits. None: no tower."""
    biases: Sequence[F32]
    grad_weights: Sequence[F32]
    grad_biases: Sequence[F32]
    slots: int
    """Slots of a batch's bags."""
    chosen: Sequence[int]
    """Those that are pooled, in order; the dense features come behind them."""
    dim: int
    """D"""
    mean: bool
    """Whether a slot's rows are averaged, not summed."""
    half: bool
    """Whether the tower's products are of bfloat16."""
    shallow: Shallow | None = None


class PooledPass:
    """A pass over batches of B samples, with buffers of its own; one thread at a time."""

    def __init__(self, samples: int, network: PooledNetwork) -> None:
        shallow = network.shallow
        self._native = _native.PooledPass(
            samples,
            list(network.weights),
            list(network.biases),
            list(network.grad_weights),
            list(network.grad_biases),
            network.slots,
            list(map(int, network.chosen)),
            network.dim,
            network.mean,
            network.half,
            shallow is not None and shallow.pairs,
            *([None] * 6 if shallow is None else _arrays(shallow)),
        )

    def forward(self, rows: F32, inverse: I32, offsets: I64, dense: F32, labels: F32) -> tuple[float, F32]:
        """The loss, summed, and each click's probability [B]; `rows` [U, D] and bags as in `kernels.rows`."""
        probabilities = np.empty(len(labels), np.float32)
        return self._native.forward(rows, inverse, offsets, dense, labels, probabilities), probabilities

    def backward(self, rows: F32) -> F32:
        """After `forward` of these rows: write the gradients of all parameters, and return those of the rows."""
        gradient = np.empty(rows.shape, np.float32)
        self._native.backward(gradient)
        return gradient


def _arrays(shallow: Shallow) -> list[F32 | None]:
    linear = [shallow.bias, shallow.numbers, shallow.grad_bias, shallow.grad_numbers]
    return [*linear, shallow.pair_weights, shallow.grad_pair_weights]
