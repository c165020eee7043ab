"""A batch's arrays as tensors, without copying."""

from __future__ import annotations

import warnings

import torch

from sparsefleet.core.batch import Batch


def dense_input(batch: Batch) -> torch.Tensor:
    """The normalised dense features [B, n]."""
    return _tensor(batch.dense)


def label_input(batch: Batch) -> torch.Tensor:
    """The labels [B], 0.0 or 1.0."""
    return _tensor(batch.labels)


def _tensor(array: object) -> torch.Tensor:
    with warnings.catch_warnings():  # a read-only array (mapped or shared) is fine: inputs are never written
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
