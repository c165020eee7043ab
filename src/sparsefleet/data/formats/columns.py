"""Arrow columns into labels, dense values and keys; what does not fit is refused sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.core.errors import DataError
from sparsefleet.core.inputs import EITHER, RAW, READY
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.kernels.text import hash_strings, parse_decimal
from sparsefleet.kernels.text_types import Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    sample: int
    column: str
    reason: str


class Refusals:
    """Samples that do not fit, with the first reason found for each."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._found: dict[int, Refusal] = {}

    def add(self, bad: npt.NDArray[np.bool_], column: str, reason: str) -> None:
        for sample in np.flatnonzero(bad).tolist():
            self._found.setdefault(sample, Refusal(sample, column, reason))

    def good(self) -> I64:
        return np.delete(np.arange(self._samples), sorted(self._found))

    def first(self) -> Refusal:
        return self._found[min(self._found)]

    def counts(self) -> dict[str, int]:
        reasons = [refusal.reason for refusal in self._found.values()]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}


def _is_number(kind: pa.DataType) -> bool:
    """Decimal text too, as in the text formats."""
    types = pa.types
    if types.is_dictionary(kind):
        return _is_number(kind.value_type)
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    return bool(numbers or _is_text(kind))


def is_whole(kind: pa.DataType) -> bool:
    """Whole numbers: integers, and decimals without a fraction, as which databases write them."""
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_slot(kind: pa.DataType) -> bool:
    if _is_list(kind):
        kind = kind.value_type
    return bool(_is_text(kind) or is_whole(kind) or pa.types.is_null(kind))


def without_view(values: pa.Array) -> pa.Array:
    """Arrow has views of text, and few functions for them yet."""
    view = pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type)
    return values.cast(pa.large_binary()) if view else values


def slot_word(kind: pa.DataType, slot: Slot, schema: Schema) -> str:
    """Whether a slot's column holds values to hash (raw) or keys (ready); a column of nulls says nothing."""
    if _is_list(kind):
        kind = kind.value_type
    if is_whole(kind):
        return READY if schema.takes_keys(slot) else RAW
    return RAW if _is_text(kind) else EITHER


def check_types(found: pa.Schema, schema: Schema, labelled: bool, file: str) -> bool:
    """Refuse missing and mistyped columns. True if there is a label column to read."""
    has_label = schema.label in found.names
    needed = [*([schema.label] if labelled else []), *schema.dense_names, *schema.slot_names]
    missing = [name for name in needed if name not in found.names]
    if missing:
        hint = "; labelled=False reads samples without a label" if missing == [schema.label] else ""
        raise DataError(
            f"{file}: no column {', '.join(map(repr, missing))}; the file has {', '.join(found.names)}{hint}"
        )
    twice = [name for name in [schema.label, *needed] if found.names.count(name) > 1]
    if twice:
        raise DataError(f"{file}: there are two columns {twice[0]!r}; rename one of them")
    wrong = []
    for names, fits, allowed in (
        ([schema.label] if has_label else [], _is_number, "numbers, booleans, or decimal text"),
        (schema.dense_names, _is_number, "numbers, or decimal text,"),
        (schema.slot_names, _is_slot, "text, whole numbers, or lists of these"),
    ):
        for name in names:
            kind = found.field(name).type
            if not fits(kind) and not pa.types.is_null(kind):
                advice = " (ids with missing values: make it int64)" if _is_number(kind) else ""
                wrong.append(f"column {name!r} holds {kind} where {allowed} are needed{advice}")
    for slot in schema.slots:
        if slot.keys and slot_word(found.field(slot.name).type, slot, schema) == RAW:
            wrong.append(f"column {slot.name!r} holds text, and the schema says that its values are ready-made keys")
    if wrong:
        raise DataError(f"{file}: {'; '.join(wrong)}")
    return has_label


@dataclass(frozen=True, slots=True)
class _Numbers:
    values: npt.NDArray[np.float64]
    """0 where there is none."""
    null: npt.NDArray[np.bool_]
    bad: npt.NDArray[np.bool_]
    """Text that is no number."""


def _numbers(column: pa.Array) -> _Numbers:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_text(column.type):
        return _numbers_of_text(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    null = column.is_null().to_numpy(zero_copy_only=False)
    values = column.cast(pa.float64(), safe=False).fill_null(0.0)
    return _Numbers(values.to_numpy(zero_copy_only=False), null, np.zeros(len(column), np.bool_))


def _numbers_of_text(column: pa.Array) -> _Numbers:
    """By the parser of the text formats; empty text is missing, as there."""
    texts = [text or None for text in column.cast(pa.large_binary()).to_pylist()]
    found = [None if text is None else parse_decimal(text) for text in texts]
    null = np.array([text is None for text in texts], np.bool_)
    missing = np.array([number is None for number in found], np.bool_)
    values = np.array([0.0 if number is None else number for number in found], np.float64)
    return _Numbers(values, null, missing & ~null)


def label_values(column: pa.Array | None, name: str, samples: int, labelled: bool, refusals: Refusals) -> F32:
    if column is None:
        return np.full(samples, np.nan, np.float32)
    found = _numbers(column)
    values, null = found.values, found.null
    bad = (values != 0) & (values != 1) & ~null
    refusals.add(bad | found.bad, name, Reason.LABEL.text)
    if labelled:
        refusals.add(null, name, "label is missing")
    return np.where(null, np.nan, values).astype(np.float32)


def dense_values(column: pa.Array, feature: DenseFeature, refusals: Refusals) -> F32:
    found = _numbers(column)
    values = np.where(found.null | found.bad, feature.minimum, found.values)
    refusals.add(np.isnan(values) | found.bad, feature.name, Reason.NUMBER.text)
    with np.errstate(over="ignore", invalid="ignore"):
        normalised = ((values - feature.minimum) / feature.diff).astype(np.float32)
    refusals.add(np.isinf(normalised), feature.name, Reason.RANGE.text)
    return normalised


def slot_keys(column: pa.Array, slot: Slot, schema: Schema, refusals: Refusals) -> tuple[U64, I64]:
    """The ragged pair of one slot: keys and offsets [B+1]."""
    if _is_list(column.type):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        values = column.flatten()
        samples = np.repeat(np.arange(len(column)), lengths)
    else:
        values, samples = column, np.arange(len(column))
    if pa.types.is_dictionary(values.type) and values.dictionary.null_count:
        values = values.cast(values.type.value_type)  # a null may hide behind a valid index
    values = without_view(values)
    samples = samples[values.is_valid().to_numpy(zero_copy_only=False)]
    values = values.drop_null()
    counts = np.bincount(samples, minlength=len(column))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if pa.types.is_null(values.type):
        return np.empty(0, np.uint64), offsets
    if _is_text(values.type):
        return _hashed(values, slot, schema), offsets
    if not schema.takes_keys(slot):  # a whole number is its decimal text, as in every other format
        return _hashed(values.cast(pa.string()), slot, schema), offsets
    if pa.types.is_decimal(values.type):
        return _decimal_keys(values, samples, len(column), slot, schema, refusals), offsets
    if pa.types.is_signed_integer(values.type):
        numbers = values.to_numpy(zero_copy_only=False).astype(np.int64)
        negative = np.zeros(len(column), np.bool_)
        negative[samples[numbers < 0]] = True
        refusals.add(negative, slot.name, Reason.NEGATIVE_KEY.text)
    keys = values.to_numpy(zero_copy_only=False).astype(np.uint64)
    return (keys % np.uint64(schema.sparse_feature_dim) if schema.sparse_feature_dim else keys), offsets


def _decimal_keys(values: pa.Array, home: I64, samples: int, slot: Slot, schema: Schema, refusals: Refusals) -> U64:
    """Ready-made keys of a column of decimals without a fraction; `home`: the sample of each value."""
    numbers = [int(value) for value in values.to_pylist()]
    for reason, wrong in (
        (Reason.NEGATIVE_KEY, [number < 0 for number in numbers]),
        (Reason.KEY_OVERFLOW, [number >= 2**64 for number in numbers]),
    ):
        bad = np.zeros(samples, np.bool_)
        bad[home[np.array(wrong, np.bool_)]] = True
        refusals.add(bad, slot.name, reason.text)
    keys: U64 = np.array([number if 0 <= number < 2**64 else 0 for number in numbers], np.uint64)
    return keys % np.uint64(schema.sparse_feature_dim) if schema.sparse_feature_dim else keys


def _hashed(values: pa.Array, slot: Slot, schema: Schema) -> U64:
    """Keys of text without nulls."""
    if pa.types.is_dictionary(values.type):
        distinct = _hashed(values.dictionary, slot, schema)  # each value once, however often it occurs
        indices: I64 = values.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return distinct[indices]
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return hash_strings(raw, ends, slot.prefix, schema.hash_seed, schema.sparse_feature_dim)
