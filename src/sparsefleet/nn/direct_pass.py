"""DirectPass: forward and backward of a `PooledTower` or a `ShallowDeep` by one kernel call each, without torch.

At batch 100, autograd and the small operations around our kernels took a fifth of a step, and all that time the GIL
that the other training threads wait for. Values and gradients of a `PooledTower` are the same to the bit as through
`model(batch)`; those of a `ShallowDeep` differ in the last ones, for torch adds up in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.pooled_pass import PooledNetwork, PooledPass, Shallow
from sparsefleet.nn.autograd_pass import AutogradPass
from sparsefleet.nn.deep import Deep
from sparsefleet.nn.dense_block import Gradients
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.fm import WeightedPairs
from sparsefleet.nn.linear_term import LinearTerm
from sparsefleet.nn.lookup import RowSource, slot_places
from sparsefleet.nn.objective import Judged, check_labels, label_names
from sparsefleet.nn.pooled_tower import PooledTower
from sparsefleet.nn.shallow_deep import ShallowDeep
from sparsefleet.nn.tower import GRADIENT_TARGET, DenseTower

KEPT_SIZES = 5
"""Passes, with their buffers, are kept for so many sizes of a batch: the usual one, and an input's short last ones."""


@dataclass(frozen=True)
class _Parts:
    """What a network that the kernel knows is made of."""

    embedding: SparseEmbedding
    tower: DenseTower | None
    linear: LinearTerm | None = None
    pairs: bool = False
    weighted: WeightedPairs | None = None

    @property
    def layers(self) -> list[nn.Linear]:
        return self.tower.linear_layers() if self.tower is not None else []

    def known(self) -> bool:
        """Whether each part is of our own class: a subclass may compute something else."""
        return (
            type(self.embedding) is SparseEmbedding
            and type(self.tower) in (DenseTower, type(None))
            and type(self.linear) in (LinearTerm, type(None))
            and type(self.weighted) in (WeightedPairs, type(None))
            and all(type(layer) is nn.Linear for layer in (self.tower.layers if self.tower is not None else ()))
        )

    def parameters(self) -> list[nn.Parameter]:
        parts = [*self.layers, self.linear, self.weighted]
        return [parameter for part in parts if part is not None for parameter in part.parameters()]


def _parts_of(model: nn.Module) -> _Parts | None:
    forward = type(model).forward
    if isinstance(model, PooledTower) and forward is PooledTower.forward:
        return _Parts(model.embedding, model.tower)
    if isinstance(model, ShallowDeep) and forward is ShallowDeep.forward:
        deep, pairs = model.deep, bool(model.pairs)
        weighted = model.pairs if isinstance(model.pairs, WeightedPairs) else None
        if deep is None:
            return _Parts(model.rows, None, model.linear, pairs, weighted)
        if type(deep) is Deep and deep.plain:
            return _Parts(model.rows, deep.tower, model.linear, pairs, weighted)
    return None


def direct_pass(model: nn.Module, source: RowSource, gradients: Gradients, *, half: bool) -> DirectPass | None:
    """A direct pass over this copy of the model; None where it is more, or other, than the networks of above.

    half: the tower's products are bfloat16.
    """
    parts = _parts_of(model)
    if parts is None or not parts.known():
        return None
    if callable(getattr(model, "loss", None)) or hasattr(model, "probabilities") or _watched(model):
        return None
    if label_names(model) is not None:
        return None
    trained = sum(parameter.numel() for parameter in parts.parameters() if parameter.requires_grad)
    if trained != len(gradients.flat) or trained != sum(p.numel() for p in model.parameters()):
        return None  # frozen layers, or parameters besides those of the parts
    if parts.layers and parts.layers[-1].out_features not in ((1, 2) if parts.linear is None else (1,)):
        return None
    return DirectPass(model, parts, source, AutogradPass(model, gradients, "bf16" if half else "float32"), half)


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

    def __init__(self, model: nn.Module, parts: _Parts, source: RowSource, weighted: AutogradPass, half: bool) -> None:
        """weighted: for batches whose samples have weights, which the kernel's loss does not know."""
        embedding, layers = parts.embedding, parts.layers
        self._model, self._weighted = model, weighted
        self._table, self._source = embedding.table, source
        slots = tuple(dict.fromkeys(embedding.slots))  # of the table's lookups: no other embedding is on it
        for parameter in parts.parameters():
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
            shallow=None if parts.linear is None else _shallow(parts.linear, parts.pairs, parts.weighted),
        )
        if parts.linear is not None:
            self._dense_features = 0 if parts.linear.numbers is None else len(parts.linear.numbers)
        else:
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


def _shallow(linear: LinearTerm, pairs: bool, weighted: WeightedPairs | None) -> Shallow:
    numbers, none = linear.numbers, np.empty(0, np.float32)
    return Shallow(
        bias=_array(linear.bias),
        numbers=none if numbers is None else _array(numbers),
        grad_bias=_array(linear.bias.grad),
        grad_numbers=none if numbers is None else _array(numbers.grad),
        pairs=pairs,
        pair_weights=None if weighted is None else _array(weighted.pairs),
        grad_pair_weights=None if weighted is None else _array(weighted.pairs.grad),
    )


def _array(tensor: torch.Tensor | None) -> F32:
    assert tensor is not None
    array: F32 = tensor.detach().numpy()
    return array
