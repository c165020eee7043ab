"""SequenceEmbedding: the values of one slot one by one, for attention over a user's history.

Legend: B samples, L values of the longest sample (at most `length`), D values of a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.initializer import Initializer
from sparsefleet.kernels import rows as kernels
from sparsefleet.kernels.sequences import Spread, spread_slot
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.lookup import Lookup, slot_places
from sparsefleet.optim.base import UpdateRule

SEQUENCE = "sequence"


class Sequence(NamedTuple):
    vectors: torch.Tensor
    """[B, L, D], zeros behind a sample's last value."""
    mask: torch.Tensor
    """[B, L] True where there is a value."""


class SequenceEmbedding(SparseEmbedding):
    """Looks up the last `length` values of one slot, and gives their rows side by side, in order.

    L is as long as the batch needs; what a model makes of it must not depend on it: go by the mask.
    """

    def __init__(
        self,
        table: str,
        dim: int,
        slot: str,
        *,
        length: int,
        initializer: Initializer | None = None,
        optimizer: UpdateRule | None = None,
    ) -> None:
        super().__init__(table, dim, [slot], initializer=initializer, optimizer=optimizer)
        if length < 1:
            raise ConfigError(f"slot {slot!r}: length={length} must be 1 or above")
        self.length, self.pooling = length, SEQUENCE

    @property
    def width(self) -> int:
        return self.length * (self.dim + 1)

    def from_input(self, given: torch.Tensor) -> Any:
        cut = self.length * self.dim
        return Sequence(given[:, :cut].reshape(given.shape[0], self.length, self.dim), given[:, cut:] > 0.5)

    def forward(self, batch: Batch) -> Any:
        lookup = self._lookup(batch)
        place = int(slot_places(lookup.slots, self.slots)[0])
        spread = spread_slot(lookup.inverse, lookup.offsets, len(lookup.slots), place, self.length, tight=True)
        vectors: torch.Tensor = _Spread.apply(lookup.rows, lookup, spread)  # type: ignore[no-untyped-call]
        return Sequence(vectors.view(len(spread.lengths), -1, self.dim), torch.from_numpy(spread.mask))

    def extra_repr(self) -> str:
        return f"table={self.table!r}, dim={self.dim}, slot={self.slots[0]!r}, length={self.length}"


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, lookup: Lookup, spread: Spread) -> torch.Tensor:
        ctx.lookup, ctx.spread = lookup, spread
        return torch.from_numpy(spread.vectors(lookup.values))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        spread: Spread = ctx.spread
        grad_rows = torch.zeros_like(ctx.lookup.rows)
        kernels.pool_backward(
            grad.float().contiguous().numpy(),
            spread.inverse,
            spread.offsets,
            len(spread.places),
            spread.places,
            False,
            grad_rows.numpy(),
        )
        return grad_rows, None, None
