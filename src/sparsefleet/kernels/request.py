"""Kernels on requests: JSON bodies into arrays, texts into keys, scores into JSON.

The readable twin of `PlainRequests` is `serving/rows.py`, which also takes what is not plain and words the errors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.core.schema import Schema
from sparsefleet.kernels.levels import native as _native


def hash_column(values: Sequence[str], prefix: bytes, seed: int, dim: int, out: U64) -> bool:
    """Write the key of each text into `out`. False where one is no text, or none that UTF-8 can hold.

    Holds the GIL, for it reads Python objects; and is quick about it.
    """
    return bool(_native.hash_column(values, prefix, seed, dim, out))


def count_byte(data: bytes, byte: bytes) -> int:
    """How often one byte comes. `bytes.count` goes byte by byte, which is 20 µs for a request of 100 rows."""
    return int(_native.count_byte(data, byte[0]))


def format_floats(values: F32) -> bytes | None:
    """A JSON list of the shortest texts that give the float32s back; None where one is not finite."""
    out = np.empty(20 * len(values) + 2, np.uint8)
    size = _native.format_floats(values, out)
    return None if size < 0 else out[:size].tobytes()


class PlainRequests:
    """Parses the bodies that almost all clients send, without the GIL. Threads may share one."""

    def __init__(
        self, schema: Schema, *, max_rows: int, max_text: int, max_values: int, allow_missing: bool = False
    ) -> None:
        self._dense, self._slots = len(schema.dense), len(schema.slots)
        self._plan = (
            [*schema.dense_names, *schema.slot_names],
            schema.label,
            [float(feature.minimum) for feature in schema.dense],
            [float(feature.diff) for feature in schema.dense],
            [slot.prefix for slot in schema.slots],
            schema.hash_seed,
            schema.sparse_feature_dim,
            *(max_rows, max_text, max_values, allow_missing),
        )
        # A parser keeps scratch space, so it is one thread's at a time; taking and giving back are atomic.
        self._free: list[_native.RequestParser] = []

    def parse(self, body: bytes) -> tuple[F32, U64, I64] | None:
        """Dense [B, n], keys and offsets of a plain request; None where it is another, right or wrong."""
        try:
            parser = self._free.pop()
        except IndexError:
            parser = _native.RequestParser(*self._plan)
        rows, count = parser.parse(body)
        found = None
        if rows >= 0:
            found = (
                np.empty((rows, self._dense), np.float32),
                np.empty(count, np.uint64),
                np.empty(rows * self._slots + 1, np.int64),
            )
            parser.take(*found)
        self._free.append(parser)
        return found
