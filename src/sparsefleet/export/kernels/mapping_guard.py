"""Mapped files that may be cut short while they are read: SIGBUS becomes a mark.

See native/kernels/serving/mapping_guard.cpp.
This has no twin: what it does is about the process's signals, not about values.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from sparsefleet.export.kernels.bundle_rows import U8
from sparsefleet.kernels.levels import native as _native


class GuardedMap(mmap.mmap):
    """A read-only mapping. Pages that its file no longer has read as zeros, and `lost` says so ever after."""

    _number: int = -1

    def array(self) -> U8:
        """All of it; keeps the mapping alive as long as anybody holds a view."""
        data = np.frombuffer(self, np.uint8)
        self._number = _native.guard_mapping(data)
        return data

    @property
    def lost(self) -> bool:
        return self._number >= 0 and bool(_native.mapping_lost(self._number))

    def __del__(self, release: Any = _native.release_mapping) -> None:
        if self._number >= 0:
            release(self._number)
