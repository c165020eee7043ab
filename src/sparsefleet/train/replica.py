"""Replica: one training thread's copy of the model. Parameters are shared with the others, gradients are its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sparsefleet.communicator.base import Lane, StepGradients
from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import DataError, SparseFleetError
from sparsefleet.core.stopwatch import lap
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.nn import precision as precisions
from sparsefleet.nn.dense_block import DenseBlock
from sparsefleet.nn.direct_pass import direct_pass
from sparsefleet.nn.embedding import attach as attach_source
from sparsefleet.nn.objective import Judged, judge, probabilities_of
from sparsefleet.train.row_source import BatchRows, Pull

SCORED_ROWS = 64
"""At least so many rows are scored at a time."""


class DivergedError(SparseFleetError):
    """Training produced a loss that is not a number."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    loss: float
    """Summed over the batch, before the update."""
    probabilities: F32
    """[B] clicks as predicted before the update."""


class Replica:
    def __init__(self, model: nn.Module, block: DenseBlock, lane: Lane, precision: str) -> None:
        self.model, self._lane, self._precision = model, lane, precision
        self._rows = BatchRows(model, lane.pull, training=True)
        self._dense = block.gradients_for(model)
        self._direct = direct_pass(
            model, self._dense, half=precisions.is_half(precision) and precisions.this_machine().tower
        )
        attach_source(model, self._rows)

    def step(self, batch: Batch) -> StepOutcome:
        """Pull, forward, backward, push."""
        with flushed():  # no longer than this: data is read and a user's handlers run in the same thread
            return self._step(batch)

    def _step(self, batch: Batch) -> StepOutcome:
        self._rows.begin(batch)
        lap("rows")
        judged = self._forward(batch)
        lap("forward")
        if not math.isfinite(judged.loss):
            # Before the push: the tables stay as they were.
            unlabelled = int(np.isnan(batch.labels).sum())
            if unlabelled:
                raise DataError(
                    f"{unlabelled} of the {len(batch)} rows of a batch have no label, and training needs one for each: "
                    "leave such rows out, or score them with predict"
                )
            raise DivergedError(
                f"the loss became {judged.loss}: lower the learning rate, or look for dense values out of range"
            )
        judged.backward()
        lap("backward")
        dense = self._dense.collect() if self._direct is None else self._dense.flat
        self._lane.push(StepGradients(self._rows.gradients(), dense))
        self._rows.end()
        lap("push")
        return StepOutcome(judged.loss, judged.probabilities)

    def _forward(self, batch: Batch) -> Judged:
        if self._direct is not None:
            return self._direct.forward(self._rows.lookup(self._direct.table, batch), batch)
        self._dense.reset()
        with precisions.computing_in(self._precision):
            return judge(self.model, self.model(batch), batch.labels)


class Scorer:
    """A copy of the model that predicts and changes nothing: missing rows read as zeros."""

    def __init__(self, model: nn.Module, pull: Pull, precision: str = "float32") -> None:
        self._model, self._precision = model, precision
        self._rows = BatchRows(model, pull, training=False)

    def __call__(self, batch: Batch) -> F32:
        """[B] click probabilities. A row's does not depend on the rows beside it."""
        rows = len(batch)
        batch = _long_enough(batch)
        attach_source(self._model, self._rows)
        with torch.no_grad(), flushed():
            with precisions.computing_in(self._precision):
                output = self._model(batch)
            probabilities = probabilities_of(self._model, output)[:rows]
        self._rows.end()
        return probabilities


def _long_enough(batch: Batch) -> Batch:
    """The batch, repeated where it is short.

    Matrix kernels for few rows round differently, so that a row in an input's short last batch would score otherwise
    than in the midst of a long one, and the metrics of many processes could not be exactly those of one.
    """
    if not 0 < len(batch) < SCORED_ROWS:
        return batch
    return Batch.concat([batch] * -(-SCORED_ROWS // len(batch)))
