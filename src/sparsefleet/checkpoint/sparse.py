"""Rows of a sparse table as Parquet files. Memory: one row group, whatever the table's size.

Legend: U rows, D values a row, S floats of state a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparsefleet.checkpoint.checksum import SummedOutput
from sparsefleet.checkpoint.manifest import FileEntry, TableInfo
from sparsefleet.checkpoint.parse import name_problem
from sparsefleet.checkpoint.storage import AnyPath, Location, locate
from sparsefleet.checkpoint.storage.base import writing
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.table_rows import TableRows

FLOAT_BYTES = 4
GROUP_ROWS = 131_072
GROUP_BYTES = 64 << 20
FILE_ROWS = 1 << 24
FILE_BYTES = 4 << 30

KeepKeys = Callable[[U64], npt.NDArray[np.bool_]]
"""Which of these keys are wanted: a mask as long as the keys."""


def write_sparse_shard(
    directory: AnyPath,
    table: str,
    shard: int,
    rows: Iterable[TableRows],
    dim: int,
    state_width: int,
    *,
    packed: bool = False,
) -> list[FileEntry]:
    """Write one server's rows of one table into a draft's directory, in chunks of any size.

    With state_width=0 the rows' state, if any, is left out. `directory` is what the coordinator's draft says;
    the entries go back to it. The file that fails is removed; the draft is the coordinator's to abort. packed: a row's
    floats as bytes, which takes Parquet a quarter of the time, and other programs' understanding.
    """
    problem = name_problem(table)
    if problem:
        raise CheckpointError(f"table {table!r}: {problem}")
    folder, entries = locate(directory), list[FileEntry]()
    schema = _arrow_schema(dim, state_width, packed)
    groups = _row_groups(rows, dim, state_width, group_rows(dim, state_width), table, schema)
    per_file = max(1, min(FILE_ROWS, FILE_BYTES // _row_bytes(dim, state_width)))
    group = next(groups, None)
    while group is not None or not entries:  # an empty shard is an empty file: the table is there, its schema too
        path = f"sparse/{table}/part-{shard:05d}-{len(entries):03d}.parquet"
        count = 0
        with writing(folder / path), SummedOutput(folder / path) as output:
            writer = pq.ParquetWriter(
                output,
                schema,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
                write_page_checksum=True,
            )
            while group is not None and count < per_file:
                writer.write_batch(group, row_group_size=len(group))
                count += len(group)
                group = next(groups, None)
            writer.close()
        entries.append(FileEntry(path, output.bytes, output.checksum, "sparse", of=table, rows=count, shard=shard))
    return entries


def read_sparse_file(
    location: Location,
    entry: FileEntry,
    table: TableInfo,
    keep: KeepKeys | None = None,
    read_state: bool = True,
    has_touched: bool = True,
) -> Iterator[TableRows]:
    """The rows of one file, a row group or less at a time; those that `keep` wants.

    has_touched: files of version 1 have no such column; the rows then say 0.
    """
    width = table.state_width if read_state else 0
    columns = ["key", "values", *(["state"] if width else []), "seen", *(["touched"] if has_touched else [])]
    for batch in _batches(location, entry, table, columns, has_touched):
        try:
            rows = _from_batch(batch, table.dim, width)
        except ValueError as error:
            raise _damaged(location, error) from error
        if keep is not None:
            rows = _kept(rows, keep)
        if len(rows):
            yield rows


def group_rows(dim: int, state_width: int) -> int:
    return max(1, min(GROUP_ROWS, GROUP_BYTES // _row_bytes(dim, state_width)))


def _row_bytes(dim: int, state_width: int) -> int:
    return 16 + FLOAT_BYTES * (dim + state_width)


def _arrow_schema(dim: int, state_width: int, packed: bool) -> pa.Schema:
    def floats(width: int) -> pa.DataType:
        return (
            pa.binary(FLOAT_BYTES * width)
            if packed
            else pa.list_(pa.field("element", pa.float32(), nullable=False), width)
        )

    fields = [pa.field("key", pa.uint64(), nullable=False), pa.field("values", floats(dim), nullable=False)]
    if state_width:
        fields.append(pa.field("state", floats(state_width), nullable=False))
    return pa.schema([*fields, *(pa.field(name, pa.uint32(), nullable=False) for name in ("seen", "touched"))])


def _row_groups(
    chunks: Iterable[TableRows], dim: int, state_width: int, size: int, table: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Chunks of any size, as record batches of exactly `size` rows (the last one: what is left).

    A batch is good until the next one is asked for: they share one buffer, or are the chunk's own arrays.
    """
    buffer: TableRows | None = None
    filled = 0

    def batch(rows: TableRows, count: int) -> pa.RecordBatch:
        arrays: list[pa.Array] = [pa.array(rows.keys[:count])]
        for name, floats, width in (("values", rows.values, dim), ("state", rows.state, state_width)):
            if width:
                arrays.append(_floats_as(schema.field(name).type, floats[:count]))
        arrays += [pa.array(rows.seen[:count]), pa.array(rows.touched[:count])]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    for chunk in chunks:
        if chunk.dim != dim or (state_width and chunk.state_width != state_width):
            raise CheckpointError(
                f"table {table!r}: rows of {chunk.dim} values and {chunk.state_width} floats of state came; "
                f"the checkpoint is to hold {dim} and {state_width}"
            )
        if len(chunk) == size and not filled:  # as a table's scan gives them, but for the last: nothing to copy
            yield batch(chunk, size)
            continue
        if buffer is None:
            buffer = _empty_rows(size, dim, state_width)
        taken = 0
        while taken < len(chunk):
            count = min(size - filled, len(chunk) - taken)
            here, there = slice(filled, filled + count), slice(taken, taken + count)
            buffer.keys[here], buffer.values[here] = chunk.keys[there], chunk.values[there]
            buffer.seen[here], buffer.touched[here] = chunk.seen[there], chunk.touched[there]
            if state_width:
                buffer.state[here] = chunk.state[there]
            filled, taken = filled + count, taken + count
            if filled == size:
                yield batch(buffer, size)
                filled = 0
    if filled and buffer is not None:
        yield batch(buffer, filled)


def _floats_as(kind: pa.DataType, floats: F32) -> pa.Array:
    """[U, width] floats as a column of fixed-size lists, or of bytes."""
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(floats.reshape(-1)), type=kind)
    little = np.ascontiguousarray(floats, "<f4")
    return pa.Array.from_buffers(kind, len(floats), [None, pa.py_buffer(little)])


def _empty_rows(count: int, dim: int, state_width: int) -> TableRows:
    floats = np.empty((count, dim), np.float32), np.empty((count, state_width), np.float32)
    return TableRows(np.empty(count, np.uint64), *floats, np.empty(count, np.uint32), np.empty(count, np.uint32))


def _batches(
    location: Location, entry: FileEntry, table: TableInfo, columns: list[str], has_touched: bool
) -> Iterator[pa.RecordBatch]:
    try:
        with location.open_input() as source:
            file = pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
            _check_file(file, entry, table, has_touched)
            count = 0
            for batch in file.iter_batches(
                group_rows(table.dim, table.state_width), columns=columns, use_threads=False
            ):
                count += batch.num_rows
                yield batch
            # Page headers carry no sum: a damaged one can make Parquet pass over its rows in silence.
            if count != entry.rows:
                raise ValueError(f"{count} rows could be read; the manifest says {entry.rows}")
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        raise _damaged(location, error) from error


def _damaged(location: Location, error: BaseException) -> CheckpointError:
    return CheckpointError(f"{location}: damaged or unreadable Parquet file: {error}")


def _check_file(file: pq.ParquetFile, entry: FileEntry, table: TableInfo, has_touched: bool) -> None:
    """What the manifest says of the file, before anything of it is read."""
    found = {field.name: _type_name(field.type) for field in file.schema_arrow}
    packed = found.get("values", "").startswith("fixed_size_binary")

    def floats(width: int) -> str:
        return f"fixed_size_binary[{FLOAT_BYTES * width}]" if packed else f"float32[{width}]"

    wanted = {"key": "uint64", "values": floats(table.dim), "seen": "uint32"}
    if has_touched:
        wanted["touched"] = "uint32"
    if table.state_width:
        wanted["state"] = floats(table.state_width)
    if found != wanted:
        raise ValueError(f"it has the columns {_columns(found)}; the manifest says {_columns(wanted)}")
    if file.metadata.num_rows != entry.rows:
        raise ValueError(f"it holds {file.metadata.num_rows} rows; the manifest says {entry.rows}")
    row = _row_bytes(table.dim, table.state_width)
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        # Levels and page headers add little; a group that claims far more would make us allocate it.
        if (
            not 0 <= group.total_byte_size <= 2 * row * max(group.num_rows, 0) + (1 << 20)
            or group.num_rows > entry.rows
        ):
            raise ValueError(f"row group {index} claims {group.total_byte_size} bytes for {group.num_rows} rows")


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"{_type_name(kind.value_type)}[{kind.list_size}]"
    return "float32" if kind == pa.float32() else str(kind)


def _columns(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {types[name]}" for name in sorted(types))


def _from_batch(batch: pa.RecordBatch, dim: int, state_width: int) -> TableRows:
    count = batch.num_rows

    def floats(name: str, width: int) -> npt.NDArray[np.float32]:
        if not width:
            return np.empty((count, 0), np.float32)
        column = batch.column(name)
        if pa.types.is_fixed_size_binary(column.type):
            if column.null_count:
                raise ValueError(f"column {name} holds nulls")
            start = column.offset * width * FLOAT_BYTES
            packed = np.frombuffer(column.buffers()[1], "<f4", count * width, start) if count else np.empty(0, "<f4")
            return packed.reshape(count, width).astype(np.float32, copy=False)
        flat = column.flatten()
        if column.null_count or flat.null_count:
            raise ValueError(f"column {name} holds nulls")
        return flat.to_numpy(zero_copy_only=False).reshape(count, width)  # type: ignore[no-any-return]

    def integers(name: str) -> npt.NDArray[Any]:
        column = batch.column(name)
        if column.null_count:
            raise ValueError(f"column {name} holds nulls")
        return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    touched = "touched" in batch.schema.names
    return TableRows(
        integers("key"),
        floats("values", dim),
        floats("state", state_width),
        integers("seen"),
        integers("touched") if touched else np.zeros(count, np.uint32),
    )


def _kept(rows: TableRows, keep: KeepKeys) -> TableRows:
    mask = keep(rows.keys)
    if mask.dtype != np.bool_ or mask.shape != rows.keys.shape:
        raise TypeError(f"keep must give a mask of {len(rows)} truth values; it gave {mask.dtype} {mask.shape}")
    return rows if mask.all() else rows.select(mask)
