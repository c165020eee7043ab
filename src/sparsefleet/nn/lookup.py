"""The seam between a model and wherever its rows live.

A model declares tables through `SparseEmbedding`; whoever runs the model (a trainer, an evaluator, a test) attaches a
`RowSource`, which answers one `Lookup` per table and batch. Nothing in a model knows stores or servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch

from sparsefleet.core.batch import I64, U64, Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.rows import I32


@dataclass(slots=True)
class Lookup:
    """The rows of one table that one batch needs. All embeddings on that table pool from the same leaf."""

    keys: U64
    """[U] unique."""
    rows: torch.Tensor
    """[U, D]; a leaf: after backward its gradient is what the batch asks of these keys."""
    inverse: I32
    """[N] place in `keys` of each feature value."""
    offsets: I64
    """[B*S+1] bags of the table's slots, row-major."""
    slots: tuple[str, ...]
    """The S slots that `offsets` speaks of."""


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
