"""Hot keys of a table: those that training met most often, the most frequent first. FORMAT.md describes their file.

Requests ask for these again and again. Whoever fetches rows over a network fetches theirs together
(`serving/redis/FORMAT.md`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparsefleet.core.batch import U64
from sparsefleet.core.errors import BundleError
from sparsefleet.core.table_rows import U32, TableRows

HOT_KEYS = 16384
"""The most that are kept of a table."""
FEWEST_SEEN = 2
"""Met once is not often."""


def hot_path(table: str) -> str:
    return f"hot/{table}.keys"


class HotKeys:
    """Looks at all rows of a table as they go by."""

    def __init__(self, min_seen: int) -> None:
        """`min_seen`: as of the export; rows that training met fewer times are left out."""
        self._fewest = max(FEWEST_SEEN, min_seen)
        self._keys: U64 = np.empty(0, np.uint64)
        self._seen: U32 = np.empty(0, np.uint32)

    def watch(self, chunks: Iterator[TableRows]) -> Iterator[TableRows]:
        for rows in chunks:
            often = rows.seen >= self._fewest
            keys = np.concatenate([self._keys, rows.keys[often]])
            seen = np.concatenate([self._seen, rows.seen[often]])
            order = np.lexsort((keys, -seen.astype(np.int64)))[:HOT_KEYS]
            self._keys, self._seen = keys[order], seen[order]
            yield rows

    def to_bytes(self) -> bytes:
        return self._keys.astype("<u8").tobytes()


def parse_hot_keys(data: bytes, where: str) -> U64:
    if len(data) % 8 or len(data) > 8 * HOT_KEYS:
        raise BundleError(f"{where}: {len(data)} bytes are no list of at most {HOT_KEYS} keys")
    keys = np.frombuffer(data, "<u8").astype(np.uint64)
    if len(np.unique(keys)) != len(keys):
        raise BundleError(f"{where}: it names a key twice")
    return keys
