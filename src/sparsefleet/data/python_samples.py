"""Python objects to batches: dicts of arrays, single samples, lists of samples.

What a dict may hold, by name:

- the label (the schema's name for it): a number a sample; without it samples have no label;
- `dense`: the dense features as the network sees them, [n] for a sample, [B, n] for a batch; or each dense
  feature by its own name, raw, and normalised here as the schema says: a number, or decimal text as in a file
  (None, NaN or empty text: missing);
- each slot by its name: raw values (text, bytes, or whole numbers, which are hashed as their decimal text), or, where
  the schema marks the slot as ready-made keys, feature keys (whole numbers); folded modulo its `sparse_feature_dim`
  unless that is 0. A sample gives one value or a list; a slot that it leaves out has no values. A batch gives a list
  of lists, one value per sample, an array [B, k], or a pair (values, offsets [B+1]).

Anything with `__array__` (numpy arrays, torch tensors on the CPU) will do for an array. A Batch passes as it
is, once it is seen to fit the schema.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, I64, U64, Batch
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.inputs import EITHER, RAW, READY, Inputs
from sparsefleet.core.schema import Schema, Slot
from sparsefleet.kernels.text import hash_strings, parse_decimal, xxh64
from sparsefleet.kernels.text_types import Reason

DENSE = "dense"


def is_sample(sample: Mapping[str, Any], schema: Schema) -> bool:
    """Whether a dict is one sample, not a batch: its label is one number, or its dense features one list."""
    for name, dimensions in ((schema.label, 0), (DENSE, 1), *((name, 0) for name in schema.dense_names)):
        if sample.get(name) is not None:
            return bool(np.ndim(sample[name]) <= dimensions)
    return True


def words_of(item: Batch | Mapping[str, Any], schema: Schema) -> Inputs:
    """What of a sample or a batch the schema hashes and normalises, judged by its types."""
    if isinstance(item, Batch):  # nobody can tell any more: it may come from one of our own readers
        return Inputs.of_schema("python", schema, EITHER)
    if not schema.simple:
        return Inputs.raw("python", schema)
    ready = item.get(DENSE) is not None
    dense = {name: READY if ready else RAW if item.get(name) is not None else EITHER for name in schema.dense_names}
    words = {slot.name: _word(item.get(slot.name), schema.takes_keys(slot)) for slot in schema.slots}
    return Inputs("python", words, dense)


def _word(given: Any, takes_keys: bool) -> str:
    """Text is raw, a whole number is a key where the slot takes keys; of nothing nobody can tell."""
    number = READY if takes_keys else RAW
    while isinstance(given, list | tuple):
        given = next(
            (one for one in given if one is not None and not (isinstance(one, list | tuple) and not one)), None
        )
    if given is None:
        return EITHER
    if hasattr(given, "dtype"):
        kind = getattr(np.asarray(given).dtype, "kind", "O")
        return number if kind in "iu" else RAW if kind in "SU" else EITHER
    return RAW if isinstance(given, str | bytes) else number if isinstance(given, int) else EITHER


def batch_of(item: Batch | Mapping[str, Any], schema: Schema) -> Batch:
    """A batch from a dict of columns; a Batch is checked and passes as it is."""
    if isinstance(item, Batch):
        return _checked(item, schema)
    if not isinstance(item, Mapping):
        raise ConfigError(f"a batch must be a Batch or a dict of columns; got {type(item).__name__}: {item!r:.80}")
    _check_names(item, schema)
    if not schema.simple:
        return _assembled(_as_columns(item), schema)
    missing = [slot.name for slot in schema.slots if item.get(slot.name) is None]
    if missing:
        raise ConfigError(f"the batch has no column for slot {', '.join(missing)}")
    pairs = {slot.name: _ragged(slot, item[slot.name], schema) for slot in schema.slots}
    samples = {name: len(offsets) - 1 for name, (_, offsets) in pairs.items()}
    label = item.get(schema.label)
    labels = None if label is None else _floats(schema.label, label).reshape(-1)
    dense = _dense_columns(item, schema, next(iter(samples.values()), 0 if labels is None else len(labels)))
    sizes = {**samples, DENSE: len(dense), **({} if labels is None else {schema.label: len(labels)})}
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"the columns differ in their number of samples: {sizes}")
    return Batch.from_slots(pairs, labels=labels, dense=dense)


def batch_of_samples(samples: Sequence[Mapping[str, Any]], schema: Schema) -> Batch:
    """A batch from dicts of one sample each."""
    columns: dict[str, tuple[U64, I64]] = {}
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise ConfigError(f"a sample must be a dict; got {type(sample).__name__}: {sample!r:.80}")
        _check_names(sample, schema)
    if not schema.simple:
        names = dict.fromkeys(name for sample in samples for name in sample)
        return _assembled({name: [sample.get(name) for sample in samples] for name in names}, schema, len(samples))
    for slot in schema.slots:
        columns[slot.name] = _ragged_lists(slot, [_bag(sample.get(slot.name)) for sample in samples], schema)
    given = [sample.get(schema.label) for sample in samples]
    labels = _floats(schema.label, [np.nan if label is None else label for label in given])
    if labels.shape != (len(samples),):
        raise ConfigError(f"label {schema.label!r} of a sample must be one number; got shape {labels.shape[1:]}")
    if any(sample.get(DENSE) is not None for sample in samples):
        try:
            dense = _floats(DENSE, [sample[DENSE] for sample in samples])
        except KeyError:
            raise ConfigError("some samples have `dense` and others do not; give it in all or in none") from None
    else:
        raw = {name: [sample.get(name) for sample in samples] for name in schema.dense_names}
        dense = _dense_columns(raw, schema, len(samples))
    return _checked(Batch.from_slots(columns, labels=labels, dense=dense.reshape(len(samples), -1)), schema)


def _as_columns(item: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    return {name: given.tolist() if hasattr(given, "tolist") else list(given) for name, given in item.items()}


def _assembled(columns: Mapping[str, Sequence[Any]], schema: Schema, rows: int | None = None) -> Batch:
    """By the schema's transforms, through the code that reads files. Fields go by the names of their columns."""
    from sparsefleet.data.formats.record_plan import record_plan
    from sparsefleet.data.formats.tables import TableAssembler

    sizes = {name: len(column) for name, column in columns.items()}
    rows = next(iter(sizes.values()), 0) if rows is None else rows
    if any(size != rows for size in sizes.values()):
        raise ConfigError(f"the columns differ in their number of samples: {sizes}")
    plan = record_plan(schema, labelled=False, there=columns)
    given = {name: columns.get(name, [None] * rows) for name in plan.fields}
    for name in {feature.source for feature in schema.dense} & columns.keys():
        given[name] = [None if isinstance(value, float) and math.isnan(value) else value for value in given[name]]
    made = TableAssembler(schema, labelled=False, there=columns).objects(given, rows)
    bad = made.first_bad
    if bad is not None:
        name = made.column(bad)
        raise DataError(f"sample {bad}, column {name!r}: {made.reason(bad).text}: {given[name][bad]!r:.80}")
    return made.batch


def _checked(batch: Batch, schema: Schema) -> Batch:
    if batch.slots != schema.slot_names:
        raise ConfigError(f"the batch has slots {batch.slots}; the schema has {schema.slot_names}")
    if batch.dense.shape[1] != len(schema.dense):
        raise ConfigError(f"the batch has {batch.dense.shape[1]} dense features; the schema has {len(schema.dense)}")
    return batch


def _check_names(sample: Mapping[str, Any], schema: Schema) -> None:
    allowed = {schema.label, DENSE, *schema.dense_names, *schema.slot_names}
    if not schema.simple:
        _check_columns(sample, schema)
        return
    unknown = [str(name) for name in sample if name not in allowed]
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} is not in the schema; it has label {schema.label!r}, dense features "
            f"({DENSE!r} or {', '.join(schema.dense_names)}) and slots {', '.join(schema.slot_names)}"
        )


def _check_columns(sample: Mapping[str, Any], schema: Schema) -> None:
    more = [name for name in (schema.weight, schema.group, schema.time) if name is not None]
    allowed = dict.fromkeys([*schema.fields, *schema.labels, *more])
    unknown = [str(name) for name in sample if name not in allowed]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} is no column of the schema; there is {', '.join(allowed)}")


def _dense_columns(item: Mapping[str, Any], schema: Schema, samples: int) -> F32:
    if item.get(DENSE) is not None:
        return _dense_array(item[DENSE], schema)
    columns = np.zeros((samples, len(schema.dense)), np.float32)
    for index, feature in enumerate(schema.dense):
        given = item.get(feature.name)
        if given is None:
            continue
        raw = _doubles(feature.name, given).reshape(-1)
        if len(raw) != samples:
            raise ConfigError(f"dense feature {feature.name!r} has {len(raw)} values for {samples} samples")
        # In double, then rounded once, as the readers of files do.
        with np.errstate(over="ignore", invalid="ignore"):
            normalised = ((raw - feature.minimum) / feature.diff).astype(np.float32)
        normalised[np.isnan(raw)] = 0.0
        if not np.isfinite(normalised).all():
            value = raw[~np.isfinite(normalised)][0]
            raise DataError(f"dense feature {feature.name!r} has {value}: {Reason.RANGE.text}")
        columns[:, index] = normalised
    return columns


def _dense_array(given: Any, schema: Schema) -> F32:
    dense = _floats(DENSE, given)
    if dense.ndim != 2 or dense.shape[1] != len(schema.dense):
        raise ConfigError(f"{DENSE!r} must have shape [samples, {len(schema.dense)}]; got {list(dense.shape)}")
    return dense


def _doubles(name: str, given: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "OSU":
            return array.astype(np.float64)
        values = given if isinstance(given, list | tuple) else array.reshape(-1).tolist()
        return np.array([_double(value) for value in values], np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"column {name!r} is not made of numbers: {error}") from None


def _double(value: Any) -> float:
    if value is None or value == "":
        return math.nan
    if not isinstance(value, str | bytes):
        return float(value)
    text = value.encode(errors="replace") if isinstance(value, str) else value
    number = parse_decimal(text)
    if number is None:
        raise ValueError(f"{Reason.NUMBER.text}: {value!r:.80}")
    return number


def _floats(name: str, given: Any) -> F32:
    try:
        return np.asarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"column {name!r} is not made of numbers, or its samples differ in length: {error}") from None


def _bag(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    if isinstance(given, str | bytes) or np.ndim(given) == 0:
        return (given,)
    return given  # type: ignore[no-any-return]


def _ragged(slot: Slot, given: Any, schema: Schema) -> tuple[U64, I64]:
    if isinstance(given, tuple) and len(given) == 2 and np.ndim(given[0]) == 1 and np.ndim(given[1]) == 1:
        return _pair(slot, given[0], given[1], schema)
    if hasattr(given, "__array__"):
        array = np.asarray(given)
        if array.ndim not in (1, 2):
            raise ConfigError(f"slot {slot.name!r}: an array must be [samples] or [samples, values]; got {array.shape}")
        width = 1 if array.ndim == 1 else array.shape[1]
        return _keys(slot, array.reshape(-1), schema), np.arange(len(array) + 1, dtype=np.int64) * width
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise ConfigError(
            f"slot {slot.name!r} must be a list of lists, an array [samples, values] or a pair (keys, offsets); "
            f"got {type(given).__name__}"
        )
    return _ragged_lists(slot, [_bag(bag) for bag in given], schema)


def _ragged_lists(slot: Slot, bags: Sequence[Sequence[Any]], schema: Schema) -> tuple[U64, I64]:
    offsets = np.zeros(len(bags) + 1, np.int64)
    np.cumsum([len(bag) for bag in bags], out=offsets[1:])
    values = [value.item() if hasattr(value, "item") else value for value in chain.from_iterable(bags)]
    return _keys(slot, values, schema), offsets


def _pair(slot: Slot, keys: Any, offsets: Any, schema: Schema) -> tuple[U64, I64]:
    ends = np.asarray(offsets)
    if ends.dtype.kind not in "iu" or len(ends) < 1 or ends[0] != 0 or (np.diff(ends.astype(np.int64)) < 0).any():
        raise ConfigError(f"slot {slot.name!r}: offsets must be whole numbers that start at 0 and never decrease")
    if ends[-1] != len(keys):
        raise ConfigError(f"slot {slot.name!r}: offsets end at {ends[-1]}, but there are {len(keys)} keys")
    return _keys(slot, keys, schema), ends.astype(np.int64)


def _keys(slot: Slot, values: Any, schema: Schema) -> U64:
    """Text, bytes and whole numbers hashed, ready-made keys as they are; then folded."""
    keys = _unfolded_keys(slot, values, schema)
    return keys % np.uint64(schema.sparse_feature_dim) if schema.sparse_feature_dim else keys


def _unfolded_keys(slot: Slot, values: Any, schema: Schema) -> U64:
    if len(values) == 0:
        return np.empty(0, np.uint64)
    array = np.asarray(values) if not isinstance(values, list) else _array_of(values)
    if array.dtype.kind in "iu" and not schema.takes_keys(slot):
        texts = [b"%d" % value for value in array.tolist()]
        ends = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=ends[1:])
        return hash_strings(np.frombuffer(b"".join(texts), np.uint8), ends, slot.prefix, schema.hash_seed, 0)
    if array.dtype.kind == "u":
        return array.astype(np.uint64)
    if array.dtype.kind == "i":
        if int(array.min()) < 0:
            raise DataError(f"slot {slot.name!r} has the key {int(array.min())}; keys are 0 to 2**64 - 1")
        return array.astype(np.uint64)
    return np.fromiter(_each_key(slot, array.tolist(), schema), np.uint64, len(array))


def _array_of(values: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    # A list that mixes numbers and text would come out as all text: leave it as it is.
    if {type(value) for value in values} == {int}:
        with contextlib.suppress(OverflowError):  # beyond 63 bits: one by one
            return np.asarray(values, np.int64)
    return np.asarray(values, object)


def _each_key(slot: Slot, values: Iterable[Any], schema: Schema) -> Iterable[int]:
    takes_keys = schema.takes_keys(slot)
    for value in values:
        whole = isinstance(value, int) and not isinstance(value, bool)
        text = _utf8(slot, value) if isinstance(value, str | bytes) else None
        if text is not None and not slot.keys:
            yield xxh64(slot.prefix + text, schema.hash_seed)
        elif whole and not takes_keys:
            yield xxh64(slot.prefix + b"%d" % value, schema.hash_seed)
        elif whole and 0 <= value < 2**64:
            yield value
        else:
            keys = "feature keys (whole numbers, 0 to 2**64 - 1)"
            allowed = keys if slot.keys else f"{keys} or raw text" if takes_keys else "text or whole numbers"
            raise DataError(
                f"slot {slot.name!r} has {value!r:.80} of type {type(value).__name__}; its values are {allowed}"
            )


def _utf8(slot: Slot, value: str | bytes) -> bytes:
    """The bytes that are hashed. Files and requests can hold no text that is not Unicode, so it is refused here too."""
    if isinstance(value, bytes):
        return value
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"slot {slot.name!r} has {value!r:.80}, which is not valid Unicode: it holds half of a surrogate pair; "
            "where that stands for a byte that is not UTF-8 (errors='surrogateescape'), give bytes instead of text"
        ) from None
