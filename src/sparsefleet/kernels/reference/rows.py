"""NumPy twins of `kernels.rows`. Denormals are zero in pooling and loss, and numbers where clicks are counted."""

from __future__ import annotations

import numpy as np

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.kernels.rows import CLICK_PARTS, I32, U32, ClickSums


def unique_keys(keys: U64) -> tuple[U64, I32]:
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # np.unique sorts by key; we keep the order of appearance
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return keys[first[order]], place[inverse.reshape(-1)]


def counted_keys(keys: U64) -> tuple[U64, I32, U32]:
    unique, inverse = unique_keys(keys)
    return unique, inverse, np.bincount(inverse, minlength=len(unique)).astype(np.uint32)


def select_slots(keys: U64, offsets: I64, slots: int, chosen: I32) -> tuple[U64, I64]:
    rows = (len(offsets) - 1) // slots
    bags = [keys[offsets[r * slots + c] : offsets[r * slots + c + 1]] for r in range(rows) for c in chosen]
    lengths = [len(bag) for bag in bags]
    out = np.concatenate(bags) if bags else np.empty(0, np.uint64)
    return out, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def pool_forward(rows: F32, inverse: I32, offsets: I64, slots: int, chosen: I32, mean: bool, out: F32) -> None:
    dim = rows.shape[1]
    for b in range(len(out)):
        for place, slot in enumerate(chosen):
            bag = inverse[offsets[b * slots + slot] : offsets[b * slots + slot + 1]]
            with flushed():
                pooled = rows[bag].sum(axis=0) / (max(len(bag), 1) if mean else 1)
            out[b, place * dim : (place + 1) * dim] = pooled


def pool_backward(grad: F32, inverse: I32, offsets: I64, slots: int, chosen: I32, mean: bool, grad_rows: F32) -> None:
    dim = grad_rows.shape[1]
    for b in range(len(grad)):
        for place, slot in enumerate(chosen):
            bag = inverse[offsets[b * slots + slot] : offsets[b * slots + slot + 1]]
            with flushed():
                share = grad[b, place * dim : (place + 1) * dim] / (max(len(bag), 1) if mean else 1)
                np.add.at(grad_rows, bag, share)


def click_loss(logits: F32, labels: F32) -> tuple[float, F32, F32]:
    with flushed():
        z = (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits[:, 0]).astype(np.float64)
        loss = float(np.sum(np.logaddexp(0.0, z) - labels * z))
        probabilities = np.exp(-np.logaddexp(0.0, -z)).astype(np.float32)
        delta = probabilities - labels
        gradient = np.stack([-delta, delta], 1) if logits.shape[1] == 2 else delta[:, None]
    return loss, probabilities, gradient


def count_clicks(probabilities: F32, labels: F32, positive: I64, negative: I64) -> ClickSums:
    good = (probabilities >= 0) & (probabilities <= 1) & ((labels == 0) | (labels == 1))
    p, click = probabilities[good].astype(np.float64), labels[good] == 1
    bucket = (p * (len(positive) - 1)).astype(np.int64)
    np.add.at(positive, bucket[click], 1)
    np.add.at(negative, bucket[~click], 1)
    q = np.clip(p, 1e-7, 1 - 1e-7)
    return ClickSums(
        log_loss=int(np.rint(-np.log(np.where(click, q, 1 - q)) * CLICK_PARTS).astype(np.int64).sum()),
        predicted=int(np.rint(p * CLICK_PARTS).astype(np.int64).sum()),
        clicks=int(click.sum()),
        correct=int(((p > 0.5) == click).sum()),
        bad=int((~good).sum()),
    )
