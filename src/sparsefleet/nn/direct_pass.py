"""DirectPass: forward and backward of a `PooledTower` by our kernels alone, without torch.

At batch 100, autograd and the small operations around our kernels took a fifth of a step, and all that time the GIL
that the other training threads wait for. Values and gradients are the same to the bit as through `model(batch)`.

Legend: B rows, W width of the tower's input, U unique keys, D values a row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.rows import click_loss, pool_backward, pool_forward
from sparsefleet.kernels.tower import TowerSpace
from sparsefleet.nn.dense_block import Gradients
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.lookup import Lookup, slot_places
from sparsefleet.nn.objective import Judged
from sparsefleet.nn.pooled_tower import PooledTower
from sparsefleet.nn.tower import GRADIENT_TARGET, DenseTower

KEPT_SIZES = 5
"""Buffers are kept for so many sizes of a batch: the usual one, and an input's short last ones."""


def direct_pass(model: nn.Module, gradients: Gradients, *, half: bool) -> DirectPass | None:
    """A direct pass over this copy of the model; None where it is more, or other, than a plain `PooledTower`.

    half: the tower's products are bfloat16.
    """
    if not isinstance(model, PooledTower) or type(model).forward is not PooledTower.forward:
        return None
    if hasattr(model, "loss") or hasattr(model, "probabilities") or _watched(model):
        return None
    if type(model.embedding) is not SparseEmbedding or type(model.tower) is not DenseTower:
        return None
    layers = model.tower.linear_layers()
    if any(type(layer) is not nn.Linear for layer in model.tower.layers):
        return None
    trained = sum(parameter.numel() for layer in layers for parameter in layer.parameters() if parameter.requires_grad)
    if trained != len(gradients.flat) or trained != sum(p.numel() for p in model.parameters()):
        return None  # frozen layers, or parameters besides the tower's
    return DirectPass(model.embedding, layers, half) if layers[-1].out_features in (1, 2) else None


def _watched(model: nn.Module) -> bool:
    """Whether somebody has hooks on the model's calls or has put functions of his own in their place."""
    return bool(torch_module._has_any_global_hook()) or any(  # type: ignore[no-untyped-call]
        "forward" in vars(part)
        or part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for part in model.modules()
    )


class _Buffers:
    """What a pass over B rows writes and nobody keeps."""

    def __init__(self, rows: int, widths: list[int], pooled: int) -> None:
        self.tower = TowerSpace(rows, widths)
        self.x: F32 = np.empty((rows, widths[0]), np.float32)
        self.grad_x: F32 = np.empty((rows, widths[0]), np.float32)
        self.logits: F32 = np.empty((rows, widths[-1]), np.float32)
        self.pooled, self.dense = self.x[:, :pooled], self.x[:, pooled:]
        self.grad_pooled = self.grad_x[:, :pooled]


class DirectPass:
    """Dense gradients go where the parameters' `GRADIENT_TARGET`s are, gradients of rows to the lookup. One thread."""

    def __init__(self, embedding: SparseEmbedding, layers: list[nn.Linear], half: bool) -> None:
        self.table = embedding.table
        self._slots, self._mean, self._half = embedding.slots, embedding.pooling == "mean", half
        self._pooled = len(embedding.slots) * embedding.dim
        self._widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self._weights = [_array(layer.weight) for layer in layers]
        self._biases = [_array(layer.bias) for layer in layers]
        for parameter in (p for layer in layers for p in layer.parameters()):
            parameter.grad = getattr(parameter, GRADIENT_TARGET)  # as autograd leaves it
        self._grad_weights = [_array(layer.weight.grad) for layer in layers]
        self._grad_biases = [_array(layer.bias.grad) for layer in layers]
        self._kept: dict[int, _Buffers] = {}

    def forward(self, found: Lookup, batch: Batch) -> Judged:
        rows, dense = batch.dense.shape
        if self._pooled + dense != self._widths[0]:
            raise ConfigError(
                f"the model was made for {self._widths[0] - self._pooled} dense features; the input has {dense}"
            )
        buffers = self._kept.get(rows) or self._make(rows)
        bags = (found.inverse, found.offsets, len(found.slots), slot_places(found.slots, self._slots), self._mean)
        pool_forward(found.values, *bags, buffers.pooled)
        buffers.dense[:] = batch.dense
        buffers.tower.forward(buffers.x, self._weights, self._biases, buffers.logits, self._half)
        loss, probabilities, gradient = click_loss(buffers.logits, batch.labels)

        def backward() -> None:
            buffers.tower.backward(
                buffers.x,
                self._weights,
                gradient,
                self._grad_weights,
                self._grad_biases,
                buffers.grad_x,
                self._half,
            )
            found.direct_gradient = np.zeros(found.values.shape, np.float32)
            pool_backward(buffers.grad_pooled, *bags, found.direct_gradient)

        return Judged(loss, probabilities, backward)

    def _make(self, rows: int) -> _Buffers:
        if len(self._kept) == KEPT_SIZES:  # the one that was made last: the sizes before it are the usual ones
            self._kept.popitem()
        made = self._kept[rows] = _Buffers(rows, self._widths, self._pooled)
        return made


def _array(tensor: torch.Tensor | None) -> F32:
    assert tensor is not None
    array: F32 = tensor.detach().numpy()
    return array
