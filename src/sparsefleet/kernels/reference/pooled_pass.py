"""NumPy twin of `kernels.pooled_pass`: the twins of its parts, one after the other.

Legend: B samples, C chosen slots, D values a row.
"""

from __future__ import annotations

import numpy as np

from sparsefleet.core.batch import F32, I64
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.kernels.pooled_pass import PooledNetwork, Shallow
from sparsefleet.kernels.reference.rows import click_loss, pool_backward, pool_forward
from sparsefleet.kernels.reference.tower import TowerSpace
from sparsefleet.kernels.rows import I32


class PooledPass:
    def __init__(self, samples: int, network: PooledNetwork) -> None:
        self._network = network
        self._tower = TowerSpace(samples, [])

    def forward(self, rows: F32, inverse: I32, offsets: I64, dense: F32, labels: F32) -> tuple[float, F32]:
        network, samples = self._network, len(labels)
        self._pooled = pooled = np.empty((samples, len(network.chosen) * network.dim), np.float32)
        self._bags = inverse, offsets, network.slots, np.array(network.chosen, np.int32), network.mean
        pool_forward(rows, *self._bags, pooled)
        skipped = 0 if network.shallow is None else 1  # the weight of the linear term
        vectors = pooled.reshape(samples, len(network.chosen), network.dim)[:, :, skipped:]
        self._dense, self._x = dense, np.concatenate([vectors.reshape(samples, -1), dense], axis=1)
        logits = np.zeros((samples, len(network.biases[-1]) if network.biases else 1), np.float32)
        if network.weights:
            self._tower.forward(self._x, network.weights, network.biases, logits, network.half)
        if network.shallow is not None:
            logits[:, 0] += self._shallow_forward(network.shallow)
        loss, probabilities, self._grad_logits = click_loss(logits, labels)
        return loss, probabilities

    def backward(self, rows: F32) -> F32:
        network, grad_x = self._network, np.zeros_like(self._x)
        targets = network.grad_weights, network.grad_biases
        if network.weights:
            self._tower.backward(self._x, network.weights, self._grad_logits, *targets, grad_x, network.half)
        grad_pooled = grad_x[:, : grad_x.shape[1] - self._dense.shape[1]]
        if network.shallow is not None:
            grad_pooled = self._shallow_backward(network.shallow, grad_pooled)
        gradient = np.zeros_like(rows)
        pool_backward(grad_pooled, *self._bags, gradient)
        return gradient

    def _rows(self) -> F32:
        """[B, C, D] pooled, weights and vectors."""
        pooled: F32 = self._pooled.reshape(len(self._pooled), len(self._network.chosen), self._network.dim)
        return pooled

    def _shallow_forward(self, shallow: Shallow) -> F32:
        with flushed():
            logits: F32 = self._rows()[:, :, 0].sum(1) + shallow.bias + self._dense @ shallow.numbers
            vectors = self._rows()[:, :, 1:]
            if shallow.pairs and shallow.pair_weights is not None:
                weighted = _symmetric(shallow.pair_weights, vectors.shape[1]) @ vectors
                logits = logits + np.float32(0.5) * (weighted * vectors).sum((1, 2))
            elif shallow.pairs:
                logits = logits + np.float32(0.5) * ((vectors.sum(1) ** 2).sum(1) - (vectors**2).sum((1, 2)))
        return logits

    def _shallow_backward(self, shallow: Shallow, of_tower: F32) -> F32:
        """[B, C*D] the gradient of pooled rows; of_tower [B, C*(D-1)]: what the tower asks of their vectors."""
        with flushed():
            grad, rows = self._grad_logits[:, 0], self._rows()
            shallow.grad_bias[0] = grad.sum()
            shallow.grad_numbers[:] = grad @ self._dense
            of_rows = np.empty_like(rows)
            of_rows[:, :, 0] = grad[:, None]
            of_rows[:, :, 1:] = of_tower.reshape(rows[:, :, 1:].shape)
            vectors = rows[:, :, 1:]
            if shallow.pairs and shallow.pair_weights is not None:
                weighted = _symmetric(shallow.pair_weights, vectors.shape[1]) @ vectors
                of_rows[:, :, 1:] += grad[:, None, None] * weighted
                assert shallow.grad_pair_weights is not None
                products = np.einsum("b,bid,bjd->ij", grad, vectors, vectors)
                shallow.grad_pair_weights[:] = products[np.triu_indices(vectors.shape[1], 1)]
            elif shallow.pairs:
                of_rows[:, :, 1:] += grad[:, None, None] * (vectors.sum(1, keepdims=True) - vectors)
        flat: F32 = of_rows.reshape(len(rows), -1)
        return flat


def _symmetric(weights: F32, slots: int) -> F32:
    """[C, C] each pair's weight in both its places; zeros on the diagonal."""
    upper = np.zeros((slots, slots), np.float32)
    upper[np.triu_indices(slots, 1)] = weights
    return upper + upper.T
