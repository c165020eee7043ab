"""What the text parsers and their twins share: reasons to refuse a sample, arrays to fill, what they report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64, U64

U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]

MAX_LINE = 65536
"""Default limit on the bytes of a line; a longer one is a damaged file, not a sample."""


class Reason(IntEnum):
    """Why a sample was refused. The numbers are shared with native/include/sparsefleet/text.h."""

    FINE = 0
    EMPTY_LINE = 1
    LONG_LINE = 2
    NUL = 3
    UTF8 = 4
    FIELD_COUNT = 5
    LABEL = 6
    NUMBER = 7
    RANGE = 8
    EMPTY_SLOT = 9
    WIDTH = 10
    MISSING_VALUES = 11
    SURPLUS_VALUES = 12
    KEY = 13
    NEGATIVE_KEY = 14
    KEY_OVERFLOW = 15
    LABEL_MISSING = 16
    QUOTE = 17
    OPEN_QUOTE = 18
    JSON = 19
    KEY_TWICE = 20
    VALUE_KIND = 21
    TIME = 22
    WEIGHT = 23
    TOO_MANY_VALUES = 24
    PAIR = 25
    NOT_ONE = 26

    @property
    def text(self) -> str:
        return _TEXT[self]


_TEXT = {
    Reason.FINE: "fine",
    Reason.EMPTY_LINE: "empty line",
    Reason.LONG_LINE: "over-long line",
    Reason.NUL: "NUL byte",
    Reason.UTF8: "invalid UTF-8",
    Reason.FIELD_COUNT: "wrong field count",
    Reason.LABEL: "label is not 0 or 1",
    Reason.NUMBER: "not a number",
    Reason.RANGE: "number too large for float32",
    Reason.EMPTY_SLOT: "zero values in a slot",
    Reason.WIDTH: "wrong number of values in a slot",
    Reason.MISSING_VALUES: "line ends too early",
    Reason.SURPLUS_VALUES: "surplus values after the last slot",
    Reason.KEY: "feature key is not a whole number",
    Reason.NEGATIVE_KEY: "negative feature key",
    Reason.KEY_OVERFLOW: "feature key above 64 bits",
    Reason.LABEL_MISSING: "label is missing",
    Reason.QUOTE: "text behind a closing quote",
    Reason.OPEN_QUOTE: "quote is not closed",
    Reason.JSON: "not a JSON object",
    Reason.KEY_TWICE: "field stands twice",
    Reason.VALUE_KIND: "value of a wrong kind",
    Reason.TIME: "not a time",
    Reason.WEIGHT: "weight is not a number, 0 or above",
    Reason.TOO_MANY_VALUES: "too many values in a sample",
    Reason.PAIR: "not a feature and its value",
    Reason.NOT_ONE: "value of a feature is not 1",
}


class Parsed(NamedTuple):
    """What a parser did with a block. Offsets count from the block's first byte."""

    filled: int
    """Samples filled, those before the call included."""
    consumed: int
    """Offset of the first byte not dealt with."""
    lines: int
    """Lines dealt with, refused ones included; the sample that stopped the parser is not."""
    open: bool
    """The block ends inside an over-long line that has been refused: say so with the next block."""
    full: bool
    """Stopped because the next row's keys do not fit into `keys`."""
    reason: int
    """Of the first refused sample, when not skipping; `Reason.FINE`: there is none."""
    column: int
    """From 1: its field (Criteo) or word (MultiSlot)."""
    line_begin: int
    begin: int
    end: int
    """What is wrong: the bytes begin..end."""
    found: int
    """Fields, words or values found, where their number is what is wrong."""


@dataclass(slots=True)
class Columns:
    """Arrays that a parser fills from number `filled` on, block after block."""

    labels: F32
    dense: F32
    """[capacity, n]"""
    keys: U64
    """Criteo: [capacity * S], one a slot. MultiSlot: as many as there is room for."""
    offsets: I64 | None
    """MultiSlot: [capacity * S + 1]; offsets[0] == 0."""
    lines: I64
    ends: I64
    counts: I64
    """[len(Reason)] refused samples, added to."""
    numbers: F64 | None = None
    """Criteo and records, where wanted: [capacity, n] numbers before they are scaled; NaN where missing."""
    filled: int = 0

    @staticmethod
    def allocate(
        capacity: int, dense: int, slots: int, key_capacity: int | None = None, *, numbers: bool = False
    ) -> Columns:
        """For Criteo, or with `key_capacity` for samples that differ in their number of keys."""
        offsets = None
        if key_capacity is not None:
            offsets = np.empty(capacity * slots + 1, np.int64)
            offsets[0] = 0
        return Columns(
            labels=np.empty(capacity, np.float32),
            dense=np.empty((capacity, dense), np.float32),
            keys=np.empty(capacity * slots if key_capacity is None else key_capacity, np.uint64),
            offsets=offsets,
            lines=np.empty(capacity, np.int64),
            ends=np.empty(capacity, np.int64),
            counts=np.zeros(len(Reason), np.int64),
            numbers=np.empty((capacity, dense), np.float64) if numbers else None,
        )


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a file, and what to do with it. Offsets count from the buffer's first byte."""

    data: U8
    begin: int
    """First byte to look at: the start of a line, or of the rest of one when `open`."""
    size: int
    stop: int
    """Lines that start here or later belong to somebody else."""
    final: bool
    """The file ends here: a last line without a line feed counts."""
    open: bool = False
    """The block starts inside an over-long line that has been refused already."""
    skip: bool = False
    """Count bad samples and go on, instead of stopping at the first."""
    line_base: int = 0
    """Lines of the unit before `begin`."""
    byte_base: int = 0
    """Where the buffer's first byte stands in the file."""


class SlotKind(IntEnum):
    """Kinds of MultiSlot slots. The numbers are shared with native/include/sparsefleet/text.h."""

    DENSE = 0
    SPARSE = 1
    LABEL = 2


class SlotEntry(NamedTuple):
    """One slot of a MultiSlot line."""

    kind: int
    first: int
    """First dense feature, or the slot's number in the schema."""
    width: int
    """Values in it; not used for sparse slots."""
