"""NumPy twin of `kernels.pooled_pass`: the twins of its parts, one after the other."""

from __future__ import annotations

import numpy as np

from sparsefleet.core.batch import F32, I64
from sparsefleet.kernels.pooled_pass import PooledNetwork
from sparsefleet.kernels.reference.rows import click_loss, pool_backward, pool_forward
from sparsefleet.kernels.reference.tower import TowerSpace
from sparsefleet.kernels.rows import I32


class PooledPass:
    def __init__(self, samples: int, network: PooledNetwork) -> None:
        self._network = network
        self._tower = TowerSpace(samples, [])

    def forward(self, rows: F32, inverse: I32, offsets: I64, dense: F32, labels: F32) -> tuple[float, F32]:
        network = self._network
        pooled = np.empty((len(labels), len(network.chosen) * network.dim), np.float32)
        self._bags = inverse, offsets, network.slots, np.array(network.chosen, np.int32), network.mean
        pool_forward(rows, *self._bags, pooled)
        self._x = np.concatenate([pooled, dense], axis=1)
        logits = np.empty((len(labels), len(network.biases[-1])), np.float32)
        self._tower.forward(self._x, network.weights, network.biases, logits, network.half)
        loss, probabilities, self._grad_logits = click_loss(logits, labels)
        return loss, probabilities

    def backward(self, rows: F32) -> F32:
        network, grad_x = self._network, np.empty_like(self._x)
        targets = network.grad_weights, network.grad_biases
        self._tower.backward(self._x, network.weights, self._grad_logits, *targets, grad_x, network.half)
        gradient = np.zeros_like(rows)
        pool_backward(grad_x[:, : len(network.chosen) * network.dim], *self._bags, gradient)
        return gradient
