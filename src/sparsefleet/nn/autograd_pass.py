"""AutogradPass: forward and backward of any model, by torch."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.nn.dense_block import Gradients
from sparsefleet.nn.objective import Judged, judge
from sparsefleet.nn.precision import computing_in


class AutogradPass:
    """The model's embeddings read from a `RowSource`; dense gradients go to the flat array. One thread."""

    def __init__(self, model: nn.Module, gradients: Gradients, precision: str) -> None:
        self._model, self._gradients, self._precision = model, gradients, precision

    # Denormals are zero no longer than this: data is read and a user's handlers run in the same thread.
    def forward(self, batch: Batch) -> Judged:
        self._gradients.reset()
        with flushed(), computing_in(self._precision):
            judged = judge(self._model, self._model(batch), batch.labels, batch.weights)

        def backward() -> None:
            with flushed():
                judged.backward()
            self._gradients.collect()

        return replace(judged, backward=backward)
