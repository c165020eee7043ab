"""Hashing and parsing of samples: the native kernels. `reference/text.py` says in plain Python what they do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsefleet.core.batch import I64, U64
from sparsefleet.kernels.levels import native as _native
from sparsefleet.kernels.text_types import MAX_LINE, U8, Block, Columns, Parsed, SlotEntry


def xxh64(data: bytes, seed: int = 0) -> int:
    """XXH64 of the bytes: the same number in every process, on every machine."""
    return int(_native.xxh64(data, seed))


def feature_key(value: bytes, prefix: bytes, seed: int, dim: int) -> int:
    """The key of one raw value: XXH64(prefix + value), folded modulo `dim` unless that is 0."""
    key = xxh64(prefix + value, seed)
    return key % dim if dim else key


def parse_decimal(text: bytes) -> float | None:
    """A finite decimal number as every reader understands it, or None.

    Numbers too small for a double are refused like those too large.
    """
    value: float | None = _native.parse_decimal(text)
    return value


def hash_strings(data: U8, offsets: I64, prefix: bytes, seed: int, dim: int) -> U64:
    """Keys of the values data[offsets[i] : offsets[i+1]], as Arrow lays out strings."""
    keys = np.empty(len(offsets) - 1, np.uint64)
    _native.hash_strings(data, offsets, prefix, seed, dim, keys)
    return keys


def skip_lines(data: U8, begin: int, size: int, lines: int) -> tuple[int, int]:
    """Move over up to `lines` line feeds in data[begin:size]: how many there were, where they end."""
    seen, position = _native.skip_lines(data, begin, size, lines)
    return int(seen), int(position)


class CriteoParser:
    """label, n numbers, S categories, tab separated. Keeps scratch space: one per thread."""

    def __init__(
        self,
        minimum: Sequence[float],
        diff: Sequence[float],
        prefixes: Sequence[bytes],
        seed: int,
        dim: int,
        labelled: bool = True,
        max_line: int = MAX_LINE,
    ) -> None:
        self._native = _native.CriteoParser(list(minimum), list(diff), list(prefixes), seed, dim, labelled, max_line)

    def parse(self, block: Block, out: Columns) -> Parsed:
        """Fill `out` from `out.filled` on, until block or arrays end, or (unless skipping) a sample is bad."""
        b = block
        done = Parsed(
            *self._native.parse(
                *(b.data, b.begin, b.size, b.stop, b.final, b.open, b.skip),
                *(out.labels, out.dense, out.keys, out.lines, out.ends, out.counts, out.filled),
                *(b.line_base, b.byte_base, out.numbers),
            )
        )
        out.filled = done.filled
        return done


class MultiSlotParser:
    """Slots in the order of `layout`, each `n v1 … vn`, space separated. One per thread."""

    def __init__(self, layout: Sequence[SlotEntry], dense: int, slots: int, dim: int, max_line: int = MAX_LINE) -> None:
        self._native = _native.MultiSlotParser([tuple(entry) for entry in layout], dense, slots, dim, max_line)

    def parse(self, block: Block, out: Columns) -> Parsed:
        """As `CriteoParser.parse`; stops with `full` when a row's keys find no room in `out.keys`."""
        b = block
        done = Parsed(
            *self._native.parse(
                *(b.data, b.begin, b.size, b.stop, b.final, b.open, b.skip),
                *(out.labels, out.dense, out.keys, out.offsets, out.lines, out.ends, out.counts, out.filled),
                *(b.line_base, b.byte_base),
            )
        )
        out.filled = done.filled
        return done
