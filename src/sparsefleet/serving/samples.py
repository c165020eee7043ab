"""Raw samples, as a request or a log line holds them, become a Batch with the same keys and numbers as in training.

A sample is an object {field: value}, or a list of values in the schema's order (dense features, then slots). It must
have every field of the schema and no other; it may have the label, which is ignored:

- a dense feature is a number or decimal text; null or empty text means that it is missing;
- a slot is text or a whole number (hashed, as its decimal text), a list of these, or null for no value. Empty text is
  a value.

A slot of ready-made keys (a data generator's) takes whole numbers, which are keys, and no text: hashed here, it would
be another key. By a schema of version 1 whole numbers are keys in every slot.

Clients know samples as "rows": the request's field is called so, and errors say "row 3".

The parser works column by column: the usual column (all text, or all numbers) is then one native call.
Legend: B samples, n dense features, S slots.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, I64, U64, Batch
from sparsefleet.core.errors import DataError, SparseFleetError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.json_fields import kind
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.record_plan import beside_features
from sparsefleet.kernels.text import feature_key, parse_decimal
from sparsefleet.serving.kernels.request import PlainRequests, count_byte, hash_column

NUMBERS = frozenset({int, float, type(None)})
TEXT = frozenset({str})
FLOAT32_MAX = float(np.finfo(np.float32).max)

MAX_TEXT = 65536
"""Characters of one value; as long as a line of a file may be."""
MAX_VALUES = 10_000
"""Values of one slot in one sample."""

BODY_FIELDS = frozenset({"rows", "context", "candidates"})
MAX_ID = 200
"""Characters of a request_id."""
FIRST_ID = re.compile(rb'\s*\{\s*"request_id"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.){0,400}"|-?(?:0|[1-9]\d{0,18}))\s*,')

NO_LABELS: F32 = np.full(4096, np.nan, np.float32)
"""A request has none. Shared by batches, so nobody may write to it."""
NO_LABELS.flags.writeable = False

Column = Sequence[Any]


class RequestError(SparseFleetError):
    """A request that the model cannot read: which field, what came, what is allowed. `row` is the sample's index."""

    def __init__(self, message: str, field: str | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.field, self.row = field, row


def _bad(field: str, row: int | None, reason: str) -> RequestError:
    where = "context" if row is None else f"row {row}"
    return RequestError(f"{where}: field {field!r}: {reason}", field, row)


class SampleParser:
    """Makes batches of samples by one schema. It keeps nothing of a request: threads may share it."""

    def __init__(
        self,
        schema: Schema,
        *,
        max_rows: int = 10_000,
        allow_missing: bool = False,
        inputs: Inputs | None = None,
        allow_extra: bool = False,
    ) -> None:
        """`allow_missing`: a field that a sample leaves out counts as null. `inputs`: what the model was trained on.

        `allow_extra`: a field that the model does not have is left out of account.
        """
        schema = schema if inputs is None else inputs.with_ready_keys(schema)
        schema.require_measured()
        marked = [slot.name for slot in schema.slots if slot.keys]
        self._ready = frozenset(marked if inputs is None else [*marked, *inputs.ready_slots])
        self._trained_on = "ready-made keys" if inputs is None else inputs.source()
        self.schema, self.max_rows, self.allow_missing = schema, max_rows, allow_missing
        self.allow_extra = allow_extra
        self._slots = schema.slot_names
        self._plain = None
        if schema.plain and schema.labels == (schema.label,):
            self._plain = PlainRequests(
                schema, max_samples=max_rows, max_text=MAX_TEXT, max_values=MAX_VALUES, allow_missing=allow_missing
            )
        self._names = schema.fields
        self._ignored = frozenset(beside_features(schema)) - frozenset(self._names)
        self._place = {name: index for index, name in enumerate(self._names)}
        self._minimum = np.array([[f.minimum] for f in schema.dense], np.float64).reshape(-1, 1)
        self._diff = np.array([[f.diff] for f in schema.dense], np.float64).reshape(-1, 1)

    @property
    def plain(self) -> PlainRequests | None:
        """What parses plain bodies natively; None where more has to be looked at than it looks at."""
        return None if self._ready else self._plain

    def body(self, body: bytes) -> Batch:
        """Parse a request's JSON text: in one native call where it is plain, else in Python, which words the errors."""
        plain = self._natively(body)
        return self.request(parse_json(body)) if plain is None else plain

    def identified(self, body: bytes) -> tuple[str | int | None, Batch]:
        """The same of a body that may hold a `request_id`."""
        first = FIRST_ID.match(body)
        # What the native parser takes has nothing beside its rows, so nobody need look for an id there.
        plain = self._natively(body if first is None else b"{" + body[first.end() :])
        if plain is not None:
            return None if first is None else _request_id(parse_json(first[1])), plain
        request_id, text = split_request_id(body)
        return request_id, self.body(text)

    def _natively(self, body: bytes) -> Batch | None:
        found = None if self._plain is None else self._plain.parse(body)
        if found is None or (self._ready and not self._no_text(body, len(found[0]))):
            return None
        dense, keys, offsets = found
        count = len(dense)
        labels = NO_LABELS[:count] if count <= len(NO_LABELS) else np.full(count, np.nan, np.float32)
        return Batch.trusted(labels, dense, keys, offsets, self._slots)

    def _no_text(self, body: bytes, samples: int) -> bool:
        """Whether a plain body surely holds no text but the names of fields: the native parser would hash it."""
        quotes = count_byte(body, b'"')
        return quotes == 2 or (not self.allow_missing and quotes == 2 + 2 * samples * len(self._names))

    def request(self, document: Any) -> Batch:
        """The body of a request: {"rows": […]}, or {"context": {…}, "candidates": […]}."""
        if not isinstance(document, dict):
            raise RequestError(f"the body must be a JSON object; got {kind(document)}")
        if self.allow_extra:
            document = {name: value for name, value in document.items() if name in BODY_FIELDS}
        if document.keys() == {"rows"}:
            return self.samples(document["rows"])
        if document.keys() == {"context", "candidates"}:
            return self.candidates(document["context"], document["candidates"])
        found = ", ".join(f"{name!r:.60}" for name in list(document)[:5]) or "none"
        raise RequestError(f'the body must have the field "rows", or "context" and "candidates"; it has {found}')

    def samples(self, samples: Any) -> Batch:
        self._check_count(samples, "rows")
        columns = dict(zip(range(len(self._names)), self._columns(samples, self._names), strict=True))
        return self._batch(len(samples), columns, {})

    def candidates(self, context: Any, candidates: Any) -> Batch:
        """Samples that share the fields of one context: each field stands in the context or in every candidate."""
        if not isinstance(context, dict):
            raise RequestError(f'"context" must be an object {{field: value}}; got {kind(context)}', "context")
        self._check_count(candidates, "candidates")
        shared = {}
        for name, value in context.items():
            if name in self._place:
                shared[self._place[name]] = value
            elif name not in self._ignored and not self.allow_extra:
                raise _bad(name, None, f"the model has no such field; it has {', '.join(self._names)}")
        names = tuple(name for name in self._names if name not in context)
        if candidates and isinstance(candidates[0], list):
            raise RequestError('"candidates" must be objects {field: value}; lists are for "rows"', "candidates", 0)
        found = self._columns(candidates, names, context)
        columns = dict(zip((self._place[name] for name in names), found, strict=True))
        return self._batch(len(candidates), columns, shared)

    def _check_count(self, samples: Any, field: str) -> None:
        if not isinstance(samples, list | tuple):
            raise RequestError(f'"{field}" must be a list of rows; got {kind(samples)}', field)
        if len(samples) > self.max_rows:
            raise RequestError(f'"{field}" has {len(samples)} rows; at most {self.max_rows} are allowed', field)

    # -- fields out of samples ---------------------------------------------------------------------------------------

    def _columns(
        self, samples: Sequence[Any], names: tuple[str, ...], context: Mapping[str, Any] | None = None
    ) -> list[Column]:
        if not samples:
            return [()] * len(names)
        if isinstance(samples[0], list | tuple):
            for index, sample in enumerate(samples):
                if not isinstance(sample, list | tuple) or len(sample) != len(names):
                    got = f"{len(sample)} values" if isinstance(sample, list | tuple) else kind(sample)
                    raise RequestError(
                        f"row {index}: {got}; a row given as a list has {len(names)} values: {', '.join(names)}",
                        row=index,
                    )
            return list(zip(*samples, strict=True))
        if len(names) > 1:
            get = itemgetter(*names)
            try:
                found = [get(sample) for sample in samples]
            except (KeyError, TypeError, IndexError, AttributeError):
                found = self._one_by_one(samples, names, context)
            else:
                # Every field is there, so a sample of another length has a field too many.
                if any(len(sample) != len(names) for sample in samples):
                    self._check_surplus(samples, names, context)
            return list(zip(*found, strict=True))
        found = self._one_by_one(samples, names, context)
        return list(zip(*found, strict=True)) if names else []

    def _one_by_one(
        self, samples: Sequence[Any], names: tuple[str, ...], context: Mapping[str, Any] | None
    ) -> list[tuple[Any, ...]]:
        """The same, one sample at a time: the error names the missing field and its sample."""
        self._check_surplus(samples, names, context)
        if not self.allow_missing:
            for index, sample in enumerate(samples):
                for name in names:
                    if name not in sample:
                        hint = (
                            "null stands for no value" if context is None else "it stands neither here nor in context"
                        )
                        raise _bad(name, index, f"it is missing; {hint}")
        return [tuple(sample.get(name) for name in names) for sample in samples]

    def _check_surplus(self, samples: Sequence[Any], names: tuple[str, ...], context: Mapping[str, Any] | None) -> None:
        known = {*names, *self._ignored}
        for index, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                raise RequestError(
                    f"row {index}: a row must be an object {{field: value}}; got {kind(sample)}", row=index
                )
            if sample.keys() <= known:
                continue
            for name in sample:
                if context is not None and name in context and name not in known:
                    raise _bad(str(name), index, "it stands in the context too; give it in one place")
            if self.allow_extra:
                continue
            name = next(name for name in sample if name not in known)
            raise _bad(str(name), index, f"the model has no such field; it has {', '.join(self._names)}")

    # -- columns into arrays -----------------------------------------------------------------------------------------

    def _batch(self, count: int, columns: Mapping[int, Column], shared: Mapping[int, Any]) -> Batch:
        schema = self.schema
        if not schema.plain:
            return self._assembled(count, columns, shared)
        width, slots = len(schema.dense), len(schema.slots)
        raw_nB = np.empty((width, count))
        keys_SB = np.empty((slots, count), np.uint64)
        bags: dict[int, tuple[U64, I64]] = {}
        """Slots with other than one value in some sample: keys and lengths."""
        for place, value in shared.items():
            if place < width:
                raw_nB[place] = self._numbers(place, (value,), context=True)[0]
            else:
                one, length = self._bags(place - width, (value,), context=True)
                if len(one) == 1:
                    keys_SB[place - width] = one[0]
                else:
                    bags[place - width] = np.tile(one, count), np.repeat(length, count)
        for place, column in columns.items():
            if place < width:
                raw_nB[place] = self._numbers(place, column)
            elif not self._hashed(place - width, column, keys_SB[place - width]):
                bags[place - width] = self._bags(place - width, column)
        return Batch(
            labels=np.full(count, np.nan, np.float32),
            dense=self._normalised(raw_nB),
            **self._ragged(keys_SB, bags),
            slots=schema.slot_names,
        )

    def _assembled(self, count: int, columns: Mapping[int, Column], shared: Mapping[int, Any]) -> Batch:
        """By the schema's transforms, through the code that reads files."""
        from sparsefleet.data.formats.tables import TableAssembler  # with Arrow, which plain schemas do without

        table = {self._names[place]: column for place, column in columns.items()}
        table |= {self._names[place]: (value,) * count for place, value in shared.items()}
        for name, column in table.items():
            for row, value in enumerate(column):
                _check_value(value, name, row)
        try:
            made = TableAssembler(self.schema, features_only=True).objects(table, count)
        except DataError as error:
            raise RequestError(str(error)) from error
        bad = made.first_bad
        if bad is not None:
            name = made.column(bad)
            raise _bad(name, bad, f"{made.reason(bad).text}: {_shown(table[name][bad])}")
        return made.batch

    def _normalised(self, raw_nB: np.ndarray[Any, np.dtype[np.float64]]) -> F32:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (raw_nB - self._minimum) / self._diff
        missing = np.isnan(raw_nB)
        scaled[missing] = 0.0
        too_large = np.argwhere(~(np.abs(scaled) <= FLOAT32_MAX))
        if len(too_large):
            place, row = too_large[0].tolist()
            raise _bad(self._names[place], row, "number too large for float32")
        return np.ascontiguousarray(scaled.T, np.float32)

    def _numbers(self, place: int, column: Column, context: bool = False) -> Sequence[float] | F32:
        if NUMBERS.issuperset(map(type, column)):
            try:
                return np.array(column, np.float64)  # None becomes NaN: missing
            except OverflowError:
                pass
        return [self._number(place, value, None if context else row) for row, value in enumerate(column)]

    def _number(self, place: int, value: Any, row: int | None) -> float:
        if value is None or value == "":
            return math.nan
        if isinstance(value, str) and value.isascii() and (number := parse_decimal(value.encode())) is not None:
            return number
        if isinstance(value, int | float | np.number) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise _bad(self._names[place], row, "number too large for float32") from None
        raise _bad(self._names[place], row, f"{_shown(value)}; allowed is a number, or null where it is missing")

    def _hashed(self, slot: int, column: Column, out: U64) -> bool:
        """Hash the usual column, one text a sample. Any other column: False, and nothing is written."""
        schema = self.schema
        return (
            schema.slots[slot].name not in self._ready
            and TEXT.issuperset(map(type, column))
            and (not column or len(max(column, key=len)) <= MAX_TEXT)
            and hash_column(column, schema.slots[slot].prefix, schema.hash_seed, schema.sparse_feature_dim, out)
        )

    def _bags(self, slot: int, column: Column, context: bool = False) -> tuple[U64, I64]:
        """Keys and lengths of any column."""
        keys: list[int] = []
        lengths = np.empty(len(column), np.int64)
        name, prefix = self.schema.slots[slot].name, self.schema.slots[slot].prefix
        takes_keys = self.schema.takes_keys(self.schema.slots[slot])
        for row, value in enumerate(column):
            values = value if isinstance(value, list | tuple) else () if value is None else (value,)
            if len(values) > MAX_VALUES:
                raise _bad(name, None if context else row, f"{len(values)} values; at most {MAX_VALUES} are allowed")
            lengths[row] = len(values)
            keys += [self._key(one, name, prefix, None if context else row, takes_keys) for one in values]
        return np.array(keys, np.uint64), lengths

    def _key(self, value: Any, name: str, prefix: bytes, row: int | None, takes_keys: bool) -> int:
        schema = self.schema
        if name in self._ready and isinstance(value, str | bytes):
            raise _bad(
                name,
                row,
                f"{_shown(value)}; the model was trained on {self._trained_on}, and takes feature keys here (whole "
                "numbers): send the keys that were made there of such values",
            )
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                raise _bad(name, row, f"text of {len(value)} characters; at most {MAX_TEXT} are allowed")
            try:
                raw = value.encode()
            except UnicodeEncodeError:
                raise _bad(name, row, f"{_shown(value)} is not valid Unicode: half of a surrogate pair") from None
            return feature_key(raw, prefix, schema.hash_seed, schema.sparse_feature_dim)
        if isinstance(value, bytes):
            return feature_key(value, prefix, schema.hash_seed, schema.sparse_feature_dim)
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            if not takes_keys:
                return feature_key(b"%d" % int(value), prefix, schema.hash_seed, schema.sparse_feature_dim)
            if not 0 <= value < 2**64:
                raise _bad(name, row, f"{_shown(value)}; a whole number is a feature key, 0 to 2**64 - 1")
            return int(value) % schema.sparse_feature_dim if schema.sparse_feature_dim else int(value)
        raise _bad(
            name,
            row,
            f"{_shown(value)}; allowed is text, a whole number, a list of these, or null for no value",
        )

    def _ragged(self, keys_SB: U64, bags: Mapping[int, tuple[U64, I64]]) -> dict[str, Any]:
        slots, count = keys_SB.shape
        if not bags:
            return {"keys": keys_SB.T.reshape(-1), "offsets": np.arange(count * slots + 1, dtype=np.int64)}
        lengths_BS = np.ones((count, slots), np.int64)
        for slot, (_, lengths) in bags.items():
            lengths_BS[:, slot] = lengths
        offsets = np.zeros(count * slots + 1, np.int64)
        np.cumsum(lengths_BS.reshape(-1), out=offsets[1:])
        keys = np.empty(int(offsets[-1]), np.uint64)
        starts_BS = offsets[:-1].reshape(count, slots)
        for slot in range(slots):
            if slot not in bags:
                keys[starts_BS[:, slot]] = keys_SB[slot]
                continue
            found, lengths = bags[slot]
            ends = np.cumsum(lengths)
            keys[
                np.arange(len(found)) - np.repeat(ends - lengths, lengths) + np.repeat(starts_BS[:, slot], lengths)
            ] = found
        return {"keys": keys, "offsets": offsets}


def _check_value(value: Any, name: str, row: int) -> None:
    if isinstance(value, list | tuple):
        if len(value) > MAX_VALUES:
            raise _bad(name, row, f"{len(value)} values; at most {MAX_VALUES} are allowed")
        for one in value:
            if isinstance(one, list | tuple):
                raise _bad(name, row, f"a list within a list, {_shown(one)}; a list holds text and numbers")
            _check_value(one, name, row)
    elif isinstance(value, dict):
        raise _bad(name, row, f"{_shown(value)}; allowed are text, numbers, null, and lists of these")
    elif isinstance(value, str) and len(value) > MAX_TEXT:
        raise _bad(name, row, f"text of {len(value)} characters; at most {MAX_TEXT} are allowed")


def split_request_id(body: bytes) -> tuple[str | int | None, bytes]:
    """The `request_id` of a body of JSON, which the answer repeats, and the body without it.

    The native parser knows nothing of it, so one that stands first is cut off; one that stands elsewhere costs a pass
    through Python's own parser.
    """
    if b'"request_id"' not in body:
        return None, body
    first = FIRST_ID.match(body)
    if first is not None and b'"request_id"' not in body[first.end() :]:
        return _request_id(parse_json(first[1])), b"{" + body[first.end() :]
    document = parse_json(body)
    if not isinstance(document, dict) or "request_id" not in document:
        return None, body
    found = _request_id(document.pop("request_id"))
    return found, json.dumps(document).encode()


def _request_id(value: Any) -> str | int:
    if isinstance(value, str) and len(value) <= MAX_ID:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    raise RequestError(
        f"{_shown(value)}; a request_id is text of at most {MAX_ID} characters, or a whole number", "request_id"
    )


def parse_json(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number; send null for a missing one")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int too long to print
        return "a huge number"
    return f"{kind(value)} {text if len(text) <= 60 else text[:57] + '...'}"
