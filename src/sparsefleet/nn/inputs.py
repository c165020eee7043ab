"""A batch's arrays as tensors, without copying. Inputs are never written."""

from __future__ import annotations

import torch

from sparsefleet.core.batch import Batch


def dense_input(batch: Batch) -> torch.Tensor:
    """The normalised dense features [B, n]."""
    return torch.from_numpy(batch.dense)
