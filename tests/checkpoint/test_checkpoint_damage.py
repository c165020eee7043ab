"""Files that are damaged, swapped or hostile: an error with file and reason, never bad data."""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from checkpoint_builders import joined, make_rows, save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.errors import CheckpointError

SPARSE = "sparse/T/part-00000-000.parquet"
DENSE = "dense/model-00000.safetensors"
BUFFERS = "buffers.safetensors"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "c")
    return tmp_path / "c"


def replace_file(path: Path, name: str, data: bytes, **fields: int) -> None:
    """Put other bytes and make the manifest agree in size and checksum: what a forger would do."""
    (path / name).write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["path"] == name:
            entry.update(bytes=len(data), checksum=f"crc32:{zlib.crc32(data):08x}", **fields)
    (path / "manifest.json").write_text(json.dumps(manifest))


def load_all(checkpoint: Checkpoint) -> None:
    joined(checkpoint.sparse_rows("T"))
    checkpoint.dense()
    checkpoint.dense_cut("model")
    checkpoint.buffers()


@pytest.mark.parametrize("name", [SPARSE, DENSE, BUFFERS])
def test_missing_file(path: Path, name: str) -> None:
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=re.escape(f"{path / name}: the file is missing")):
        Checkpoint.open(path)


@pytest.mark.parametrize("name", [SPARSE, DENSE, BUFFERS])
def test_truncated_file(path: Path, name: str) -> None:
    size = (path / name).stat().st_size
    os.truncate(path / name, size - 1)
    with pytest.raises(CheckpointError, match=re.escape(f"{path / name}: {size - 1} bytes; the manifest says {size}")):
        Checkpoint.open(path)


@pytest.mark.parametrize("name", [SPARSE, DENSE, BUFFERS])
def test_file_cut_after_opening(path: Path, name: str) -> None:
    checkpoint = Checkpoint.open(path)
    os.truncate(path / name, (path / name).stat().st_size // 2)
    with pytest.raises(CheckpointError, match=re.escape(str(path / name))):
        load_all(checkpoint)


@pytest.mark.parametrize("name", [SPARSE, DENSE, BUFFERS])
def test_wrong_checksum(path: Path, name: str) -> None:
    data = bytearray((path / name).read_bytes())
    data[-1] ^= 1
    (path / name).write_bytes(data)
    checkpoint = Checkpoint.open(path)
    with pytest.raises(CheckpointError, match=re.escape(f"{path / name}: damaged: its checksum is crc32:")):
        checkpoint.verify()
    assert len(list(checkpoint.problems())) == 1


@pytest.mark.parametrize("name", [SPARSE, DENSE])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_never_load_as_other_numbers(path: Path, name: str, data: st.DataObject) -> None:
    """Without `verify`, too: Parquet pages and dense files carry sums that every load compares."""
    good = (path / name).read_bytes()
    damaged = bytearray(good)
    damaged[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (path / name).write_bytes(damaged)
    checkpoint = Checkpoint.open(path)
    try:
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.verify()
        try:
            rows = joined(checkpoint.sparse_rows("T"))
            checkpoint.dense_cut("model")
        except CheckpointError:
            return
        assert name == SPARSE  # a bit that Parquet does not read, in its footer's notes
        assert rows.values.tobytes() == joined([make_rows(50)]).values.tobytes()
    finally:
        (path / name).write_bytes(good)


def test_junk_instead_of_parquet(path: Path) -> None:
    replace_file(path, SPARSE, b"hello" * 100)
    with pytest.raises(CheckpointError, match=re.escape(f"{path / SPARSE}: damaged or unreadable Parquet file")):
        list(Checkpoint.open(path).sparse_rows("T"))


def parquet(**columns: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def floats(count: int, width: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(count * width, np.float32)), width)


KEYS, SEEN = pa.array(np.arange(4, dtype=np.uint64)), pa.array(np.ones(4, np.uint32))
FOREIGN = {
    "no columns": ({"a": KEYS}, 4, "it has the columns a uint64; the manifest says key uint64"),
    "other dim": (
        {"key": KEYS, "values": floats(4, 5), "state": floats(4, 6), "seen": SEEN, "touched": SEEN},
        4,
        "values float32[5]",
    ),
    "no state": (
        {"key": KEYS, "values": floats(4, 3), "seen": SEEN, "touched": SEEN},
        4,
        "the manifest says key uint64, seen uint32, state",
    ),
    "signed keys": (
        {"key": KEYS.cast("int64"), "values": floats(4, 3), "state": floats(4, 6), "seen": SEEN, "touched": SEEN},
        4,
        "it has the columns key int64",
    ),
    "row count": (
        {"key": KEYS, "values": floats(4, 3), "state": floats(4, 6), "seen": SEEN, "touched": SEEN},
        5,
        "it holds 4 rows; the manifest says 5",
    ),
    "null key": (
        {
            "key": pa.array([1, None, 3, 4], pa.uint64()),
            "values": floats(4, 3),
            "state": floats(4, 6),
            "seen": SEEN,
            "touched": SEEN,
        },
        4,
        "column key holds nulls",
    ),
    "null values": (
        {
            "key": KEYS,
            "values": pa.array([[1, 2, 3], None, [1, 2, 3], [1, 2, None]], pa.list_(pa.float32(), 3)),
            "state": floats(4, 6),
            "seen": SEEN,
            "touched": SEEN,
        },
        4,
        "column values holds nulls",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_parquet_of_another_kind(path: Path, case: str) -> None:
    columns, rows, reason = FOREIGN[case]
    replace_file(path, SPARSE, parquet(**columns), rows=rows)
    checkpoint = Checkpoint.open(path)
    with pytest.raises(CheckpointError, match=re.escape(reason)) as caught:
        list(checkpoint.sparse_rows("T"))
    assert str(path / SPARSE) in str(caught.value)
    with pytest.raises(CheckpointError, match=re.escape(reason)):
        checkpoint.verify()


def test_parquet_that_claims_far_more_than_its_rows_need(path: Path) -> None:
    count = 30_000
    keys, seen = pa.array(np.arange(count, dtype=np.uint64)), pa.array(np.ones(count, np.uint32))
    table = pa.table(
        {"key": keys, "values": floats(count, 3), "state": floats(count, 6), "seen": seen, "touched": seen}
    )
    sink = pa.BufferOutputStream()
    # A page for every row: mostly headers.
    pq.write_table(table, sink, use_dictionary=False, data_page_size=1, write_batch_size=1)
    replace_file(path, SPARSE, sink.getvalue().to_pybytes(), rows=count)
    with pytest.raises(CheckpointError, match=r"row group 0 claims \d+ bytes for 30000 rows"):
        list(Checkpoint.open(path).sparse_rows("T"))


def tensors(path: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(path / DENSE)


def test_safetensors_of_another_kind(path: Path) -> None:
    good = tensors(path)
    for change, reason in (
        ({"values/fc1.bias": None}, "tensor 'values/fc1.bias' is missing"),
        (
            {"values/surplus": np.zeros(1, np.float32)},
            "tensor 'values/surplus' is not in the manifest's layout",
        ),
        (
            {"values/fc1.bias": np.zeros((2, 2), np.float32)},
            "is float32 (2, 2); the manifest's layout says float32 (4,)",
        ),
        ({"values/fc1.bias": np.zeros(4, np.int32)}, "is int32 (4,)"),
    ):
        changed = {name: array for name, array in {**good, **change}.items() if array is not None}
        data = safetensors.numpy.save(changed)
        replace_file(path, DENSE, data)
        with pytest.raises(CheckpointError, match=re.escape(reason)):
            Checkpoint.open(path).dense()


@pytest.mark.parametrize(
    "head",
    [
        b"\xff" * 8,
        (10**9).to_bytes(8, "little"),
        (2).to_bytes(8, "little") + b"[]",
        (0).to_bytes(8, "little"),
    ],
)
def test_safetensors_with_a_hostile_header(path: Path, head: bytes) -> None:
    replace_file(path, DENSE, head + b"\0" * 1000)
    with pytest.raises(CheckpointError, match=re.escape(f"{path / DENSE}: damaged or unreadable safetensors file")):
        Checkpoint.open(path).dense()


def test_buffers_file_with_something_else(path: Path) -> None:
    replace_file(path, BUFFERS, safetensors.numpy.save({"weights/a": np.zeros(1)}))
    with pytest.raises(CheckpointError, match="tensor 'weights/a' is not a buffer's"):
        Checkpoint.open(path).buffers()


def test_link_out_of_the_directory(path: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (path / DENSE).rename(outside)
    (path / DENSE).symlink_to(outside)
    with pytest.raises(CheckpointError, match=re.escape(f"{path / DENSE}: it leads out of the checkpoint's directory")):
        Checkpoint.open(path)


def test_directory_in_place_of_a_file(path: Path) -> None:
    (path / DENSE).unlink()
    (path / DENSE).mkdir()
    with pytest.raises(CheckpointError, match="the file is missing"):
        Checkpoint.open(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(path: Path) -> None:
    path.chmod(0)
    try:
        with pytest.raises(CheckpointError, match=r"cannot read .*manifest.json.*Permission denied"):
            Checkpoint.open(path)
    finally:
        path.chmod(0o755)
