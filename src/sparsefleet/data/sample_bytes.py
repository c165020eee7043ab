"""Batches as bytes, for trainers that send each other samples.

```
u64 B, u64 S, u64 n, u64 N    samples, slots, dense features, values
u64 L                         labels of a sample; 0: one, and `labels` is [B], not [B, 1]
u64 given                     bit 0: weights, bit 1: groups, bit 2: times
u64 keys [N]   u64 lengths [B*S]   u64 groups [B]   i64 times [B]
f32 labels [B, L]   f32 dense [B, n]   f32 weights [B]               little-endian, nothing between
```
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import COLUMNS, Batch
from sparsefleet.core.errors import ConfigError, DataError

Bytes = npt.NDArray[np.uint8]
_HEAD = 6 * 8
_MOST_LABELS = 1 << 16
"""Of a sample. Where there are no samples, the number of bytes does not bound it."""
_OPTIONAL = ("weights", "groups", "times")
_ORDER = ("groups", "times", "labels", "dense", "weights")
"""Columns as they follow the keys: those of 8 bytes first, so that all lie where their type wants them."""


def to_bytes(batch: Batch) -> Bytes:
    columns = batch.columns()
    labels = 0 if batch.labels.ndim == 1 else batch.labels.shape[1]
    given = sum(1 << bit for bit, name in enumerate(_OPTIONAL) if name in columns)
    head = [len(batch), len(batch.slots), batch.dense.shape[1], len(batch.keys), labels, given]
    parts = [np.array(head, "<u8"), _little(batch.keys), _little(np.diff(batch.offsets))]
    parts += [_little(columns[name]) for name in _ORDER if name in columns]
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


def from_bytes(data: Bytes, slots: tuple[str, ...], dense_width: int) -> Batch:
    """The samples, or an error where the bytes are not samples of this shape."""
    if len(data) < _HEAD:
        raise DataError(f"{len(data)} bytes hold no samples: the head alone has {_HEAD}")
    samples, width, dense, values, labels, given = (int(word) for word in data[:_HEAD].view("<u8"))
    if (width, dense) != (len(slots), dense_width):
        raise DataError(
            f"samples of {width} slots and {dense} dense features came; here they have {len(slots)} and {dense_width}: "
            "all trainers must read the same schema"
        )
    if labels > _MOST_LABELS:
        raise DataError(f"samples of {labels} labels came; at most {_MOST_LABELS} are allowed")
    shapes: dict[str, tuple[int, ...]] = {
        "labels": (samples, labels) if labels else (samples,),
        "dense": (samples, dense),
        **{name: (samples,) for bit, name in enumerate(_OPTIONAL) if given >> bit & 1},
    }
    sizes = {name: samples * (shape[1] if shape[1:] else 1) * _kind(name).itemsize for name, shape in shapes.items()}
    if given >> len(_OPTIONAL) or len(data) != _HEAD + 8 * (values + samples * width) + sum(sizes.values()):
        raise DataError(f"{len(data)} bytes do not hold {samples} samples of {values} values")
    at = _HEAD
    keys = data[at : (at := at + 8 * values)].view("<u8").astype(np.uint64)
    lengths = data[at : (at := at + 8 * samples * width)].view("<u8")
    columns: dict[str, Any] = {}
    for name in _ORDER:
        if name in shapes:
            part = data[at : (at := at + sizes[name])].view(_kind(name))
            columns[name] = part.astype(COLUMNS[name][0]).reshape(shapes[name])
    offsets = np.zeros(samples * width + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    try:
        return Batch(keys=keys, offsets=offsets, slots=slots, **columns)
    except ConfigError as error:
        raise DataError(f"{len(data)} bytes do not hold {samples} samples: {error}") from None


def _kind(name: str) -> np.dtype[Any]:
    return np.dtype(COLUMNS[name][0]).newbyteorder("<")


def _little(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As it stands in the bytes; lengths become unsigned by it, which they are."""
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
