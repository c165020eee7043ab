"""A batch's arrays as tensors, without copying. Inputs are never written."""

from __future__ import annotations

import torch

from sparsefleet.core.batch import Batch


def dense_input(batch: Batch) -> torch.Tensor:
    """The normalised dense features [B, n]."""
    given: object = batch.dense  # a tensor already where the model is traced for export
    return given if isinstance(given, torch.Tensor) else torch.from_numpy(batch.dense)
