"""DirectPass: forward and backward of a `PooledTower` by one kernel call each, without torch.

At batch 100, autograd and the small operations around our kernels took a fifth of a step, and all that time the GIL
that the other training threads wait for. Values and gradients are the same to the bit as through `model(batch)`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.pooled_pass import PooledNetwork, PooledPass
from sparsefleet.nn.autograd_pass import AutogradPass
from sparsefleet.nn.dense_block import Gradients
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.lookup import RowSource, slot_places
from sparsefleet.nn.objective import Judged, check_labels, label_names
from sparsefleet.nn.pooled_tower import PooledTower
from sparsefleet.nn.tower import GRADIENT_TARGET, DenseTower

KEPT_SIZES = 5
"""Passes, with their buffers, are kept for so many sizes of a batch: the usual one, and an input's short last ones."""


def direct_pass(model: nn.Module, source: RowSource, gradients: Gradients, *, half: bool) -> DirectPass | None:
    """A direct pass over this copy of the model; None where it is more, or other, than a plain `PooledTower`.

    half: the tower's products are bfloat16.
    """
    if not isinstance(model, PooledTower) or type(model).forward is not PooledTower.forward:
        return None
    if callable(getattr(model, "loss", None)) or hasattr(model, "probabilities") or _watched(model):
        return None
    if label_names(model) is not None:
        return None
    if type(model.embedding) is not SparseEmbedding or type(model.tower) is not DenseTower:
        return None
    layers = model.tower.linear_layers()
    if any(type(layer) is not nn.Linear for layer in model.tower.layers):
        return None
    trained = sum(parameter.numel() for layer in layers for parameter in layer.parameters() if parameter.requires_grad)
    if trained != len(gradients.flat) or trained != sum(p.numel() for p in model.parameters()):
        return None  # frozen layers, or parameters besides the tower's
    if layers[-1].out_features not in (1, 2):
        return None
    return DirectPass(model, source, AutogradPass(model, gradients, "bf16" if half else "float32"), half)


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


class DirectPass:
    """Dense gradients go where the parameters' `GRADIENT_TARGET`s are, gradients of rows to the lookup. One thread."""

    def __init__(self, model: PooledTower, source: RowSource, weighted: AutogradPass, half: bool) -> None:
        """weighted: for batches whose samples have weights, which the kernel's loss does not know."""
        embedding, layers = model.embedding, model.tower.linear_layers()
        self._model, self._weighted = model, weighted
        self._table, self._source = embedding.table, source
        slots = tuple(dict.fromkeys(embedding.slots))  # of the table's lookups: no other embedding is on it
        for parameter in (p for layer in layers for p in layer.parameters()):
            parameter.grad = getattr(parameter, GRADIENT_TARGET)  # as autograd leaves it
        self._network = PooledNetwork(
            weights=[_array(layer.weight) for layer in layers],
            biases=[_array(layer.bias) for layer in layers],
            grad_weights=[_array(layer.weight.grad) for layer in layers],
            grad_biases=[_array(layer.bias.grad) for layer in layers],
            slots=len(slots),
            chosen=slot_places(slots, embedding.slots).tolist(),
            dim=embedding.dim,
            mean=embedding.pooling == "mean",
            half=half,
        )
        self._dense_features = layers[0].in_features - len(embedding.slots) * embedding.dim
        self._kept: dict[int, PooledPass] = {}

    def forward(self, batch: Batch) -> Judged:
        samples, dense = batch.dense.shape
        if dense != self._dense_features:
            raise ConfigError(f"the model was made for {self._dense_features} dense features; the input has {dense}")
        check_labels(self._model, batch.labels)
        if batch.weights is not None:
            return self._weighted.forward(batch)
        found = self._source.lookup(self._table, batch)
        kept = self._kept.get(samples) or self._make(samples)
        loss, probabilities = kept.forward(found.values, found.inverse, found.offsets, batch.dense, batch.labels)

        def backward() -> None:
            found.direct_gradient = kept.backward(found.values)

        return Judged(loss, probabilities, backward)

    def _make(self, samples: int) -> PooledPass:
        if len(self._kept) == KEPT_SIZES:  # the one that was made last: the sizes before it are the usual ones
            self._kept.popitem()
        made = self._kept[samples] = PooledPass(samples, self._network)
        return made


def _array(tensor: torch.Tensor | None) -> F32:
    assert tensor is not None
    array: F32 = tensor.detach().numpy()
    return array
