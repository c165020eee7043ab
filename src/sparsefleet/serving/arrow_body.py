"""An Arrow IPC stream as a request's body, for bulk: columns by name, as in Parquet files."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import DataError
from sparsefleet.core.inputs import RAW, Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.columns import Refusals, check_types, dense_values, slot_keys, slot_word
from sparsefleet.data.formats.record_plan import beside_features
from sparsefleet.data.formats.tables import TableAssembler
from sparsefleet.serving.samples import RequestError

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
MAX_ROWS = 5_000_000
_DICTIONARY, _RECORDS = 2, 3


def batch_of_stream(
    body: bytes,
    schema: Schema,
    inputs: Inputs | None = None,
    *,
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> Batch:
    """`allow_missing`: a column that is not there counts as nulls.

    `allow_extra`: one that the model does not have is left out of account.
    """
    try:
        table = _read(body)
        if allow_missing:
            table = _completed(table, schema)
        if allow_extra:
            known = _names(schema)
            table = table.select([place for place, name in enumerate(table.schema.names) if name in known])
        schema = schema if inputs is None else inputs.with_ready_keys(schema)
        if inputs is not None:
            _refuse_text(table.schema, inputs, schema)
        if schema.plain:
            check_types(table.schema, schema, False, "the Arrow stream")
        else:
            _check_there(table.schema, schema)
        surplus = [name for name in table.schema.names if name not in _names(schema)]
        if surplus:
            raise RequestError(f"the model has no field {surplus[0]!r}; it has {', '.join(_names(schema))}", surplus[0])
        if len(set(table.schema.names)) != len(table.schema.names):
            raise RequestError("the Arrow stream has two columns of one name")
        return _batch(table, schema)
    except DataError as error:
        raise RequestError(str(error)) from error
    except (pa.ArrowException, struct.error, ValueError, TypeError, KeyError, OverflowError, OSError) as error:
        raise RequestError(f"the body is not a readable Arrow stream: {str(error) or type(error).__name__}") from error


def _refuse_text(found: pa.Schema, inputs: Inputs, schema: Schema) -> None:
    slots = {slot.name: slot for slot in schema.slots}
    for name in inputs.ready_slots:
        if name in found.names and slot_word(found.field(name).type, slots[name], schema) == RAW:
            raise RequestError(
                f"field {name!r}: a column of text; the model was trained on {inputs.source()}, and takes feature keys "
                "here (whole numbers): send the keys that were made there of such values",
                name,
            )


def _names(schema: Schema) -> tuple[str, ...]:
    return (*schema.fields, *beside_features(schema))


def _completed(table: pa.Table, schema: Schema) -> pa.Table:
    for name in schema.fields:
        if name not in table.schema.names:
            table = table.append_column(name, pa.nulls(table.num_rows))
    return table


def _check_there(found: pa.Schema, schema: Schema) -> None:
    missing = [name for name in schema.fields if name not in found.names]
    if missing:
        raise RequestError(
            f"the Arrow stream has no column {missing[0]!r}; it has {', '.join(found.names)}", missing[0]
        )


def _read(body: bytes) -> pa.Table:
    _refuse_compressed(body)
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        batches, rows = [], 0
        for batch in reader:
            rows += batch.num_rows
            if rows > MAX_ROWS:
                raise RequestError(f"the Arrow stream has more than {MAX_ROWS} rows; send them in several requests")
            batch.validate(full=True)  # offsets of unknown origin
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=reader.schema)


def _batch(table: pa.Table, schema: Schema) -> Batch:
    rows = table.num_rows
    if not schema.plain:
        made = TableAssembler(schema, features_only=True).arrow(
            {name: _whole(table.column(name)) for name in schema.fields}, rows
        )
        bad = made.first_bad
        if bad is not None:
            name = made.column(bad)
            raise RequestError(f"row {bad}: field {name!r}: {made.reason(bad).text}", name, bad)
        return made.batch
    refusals = Refusals(rows)
    columns = {name: _whole(table.column(name)) for name in (*schema.dense_names, *schema.slot_names)}
    dense = [dense_values(columns[feature.name], feature, refusals) for feature in schema.dense]
    slots = {slot.name: slot_keys(columns[slot.name], slot, schema, refusals) for slot in schema.slots}
    if refusals.counts():
        first = refusals.first()
        raise RequestError(f"row {first.sample}: field {first.column!r}: {first.reason}", first.column, first.sample)
    stacked = np.stack(dense, axis=1) if dense else np.empty((rows, 0), np.float32)
    return Batch.from_slots(slots, dense=np.ascontiguousarray(stacked))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        return joined.chunk(0) if joined.num_chunks else pa.array([], column.type)
    return joined


def _refuse_compressed(body: bytes) -> None:
    """Refuse compressed streams: a few kilobytes can unfold to gigabytes, past the limit on the body."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        metadata = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", metadata, 0)[0]
        kind_at, header_at = _field(metadata, root, 1), _field(metadata, root, 2)
        if kind_at is None or header_at is None or metadata[kind_at] not in (_DICTIONARY, _RECORDS):
            continue
        header = header_at + struct.unpack_from("<I", metadata, header_at)[0]
        if metadata[kind_at] == _DICTIONARY:
            data_at = _field(metadata, header, 1)
            if data_at is None:
                continue
            header = data_at + struct.unpack_from("<I", metadata, data_at)[0]
        if _field(metadata, header, 3) is not None:
            raise RequestError(
                "the Arrow stream is compressed; send it uncompressed (IpcWriteOptions(compression=None))"
            )


def _field(metadata: bytes, table: int, index: int) -> int | None:
    """The position of a field of a flatbuffer table; None if the table does not have it."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    size = struct.unpack_from("<H", metadata, vtable)[0]
    if 4 + 2 * index >= size:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + 4 + 2 * index)[0]
    return table + offset if offset else None
