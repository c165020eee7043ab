"""Replica: one training thread's copy of the model. Parameters are shared with the others, gradients are its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from sparsefleet.communicator.base import Lane, StepGradients
from sparsefleet.core.batch import F32, Batch, Mark
from sparsefleet.core.errors import DataError, SparseFleetError
from sparsefleet.core.stopwatch import lap
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.metrics.base import PROBABILITY, Outputs
from sparsefleet.nn import precision as precisions
from sparsefleet.nn.autograd_pass import AutogradPass
from sparsefleet.nn.dense_block import DenseBlock
from sparsefleet.nn.direct_pass import direct_pass
from sparsefleet.nn.embedding import attach as attach_source
from sparsefleet.nn.objective import Judged, named_outputs, probabilities_of
from sparsefleet.nn.own_pass import BatchPass, BringsPass
from sparsefleet.train.row_source import BatchRows, Pull

SCORED_SAMPLES = 64
"""At least so many samples are scored at a time."""


class DivergedError(SparseFleetError):
    """Training produced a loss that is not a number."""


class Replica:
    def __init__(self, model: nn.Module, block: DenseBlock, lane: Lane, precision: str) -> None:
        self.model, self._lane = model, lane
        self._rows = BatchRows(model, lane.pull, training=True, pull_all=lane.pull_all)
        self._dense = block.gradients_for(model)
        self._pass: BatchPass
        if isinstance(model, BringsPass):
            self._pass = model.own_pass(self._rows)
        else:
            half = precisions.is_half(precision) and precisions.this_machine().tower
            direct = direct_pass(model, self._rows, self._dense, half=half)
            self._pass = direct or AutogradPass(model, self._dense, precision)
        attach_source(model, self._rows)

    def step(
        self, batch: Batch, marks: tuple[Mark, ...] = (), coming: Callable[[], Batch | None] = lambda: None
    ) -> Judged:
        """Pull, forward, backward, push. Loss and predictions are those before the update.

        marks: of leased data, those of the batch. coming: gives the batch that is likely the next one, where it is
        there already.
        """
        self._rows.begin(batch)
        lap("rows")
        judged = self._pass.forward(batch)
        lap("forward")
        if not math.isfinite(judged.loss):  # before the push: the tables stay as they were
            raise _not_finite(judged.loss, batch)
        judged.backward()
        lap("backward")
        gradients = StepGradients(self._rows.gradients(), self._dense.flat, marks)
        if self._lane.looks_ahead and (following := coming()) is not None:
            self._lane.expect(self._rows.prepare(following))
            lap("rows")
        self._lane.push(gradients)
        self._rows.end()
        lap("push")
        return judged


def _not_finite(loss: float, batch: Batch) -> SparseFleetError:
    # Of several labels, one that is not defined is none of the loss.
    unlabelled = int(np.isnan(batch.labels).sum()) if batch.labels.ndim == 1 else 0
    if unlabelled:
        hint = '; of inputs given to set_use_var, the one named "label" is the label'
        return DataError(
            f"{unlabelled} of the {len(batch)} rows of a batch have no label, and training needs one for each: "
            f"leave such rows out, or score them with predict{hint if unlabelled == len(batch) else ''}"
        )
    return DivergedError(f"the loss became {loss}: lower the learning rate, or look for dense values out of range")


class Scorer:
    """A copy of the model that predicts and changes nothing: missing rows read as zeros."""

    def __init__(self, model: nn.Module, pull: Pull, precision: str = "float32") -> None:
        self._model, self._precision = model, precision
        self._rows = BatchRows(model, pull, training=False)

    def __call__(self, batch: Batch) -> F32:
        """[B] click probabilities. A sample's does not depend on the samples beside it."""
        probabilities: F32 = self.outputs(batch)[PROBABILITY]
        return probabilities

    def outputs(self, batch: Batch) -> Outputs:
        """All of the model's outputs by name, as metrics get them."""
        samples = len(batch)
        batch = _long_enough(batch)
        attach_source(self._model, self._rows)
        with torch.no_grad(), flushed():
            with precisions.computing_in(self._precision):
                output = self._model(batch)
            probabilities = probabilities_of(self._model, output, len(batch))[:samples]
            named = named_outputs(output, self._model)
        self._rows.end()
        if named is None:
            return {PROBABILITY: probabilities}
        cut = {name: array[:samples] if array.shape[:1] == (len(batch),) else array for name, array in named.items()}
        return {PROBABILITY: probabilities, **cut}


def _long_enough(batch: Batch) -> Batch:
    """The batch, repeated where it is short.

    Matrix kernels for few samples round differently, so that a sample in an input's short last batch would score
    otherwise than in the midst of a long one, and the metrics of many processes could not be exactly those of one.
    """
    if not 0 < len(batch) < SCORED_SAMPLES:
        return batch
    return Batch.concat([batch] * -(-SCORED_SAMPLES // len(batch)))
