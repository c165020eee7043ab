"""ShallowDeep: a linear term, pairs of slots and relu layers, added up; it trains without autograd, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.nn.deep import Deep
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.fm import WeightedPairs, pair_products
from sparsefleet.nn.inputs import dense_input
from sparsefleet.nn.linear_term import LinearTerm, weights_and_vectors


class ShallowDeep(nn.Module):
    """Batch -> [B] logits. Subclasses make `rows`, `linear` and `deep`.

    A trainer knows this network by heart and trains it without autograd (`nn/direct_pass.py`), unless `deep` has
    dropout or batch norm. A subclass with a `forward` or a `loss` of its own is a model like any other.
    """

    rows: SparseEmbedding
    """Each row begins with the weight of the linear term; what follows is the value's vector."""
    linear: LinearTerm
    deep: Deep | None
    """Over the vectors of all slots and the numbers, to one output; None: there are no relu layers."""
    pairs: bool | WeightedPairs
    """Whether the products of all pairs of slots' vectors are added, as in factorization machines; a `WeightedPairs`:
    each by a learned weight. False unless a subclass says otherwise, as its own attribute or, a module, in `__init__`.
    """

    def __getattr__(self, name: str) -> Any:
        # Not `pairs = False` above: torch looks for modules only where Python finds no attribute, and would find this.
        if name == "pairs" and name not in self._modules:
            return False
        return super().__getattr__(name)

    def forward(self, batch: Batch) -> torch.Tensor:
        dense, pooled = dense_input(batch), self.rows(batch)
        if self.rows.dim == 1:  # weights, and nothing behind them
            return self.linear(pooled, dense)  # type: ignore[no-any-return]
        weights, vectors = weights_and_vectors(pooled, len(self.rows.slots))
        out: torch.Tensor = self.linear(weights, dense)
        if isinstance(self.pairs, WeightedPairs):
            out = out + self.pairs(vectors)
        elif self.pairs:
            out = out + pair_products(vectors)
        if self.deep is not None:
            out = out + self.deep(torch.cat([vectors.flatten(1), dense], 1)).squeeze(1)
        return out
