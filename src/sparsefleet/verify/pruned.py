"""The model as `export --outputs` cuts it: bundles with some of a model's labels are judged by those alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sparsefleet.export.bundle import Bundle
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.objective import label_names


def cut_as_bundle(model: nn.Module, bundle: Bundle) -> nn.Module:
    """The same model, whose outputs are the bundle's labels, in their order. It is changed, so give one of your own."""
    labels, kept = label_names(model), tuple(label for label, _ in bundle.network.labels)
    if labels is None or not kept or kept == labels or not set(kept) <= set(labels):
        return model  # nothing was cut, or it is another model: then scores and settings say so
    places = [labels.index(label) for label in kept]
    whole: type[Any] = type(model)

    def forward(self: nn.Module, batch: Any) -> torch.Tensor:
        output: torch.Tensor = whole.forward(self, batch)
        return output[:, places]

    # A class of its own: `label_names` may be a property, and a module's parts keep their names.
    model.__class__ = type(whole.__name__, (whole,), {"label_names": kept, "forward": forward, "cut": True})
    return model


def left_out(model: nn.Module, bundle: Bundle) -> set[str]:
    """The embeddings of a model that was cut which none of the kept labels needs, by their names in the model."""
    if not getattr(model, "cut", False):
        return set()
    kept = {entry.module for entry in bundle.network.embeddings}
    named = {name for name, module in model.named_modules() if isinstance(module, SparseEmbedding)}
    return named - kept


def left_out_tables(model: nn.Module, bundle: Bundle) -> set[str]:
    """Tables that only such embeddings look up."""
    gone = left_out(model, bundle)
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, SparseEmbedding)]
    return {module.table for name, module in named if name in gone} - {
        module.table for name, module in named if name not in gone
    }
