"""SparseEmbedding: ragged slots in, pooled vectors out; the rows live in a table, not in the module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.initializer import Initializer, Uniform
from sparsefleet.kernels import rows as kernels
from sparsefleet.nn.lookup import Lookup, RowSource, slot_places
from sparsefleet.optim.base import UpdateRule

POOLINGS = ("sum", "mean")


class SparseEmbedding(nn.Module):
    """Looks up every value of `slots` in one table and pools each slot's values: [B, len(slots) * dim].

    All slots go through one fused call. Several embeddings may share a table (they must then agree on it), and a model
    may use several tables. The module has no parameters: rows come from the `RowSource` that whoever runs the model
    attaches, and their gradients go back the same way.
    """

    def __init__(
        self,
        table: str,
        dim: int,
        slots: Sequence[str],
        *,
        pooling: str = "sum",
        initializer: Initializer | None = None,
        optimizer: UpdateRule | None = None,
    ) -> None:
        """`optimizer`: this table's own rule; None takes the trainer's."""
        super().__init__()
        if pooling not in POOLINGS:
            raise ConfigError(f"pooling={pooling!r} is not a pooling; choose {' or '.join(POOLINGS)}")
        if dim < 1:
            raise ConfigError(f"table {table!r}: dim={dim} must be 1 or above")
        if not slots:
            raise ConfigError(f"table {table!r}: an embedding needs at least one slot")
        self.table, self.dim, self.slots, self.pooling = table, dim, tuple(slots), pooling
        self.initializer = initializer or Uniform()
        self.optimizer = optimizer
        self._source: RowSource | None = None

    def attach(self, source: RowSource | None) -> None:
        self._source = source

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}  # what a copy reads from is its own

    @property
    def width(self) -> int:
        """Values a sample has in the input that stands for this embedding where a bundle's network is run."""
        return len(self.slots) * self.dim

    def from_input(self, given: torch.Tensor) -> Any:
        """What `forward` gives, of that input [B, width]."""
        return given

    def forward(self, batch: Batch) -> torch.Tensor:
        lookup = self._lookup(batch)
        pooled: torch.Tensor = _Pool.apply(lookup.rows, lookup, self.slots, self.pooling == "mean")  # type: ignore[no-untyped-call]
        return pooled

    def _lookup(self, batch: Batch) -> Lookup:
        if self._source is None:
            raise ConfigError(
                f"the embedding on table {self.table!r} has no rows yet: run the model through a Trainer, or attach "
                "a store with sparsefleet.train.attach(model, store)"
            )
        return self._source.lookup(self.table, batch)

    def extra_repr(self) -> str:
        return f"table={self.table!r}, dim={self.dim}, slots={len(self.slots)}, pooling={self.pooling!r}"


class _Pool(torch.autograd.Function):
    """Pooling with the native kernels; the gradient of a row is the sum over all its uses in the batch."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, lookup: Lookup, slots: tuple[str, ...], mean: bool) -> torch.Tensor:
        places = slot_places(lookup.slots, slots)
        batch = (len(lookup.offsets) - 1) // len(lookup.slots)
        out = torch.empty(batch, len(slots) * rows.shape[1])
        kernels.pool_forward(
            lookup.values,
            lookup.inverse,
            lookup.offsets,
            len(lookup.slots),
            places,
            mean,
            out.numpy(),
        )
        ctx.lookup, ctx.places, ctx.mean = lookup, places, mean
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        lookup: Lookup = ctx.lookup
        if grad.stride(1) != 1 or grad.dtype != torch.float32:
            grad = grad.float().contiguous()
        grad_rows = torch.zeros_like(lookup.rows)
        kernels.pool_backward(
            grad.numpy(),
            lookup.inverse,
            lookup.offsets,
            len(lookup.slots),
            ctx.places,
            ctx.mean,
            grad_rows.numpy(),
        )
        return grad_rows, None, None, None


def embeddings(model: nn.Module) -> list[SparseEmbedding]:
    """All sparse embeddings of a model, in the order they were registered."""
    return [module for module in model.modules() if isinstance(module, SparseEmbedding)]


def tables(model: nn.Module) -> dict[str, list[SparseEmbedding]]:
    """The embeddings on each table; those that share one must agree on it."""
    by_table: dict[str, list[SparseEmbedding]] = {}
    for module in embeddings(model):
        users = by_table.setdefault(module.table, [])
        for other in users[:1]:
            for field in ("dim", "initializer", "optimizer"):
                mine, theirs = getattr(module, field), getattr(other, field)
                if mine != theirs:
                    raise ConfigError(
                        f"two embeddings share table {module.table!r} but differ in {field}: {theirs!r} and {mine!r}"
                    )
        users.append(module)
    return by_table


def attach(model: nn.Module, source: RowSource | None) -> None:
    """Make every embedding of the model read its rows from `source`."""
    for module in embeddings(model):
        module.attach(source)
