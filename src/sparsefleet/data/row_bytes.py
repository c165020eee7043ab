"""Batches as bytes, for trainers that send each other rows.

```
u64 B, u64 S, u64 n, u64 N    rows, slots, dense features, values
u64 keys [N]   u64 lengths [B*S]   f32 labels [B]   f32 dense [B, n]      little-endian, nothing between
```
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import DataError

Bytes = npt.NDArray[np.uint8]
_WORD = 8


def to_bytes(batch: Batch) -> Bytes:
    shape = np.array([len(batch), len(batch.slots), batch.dense.shape[1], len(batch.keys)], "<u8")
    parts = [
        shape,
        batch.keys.astype("<u8"),
        np.diff(batch.offsets).astype("<u8"),
        batch.labels.astype("<f4"),
        batch.dense.astype("<f4"),
    ]
    return np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])


def from_bytes(data: Bytes, slots: tuple[str, ...], dense_width: int) -> Batch:
    """The rows, or an error where the bytes are not rows of this shape."""
    if len(data) < 4 * _WORD:
        raise DataError(f"{len(data)} bytes are no rows: the head alone has {4 * _WORD}")
    rows, width, dense, values = (int(word) for word in data[: 4 * _WORD].view("<u8"))
    if (width, dense) != (len(slots), dense_width):
        raise DataError(
            f"rows of {width} slots and {dense} dense features came; here they have {len(slots)} and {dense_width}: "
            "all trainers must read the same schema"
        )
    if len(data) != _WORD * (4 + values + rows * width) + 4 * rows * (1 + dense):
        raise DataError(f"{len(data)} bytes do not hold {rows} rows of {values} values")
    at = 4 * _WORD
    keys = data[at : (at := at + _WORD * values)].view("<u8").astype(np.uint64)
    lengths = data[at : (at := at + _WORD * rows * width)].view("<u8")
    labels = data[at : (at := at + 4 * rows)].view("<f4").astype(np.float32)
    features = data[at:].view("<f4").astype(np.float32).reshape(rows, dense)
    offsets = np.zeros(rows * width + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return Batch(labels, features, keys, offsets, slots)
