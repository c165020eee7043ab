"""Kernels on requests: they parse JSON bodies into arrays, hash texts into keys, and write scores as JSON.

The readable twin of `PlainRequests` is `serving/samples.py`, which also reads requests that are not plain and words
the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.core.schema import Schema
from sparsefleet.kernels.levels import native as _native


def hash_column(values: Sequence[str], prefix: bytes, seed: int, dim: int, out: U64) -> bool:
    """Write the key of each text into `out`. False where a value is not text, or is text that UTF-8 cannot hold.

    Keeps the GIL, because it reads Python objects; it takes microseconds.
    """
    return bool(_native.hash_column(values, prefix, seed, dim, out))


def count_byte(data: bytes, byte: bytes) -> int:
    """Count one byte. `bytes.count` looks at one byte at a time, which takes 20 µs for a request of 100 samples."""
    return int(_native.count_byte(data, byte[0]))


def format_floats(values: F32) -> bytes | None:
    """A JSON list with, for each float32, the shortest text that reads back equal; None where one is not finite."""
    out = np.empty(20 * len(values) + 2, np.uint8)
    size = _native.format_floats(values, out)
    return None if size < 0 else out[:size].tobytes()


class PlainRequests:
    """Parses, without the GIL, the bodies that almost all clients send. Threads may share one."""

    def __init__(
        self, schema: Schema, *, max_samples: int, max_text: int, max_values: int, allow_missing: bool = False
    ) -> None:
        self._dense, self._slots = len(schema.dense), len(schema.slots)
        self._plan = (
            [*schema.dense_names, *schema.slot_names],
            schema.label,
            [float(feature.minimum) for feature in schema.dense],
            [float(feature.diff) for feature in schema.dense],
            [slot.prefix for slot in schema.slots],
            [schema.takes_keys(slot) for slot in schema.slots],
            schema.hash_seed,
            schema.sparse_feature_dim,
            *(max_samples, max_text, max_values, allow_missing),
        )
        # A parser has scratch space, so one thread uses it at a time. `pop` and `extend` of a list are atomic.
        self._free: list[Any] = []

    def parse(self, body: bytes) -> tuple[F32, U64, I64] | None:
        """Dense [B, n], keys and offsets of a plain request; None for any other request, right or wrong."""
        parser = self.lend()
        samples, count = parser.parse(body)
        found = None
        if samples >= 0:
            found = (
                np.empty((samples, self._dense), np.float32),
                np.empty(count, np.uint64),
                np.empty(samples * self._slots + 1, np.int64),
            )
            parser.take(*found)
        self.take_back(parser)
        return found

    def lend(self) -> Any:
        """A native parser, for a kernel that goes on from what it finds; for one thread, until it is taken back."""
        try:
            return self._free.pop()
        except IndexError:
            return _native.RequestParser(*self._plan)

    def take_back(self, *parsers: Any) -> None:
        self._free.extend(parsers)
