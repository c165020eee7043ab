"""The seam between a model and wherever its rows live.

A model declares tables through `SparseEmbedding`; whoever runs the model (a trainer, an evaluator, a test) attaches a
`RowSource`, which answers one `Lookup` per table and batch. Nothing in a model knows stores or servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch

from sparsefleet.core.batch import F32, I64, U64, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.rows import I32, U32


@dataclass(slots=True)
class Lookup:
    """The rows of one table that one batch needs. All embeddings on that table pool from the same leaf."""

    keys: U64
    """[U] unique."""
    values: F32
    """[U, D] the rows of these keys."""
    inverse: I32
    """[N] place in `keys` of each feature value."""
    offsets: I64
    """[B*S+1] bags of the table's slots, sample-major."""
    slots: tuple[str, ...]
    """The S slots that `offsets` speaks of."""
    trained: bool = False
    """Whether gradients are wanted."""
    counts: U32 | None = None
    """[U] how often each key occurs in the batch, where gradients are wanted."""
    direct_gradient: F32 | None = None
    """[U, D] left here by whoever went backward without autograd."""
    _leaf: torch.Tensor | None = field(default=None, repr=False)

    @property
    def rows(self) -> torch.Tensor:
        """[U, D] `values` as a leaf of autograd's graph."""
        if self._leaf is None:
            self._leaf = torch.from_numpy(self.values).requires_grad_(self.trained)
        return self._leaf

    @property
    def gradient(self) -> F32 | None:
        """[U, D] after backward, what the batch asks of these keys; None if the model did not use them."""
        if self._leaf is None or self._leaf.grad is None:
            return self.direct_gradient
        gradient: F32 = self._leaf.grad.numpy()
        return gradient


class RowSource(Protocol):
    def lookup(self, table: str, batch: Batch) -> Lookup:
        """The table's rows for this batch; asked twice for one batch, it gives the same object."""
        ...


@lru_cache(maxsize=1024)
def slot_places(slots: tuple[str, ...], wanted: tuple[str, ...]) -> I32:
    """Where the wanted slots stand among `slots`."""
    missing = [name for name in wanted if name not in slots]
    if missing:
        raise ConfigError(f"the input has no slot {', '.join(map(repr, missing))}; it has {', '.join(slots)}")
    places = np.array([slots.index(name) for name in wanted], np.int32)
    places.setflags(write=False)
    return places
