"""stable_hash: the hash of a feature's text, for data generators.

The same number in every process, on every machine (Python's own `hash` is salted per process), and the same as the
native readers compute from the same bytes.
"""

from __future__ import annotations

from sparsefleet.core.errors import DataError
from sparsefleet.core.xxh64 import xxh64


def stable_hash(value: str | bytes, seed: int = 0) -> int:
    """XXH64 of the bytes, or of the text's UTF-8, 0 to 2**64 - 1.

    A generator reads lines with errors="surrogateescape", so text stands for the bytes of the file, whatever they are,
    and the hash is that of these bytes. Other halves of surrogate pairs stand for nothing and are refused.
    """
    if isinstance(value, bytes):
        return xxh64(value, seed)
    try:
        return xxh64(value.encode("utf-8", "surrogateescape"), seed)
    except UnicodeEncodeError:
        raise DataError(f"stable_hash({value!r:.80}): not valid Unicode: it holds half of a surrogate pair") from None
