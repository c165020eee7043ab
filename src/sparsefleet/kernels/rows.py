"""Kernels on the rows of one batch: unique keys, slot selection, pooling, click counts.

Legend: N feature values, U unique keys, D values a row, B batch rows, S slots, C chosen slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.kernels.levels import native as _native

I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
_ONE_SLOT = np.zeros(1, np.int32)


CLICK_PARTS = 2**32


class ClickSums(NamedTuple):
    """Sums over the samples of one `count_clicks` call. They are whole numbers, so their order does not matter."""

    log_loss: int
    """In parts, `CLICK_PARTS` of which are 1; each sample's is rounded to one."""
    predicted: int
    """In parts."""
    clicks: int
    correct: int
    bad: int
    """Samples left out: a probability outside [0, 1] or not a number, a label other than 0 or 1."""


def unique_keys(keys: U64) -> tuple[U64, I32]:
    """Distinct keys in order of first appearance [U], and for each key its place among them [N]."""
    unique, inverse = np.empty(len(keys), np.uint64), np.empty(len(keys), np.int32)
    count = _native.unique_keys(keys, unique, inverse, None)
    return unique[:count], inverse


def counted_keys(keys: U64) -> tuple[U64, I32, U32]:
    """As `unique_keys`, and how often each distinct key occurs [U]."""
    unique, inverse = np.empty(len(keys), np.uint64), np.empty(len(keys), np.int32)
    counts = np.empty(len(keys), np.uint32)
    count = _native.unique_keys(keys, unique, inverse, counts)
    return unique[:count], inverse, counts[:count]


def select_slots(keys: U64, offsets: I64, slots: int, chosen: I32) -> tuple[U64, I64]:
    """The bags of the chosen slots only, in the order chosen."""
    rows = (len(offsets) - 1) // slots
    repeats = int(np.bincount(chosen).max(initial=1))  # a slot may be chosen more than once
    out_keys = np.empty(len(keys) * repeats, np.uint64)
    out_offsets = np.empty(rows * len(chosen) + 1, np.int64)
    count = _native.select_slots(keys, offsets, slots, chosen, out_keys, out_offsets)
    return out_keys[:count], out_offsets


def pool_forward(rows: F32, inverse: I32, offsets: I64, slots: int, chosen: I32, mean: bool, out: F32) -> None:
    """Per sample and chosen slot: the sum or mean of its embedding vectors; zeros if there are none.

    `out` [B, C*D] may be strided.
    """
    _native.pool_forward(rows, inverse, offsets, slots, chosen, mean, out)


def pool_backward(grad: F32, inverse: I32, offsets: I64, slots: int, chosen: I32, mean: bool, grad_rows: F32) -> None:
    """Add each pooled gradient [B, C*D] to the rows [U, D] that it was pooled from. `grad` may be strided."""
    _native.pool_backward(grad, inverse, offsets, slots, chosen, mean, grad_rows)


def sum_rows(parts: Sequence[KeyedRows]) -> KeyedRows:
    """Rows and counts of equal keys added up, in the order of the parts; keys in order of first appearance."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part.keys for part in parts])
    rows: F32 = np.concatenate([part.rows for part in parts])
    unique, inverse = unique_keys(keys)
    total = np.zeros((len(unique), rows.shape[1]), np.float32)
    pool_backward(rows, inverse, np.arange(len(keys) + 1, dtype=np.int64), 1, _ONE_SLOT, False, total)
    return KeyedRows(unique, total, _sum_counts(parts, inverse, len(unique)))


def _sum_counts(parts: Sequence[KeyedRows], inverse: I32, size: int) -> U32:
    """Counts of equal keys added up; they stop at the largest count."""
    counts = [np.ones(len(part), np.uint32) if part.counts is None else part.counts for part in parts]
    total = np.bincount(inverse, weights=np.concatenate(counts), minlength=size)  # exact: float64 has 53 bits
    return np.minimum(total, 2**32 - 1).astype(np.uint32)


def sum_blocks(parts: Sequence[F32]) -> F32:
    """Dense blocks added up, in the order of the parts."""
    total = parts[0]
    with flushed():
        for part in parts[1:]:
            total = total + part
    return total


def click_loss(logits: F32, labels: F32) -> tuple[float, F32, F32]:
    """Cross-entropy summed over the samples, each click's probability [B], and the loss's gradient, shaped like logits.

    Logits are [B, 2], a softmax pair (no click, click), or [B, 1], the click's own.
    """
    probabilities, gradient = np.empty(len(logits), np.float32), np.empty(logits.shape, np.float32)
    return _native.click_loss(logits, labels, probabilities, gradient), probabilities, gradient


def count_clicks(probabilities: F32, labels: F32, positive: I64, negative: I64) -> ClickSums:
    """Count each probability into bucket int(p * (buckets - 1)) of its label's histogram, in place."""
    return ClickSums(*_native.count_clicks(probabilities, labels, positive, negative))
