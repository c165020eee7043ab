"""AutogradPass: forward and backward of any model, by torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
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
            with _normed(self._model, len(batch)):
                output = self._model(batch)
            judged = judge(self._model, output, batch.labels, batch.weights)

        def backward() -> None:
            with flushed():
                judged.backward()
            self._gradients.collect()

        return replace(judged, backward=backward)


@contextmanager
def _normed(model: nn.Module, samples: int) -> Iterator[None]:
    """A batch of one sample has no variance: batch norms take their running statistics, and leave them as they are.

    It is what is left at the end of a thread's data, and no reason for training to end.
    """
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training] if samples == 1 else []
    for norm in norms:
        norm.eval()
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"a batch norm of {type(model).__qualname__} got a single row, of a batch of {samples} sample(s), and a "
            "single row has no variance: let it see the whole batch, with running statistics "
            "(track_running_stats=True), which batches of one sample are normalised by"
        ) from error
    finally:
        for norm in norms:
            norm.train()
