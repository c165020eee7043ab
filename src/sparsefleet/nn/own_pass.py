"""A model that brings its own way through a batch: forward and backward of a kernel, in place of autograd's."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sparsefleet.core.batch import Batch
from sparsefleet.nn.lookup import RowSource
from sparsefleet.nn.objective import Judged


class BatchPass(Protocol):
    """Used by one thread. Gradients of rows go to the lookup's `direct_gradient`."""

    def forward(self, batch: Batch) -> Judged: ...


@runtime_checkable
class BringsPass(Protocol):
    """What a trainer asks a model before it turns to autograd."""

    def own_pass(self, source: RowSource) -> BatchPass:
        """A pass over this copy of the model, whose rows come from `source`. For models without dense parameters."""
        ...
