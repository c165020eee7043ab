"""What the parsers of records and their twins share: the plan of a record, and the arrays to fill.

Legend: B samples, S slots, n dense features, L labels, F fields (columns of the data that are used).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as made_by
from enum import IntEnum
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.kernels.text_types import U8, Columns, Reason

MAX_RECORD = 1 << 18
"""Default limit on the bytes of a line of CSV or JSON: there may be thousands of columns."""


class ValueKind(IntEnum):
    """What a value is, where the format tells; CSV has text alone. As in native/include/sparsefleet/records.h."""

    TEXT = 0
    WHOLE = 1
    FRACTION = 2
    TRUTH = 3


class Function(IntEnum):
    IDENTITY = 0
    LOG1P = 1
    LN2 = 2


class SlotOf(IntEnum):
    """What a slot's values are made of."""

    HASHED = 0
    KEYS = 1
    BUCKETS = 2
    HOUR = 3
    WEEKDAY = 4
    LN2 = 5
    CROSS = 6


class TimeFormat(IntEnum):
    AUTO = 0
    SECONDS = 1
    MILLISECONDS = 2
    YYMMDDHH = 3


@dataclass(frozen=True, slots=True)
class DensePlan:
    field: int
    minimum: float
    diff: float
    low: float
    high: float
    """Clipping; infinite: none."""
    function: int
    missing: float
    """NaN: 0.0 after normalisation."""


@dataclass(frozen=True, slots=True)
class SlotPlan:
    kind: int
    field: int
    """-1 for a cross."""
    prefix: bytes
    lower: bool
    split: int
    """A character; 0: none."""
    first: int
    length: int
    """0: no limit."""
    has_missing: bool
    missing: bytes
    buckets: list[float]
    cross: list[int]
    """Numbers of slots."""
    filtered: bool = False
    """Values whose hash is not in `kept` are too rare."""
    kept: U64 = made_by(default_factory=lambda: np.empty(0, np.uint64))
    """Hashes before folding."""
    has_rare: bool = False
    """`rare` stands for a rare value; without it, it is left out."""
    rare: bytes = b""


@dataclass(frozen=True, slots=True)
class LabelPlan:
    field: int
    """-1: there is none, so NaN."""
    where: int
    """Number of another label that must be 1; -1: always defined."""
    required: bool
    """A missing one is an error."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """How a record becomes a sample. `data/formats/record_plan.py` makes it of a schema."""

    fields: tuple[str, ...]
    """[F] names of the columns that are used, in the order in which a parser hands them over."""
    dense: tuple[DensePlan, ...]
    slots: tuple[SlotPlan, ...]
    labels: tuple[LabelPlan, ...]
    weight: int
    group: int
    time: int
    """Fields; -1: none."""
    time_format: int
    seed: int
    dim: int
    text_keys: bool
    """Decimal text may be a ready-made key: CSV, which has nothing but text."""

    def native(self) -> dict[str, Any]:
        """As the native parsers take it."""
        return {
            "fields": len(self.fields),
            "dense": [(d.field, d.minimum, d.diff, d.low, d.high, int(d.function), d.missing) for d in self.dense],
            "slots": [{name: getattr(slot, name) for name in SlotPlan.__slots__} for slot in self.slots],
            "labels": [(label.field, label.where, label.required) for label in self.labels],
            **{name: getattr(self, name) for name in ("weight", "group", "time", "time_format", "seed", "dim")},
            "text_keys": self.text_keys,
        }


@dataclass(slots=True)
class RecordColumns(Columns):
    """Arrays for records: `labels` is [capacity, L], and there may be more of them."""

    weights: F32 | None = None
    groups: U64 | None = None
    times: I64 | None = None

    @staticmethod
    def for_plan(plan: RecordPlan, capacity: int, key_capacity: int, *, numbers: bool = False) -> RecordColumns:
        offsets = np.empty(capacity * len(plan.slots) + 1, np.int64)
        offsets[0] = 0
        return RecordColumns(
            labels=np.empty((capacity, len(plan.labels)), np.float32),
            dense=np.empty((capacity, len(plan.dense)), np.float32),
            keys=np.empty(key_capacity, np.uint64),
            offsets=offsets,
            lines=np.empty(capacity, np.int64),
            ends=np.empty(capacity, np.int64),
            counts=np.zeros(len(Reason), np.int64),
            numbers=np.empty((capacity, len(plan.dense)), np.float64) if numbers else None,
            weights=np.empty(capacity, np.float32) if plan.weight >= 0 else None,
            groups=np.empty(capacity, np.uint64) if plan.group >= 0 else None,
            times=np.empty(capacity, np.int64) if plan.time >= 0 else None,
        )


@dataclass(frozen=True, slots=True)
class TextColumn:
    """One column of a table: texts, which of them belong to a row, and what they are."""

    data: U8
    """The texts, one after the other, and 16 bytes more."""
    ends: I64
    """[values + 1]"""
    bags: I64
    """[B + 1] a row's values; one without any: missing."""
    kinds: U8
    """[values] `ValueKind`"""
    lists: U8
    """[B] 1 where the row has a list: its texts are not split."""


@dataclass(frozen=True, slots=True)
class SvmPlaces:
    """Which field of the plan a part of a libsvm or libffm line goes to; -1: none."""

    triples: bool
    """libffm: field:feature:value."""
    label: int = -1
    group: int = -1
    features: int = -1
    """libsvm: the indices whose values are no numbers of their own."""
    numbers: Mapping[int, int] = made_by(default_factory=dict)
    """Values as numbers: by index, of libffm by field."""
    slots: Mapping[int, int] = made_by(default_factory=dict)
    """libffm: features by field."""
