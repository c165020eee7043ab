"""What is saved comes back, bit for bit, on any number of servers, and opens in other tools."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from checkpoint_builders import (
    LAYOUT,
    SIZE,
    Rule,
    Spec,
    assert_same_rows,
    assert_whole,
    chunked,
    dense_values,
    joined,
    make_rows,
    save,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsefleet.checkpoint import (
    BlockInfo,
    Checkpoint,
    DensePiece,
    Manifest,
    TableInfo,
    begin,
    commit,
    file_entry,
    sparse,
    write_buffers,
    write_dense,
    write_sparse_shard,
)
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.table_rows import TableRows, touched_after


@st.composite
def tables(draw: st.DrawFn) -> TableRows:
    """Any dim, any width of state, none to many rows, every key and every bit pattern of floats."""
    count, dim, width = draw(st.integers(0, 40)), draw(st.integers(1, 9)), draw(st.integers(0, 9))
    keys = draw(hnp.arrays(np.uint64, count, unique=True, elements=st.integers(0, 2**64 - 1)))
    bits = hnp.arrays(np.uint32, (count, dim + width), elements=st.integers(0, 2**32 - 1))
    floats = draw(bits).view(np.float32)
    seen, touched = (draw(hnp.arrays(np.uint32, count, elements=st.integers(0, 2**32 - 1))) for _ in range(2))
    return TableRows(keys, floats[:, :dim].copy(), floats[:, dim:].copy(), seen, touched)


@given(rows=tables(), chunk=st.integers(1, 50), group=st.integers(1, 20), per_file=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_rows_come_back(rows: TableRows, chunk: int, group: int, per_file: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "GROUP_ROWS", group)
        patch.setattr(sparse, "FILE_ROWS", per_file)
        info = TableInfo("T", rows.dim, {"name": "x"}, rows.state_width, {})
        with begin(f"{folder}/c") as draft:
            files = write_sparse_shard(draft.directory, "T", 0, chunked(rows, chunk), rows.dim, rows.state_width)
            commit(draft, Manifest(step=0, tables=(info,), files=tuple(files)))
        checkpoint = Checkpoint.open(f"{folder}/c")
        checkpoint.verify()
        parts = list(checkpoint.sparse_rows("T"))
        assert all(0 < len(part) <= group for part in parts)
        assert_same_rows(joined(parts, rows.dim, rows.state_width), rows)
        assert checkpoint.row_count("T") == len(rows)
        values_only = joined(checkpoint.sparse_rows("T", read_state=False), rows.dim, 0)
        assert_same_rows(values_only, TableRows(rows.keys, rows.values, rows.state[:, :0], rows.seen, rows.touched))


@pytest.mark.parametrize("writers", [1, 2, 3])
@pytest.mark.parametrize("readers", [1, 2, 5])
def test_saved_on_n_servers_loads_on_m(writers: int, readers: int, tmp_path: Path) -> None:
    save(tmp_path / "c", shards=writers)
    checkpoint = Checkpoint.open(tmp_path / "c")
    assert_whole(tmp_path / "c", step=1)
    parts = []
    for server in range(readers):
        mine = joined(
            checkpoint.sparse_rows("T", keep=lambda keys, s=server: (keys >> np.uint64(7)) % np.uint64(readers) == s)
        )
        assert ((mine.keys >> np.uint64(7)) % np.uint64(readers) == server).all()
        parts.append(mine)
    assert_same_rows(joined(parts), make_rows(50))
    values, state = dense_values()
    for server in range(readers):
        start, stop = SIZE * server // readers, SIZE * (server + 1) // readers
        piece = checkpoint.dense_cut("model", start, stop)
        assert (piece.start, piece.stop, piece.state_width) == (start, stop, 2)
        np.testing.assert_array_equal(piece.values, values[start:stop])
        np.testing.assert_array_equal(piece.state.reshape(2, -1), state.reshape(2, SIZE)[:, start:stop])


@given(st.lists(st.integers(0, SIZE), max_size=5), st.integers(0, SIZE), st.integers(0, SIZE))
@settings(max_examples=40, deadline=None)
def test_dense_block_in_any_pieces_loads_as_any_cut(cuts: list[int], first: int, second: int) -> None:
    values, state = dense_values()
    edges = [0, *sorted(cuts), SIZE]
    with tempfile.TemporaryDirectory() as folder:
        with begin(f"{folder}/c") as draft:
            files = []
            for shard, (start, stop) in enumerate(itertools.pairwise(edges)):
                cut = state.reshape(2, SIZE)[:, start:stop].copy().reshape(-1)
                files += write_dense(
                    draft.directory, shard, [(DensePiece("model", start, values[start:stop], cut), LAYOUT)]
                )
            commit(
                draft,
                Manifest(
                    step=0,
                    blocks=(BlockInfo("model", SIZE, LAYOUT, {"name": "adam"}, 2),),
                    files=tuple(files),
                ),
            )
        checkpoint = Checkpoint.open(f"{folder}/c")
        checkpoint.verify()
        low, high = sorted((first, second))
        piece = checkpoint.dense_cut("model", low, high)
        np.testing.assert_array_equal(piece.values, values[low:high])
        np.testing.assert_array_equal(piece.state.reshape(2, -1), state.reshape(2, SIZE)[:, low:high])
        assert checkpoint.dense_cut("model", low, high, read_state=False).state.size == 0


def test_named_tensors(tmp_path: Path) -> None:
    save(tmp_path / "c", shards=3)
    checkpoint = Checkpoint.open(tmp_path / "c")
    values, _ = dense_values()
    tensors = checkpoint.dense()
    assert {name: array.shape for name, array in tensors.items()} == dict(LAYOUT)
    np.testing.assert_array_equal(tensors["fc1.weight"].reshape(-1), values[:12])
    assert tensors["scale"] == values[16]
    buffers = checkpoint.buffers()
    assert list(buffers) == ["bn.count"]
    assert buffers["bn.count"].dtype == np.int64
    assert buffers["bn.count"] == 7


def test_dense_file_is_plain_safetensors_with_named_weights(tmp_path: Path) -> None:
    save(tmp_path / "whole")
    save(tmp_path / "cut", shards=2)
    values, state = dense_values()
    whole = safetensors.numpy.load_file(tmp_path / "whole/dense/model-00000.safetensors")
    assert sorted(whole) == sorted(
        f"{part}/{name}" for part in ("values", "state/0", "state/1") for name in ("fc1.weight", "fc1.bias", "scale")
    )
    np.testing.assert_array_equal(whole["values/fc1.weight"], values[:12].reshape(4, 3))
    np.testing.assert_array_equal(whole["state/1/fc1.bias"], state[SIZE + 12 : SIZE + 16])
    cut = safetensors.numpy.load_file(tmp_path / "cut/dense/model-00001.safetensors")
    assert "values/fc1.weight[8:12]" in cut
    np.testing.assert_array_equal(cut["values/fc1.weight[8:12]"], values[8:12])


def test_sparse_files_are_plain_parquet(tmp_path: Path) -> None:
    save(tmp_path / "c", shards=2)
    files = sorted((tmp_path / "c/sparse/T").iterdir())
    assert [file.name for file in files] == ["part-00000-000.parquet", "part-00001-000.parquet"]
    schema = pq.read_schema(files[0])
    assert schema.names == ["key", "values", "state", "seen", "touched"]
    assert [str(field.type) for field in schema] == [
        "uint64",
        "fixed_size_list<element: float not null>[3]",
        "fixed_size_list<element: float not null>[6]",
        "uint32",
        "uint32",
    ]
    table = pyarrow.dataset.dataset(tmp_path / "c/sparse/T").to_table().sort_by("key")
    expected = joined([make_rows(50)])
    np.testing.assert_array_equal(table["key"].to_numpy(), expected.keys)
    np.testing.assert_array_equal(np.array(table["values"].to_pylist(), np.float32), expected.values)


@pytest.mark.parametrize("tool", ["pandas", "polars", "duckdb"])
def test_other_tools_open_the_shards(tool: str, tmp_path: Path) -> None:
    module = pytest.importorskip(tool)
    save(tmp_path / "c")
    file = str(tmp_path / "c/sparse/T/part-00000-000.parquet")
    if tool == "duckdb":
        keys = [row[0] for row in module.sql(f"select key from '{file}'").fetchall()]
    else:
        keys = module.read_parquet(file)["key"].to_numpy()
    assert set(map(int, keys)) == set(map(int, make_rows(50).keys))


def test_empty_table_and_no_blocks(tmp_path: Path) -> None:
    with begin(tmp_path / "c") as draft:
        files = write_sparse_shard(draft.directory, "T", 0, [], 3, 6) + write_buffers(draft.directory, {})
        info = TableInfo("T", 3, {"name": "adam"}, 6, {})
        commit(draft, Manifest(step=0, tables=(info,), files=tuple(files)))
    checkpoint = Checkpoint.open(tmp_path / "c")
    checkpoint.verify()
    assert list(checkpoint.sparse_rows("T")) == []
    assert checkpoint.dense() == {}
    assert checkpoint.buffers() == {}


def test_the_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    first, second = (Checkpoint.open(save(tmp_path / name)).manifest.files for name in "ab")
    assert first == second


def test_wide_rows_make_small_groups() -> None:
    assert sparse.group_rows(10, 20) == 131_072
    assert sparse.group_rows(65536, 131072) * 4 * (65536 + 131072) <= 64 << 20
    assert sparse.group_rows(2**30, 0) == 1


def test_reading_needs_the_memory_of_one_row_group(tmp_path: Path) -> None:
    chunk = make_rows(50_000, 10, 0)

    def rows() -> Iterator[TableRows]:
        for index in range(16):
            yield TableRows(chunk.keys + np.uint64(index), chunk.values, chunk.state, chunk.seen, chunk.touched)

    with begin(tmp_path / "c") as draft:
        files = write_sparse_shard(draft.directory, "T", 0, rows(), 10, 0)
        commit(draft, Manifest(step=0, tables=(TableInfo("T", 10, {"name": "sgd"}, 0, {}),), files=tuple(files)))
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for part in Checkpoint.open(tmp_path / "c").sparse_rows("T"):
        most, count = max(most, pa.total_allocated_bytes() - before), count + len(part)
    assert count == 800_000
    assert files[0].bytes > 40_000_000
    assert most < 27_000_000


SERVER = """
import json, sys
import checkpoint_builders as builders
from sparsefleet.checkpoint import write_sparse_shard
directory, shard = sys.argv[1], int(sys.argv[2])
rows = builders.make_rows(50)
mine = rows.select(rows.keys % 2 == shard)
print(json.dumps([entry.to_dict() for entry in write_sparse_shard(directory, "T", shard, [mine], 3, 6)]))
"""


def test_each_server_process_writes_its_own_shard(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with begin(tmp_path / "c") as draft:
        command = [sys.executable, "-c", SERVER, str(draft.directory)]
        servers = [subprocess.Popen([*command, str(n)], env=env, stdout=subprocess.PIPE) for n in range(2)]
        replies = [server.communicate(timeout=60)[0] for server in servers]
        files = tuple(file_entry(data, "reply") for reply in replies for data in json.loads(reply))
        commit(draft, Manifest(step=0, tables=(TableInfo("T", 3, {"name": "adam"}, 6, {}),), files=files))
    checkpoint = Checkpoint.open(tmp_path / "c")
    assert len(checkpoint.manifest.files) == 2
    assert_same_rows(joined(checkpoint.sparse_rows("T")), make_rows(50))


def test_state_can_be_left_out(tmp_path: Path) -> None:
    rows = make_rows(20)
    with begin(tmp_path / "c") as draft:
        files = write_sparse_shard(draft.directory, "T", 0, [rows], 3, 0)
        info = TableInfo("T", 3, Rule().to_dict(), 0, {})
        commit(draft, Manifest(step=0, tables=(info,), files=tuple(files)))
    checkpoint = Checkpoint.open(tmp_path / "c")
    loaded = joined(checkpoint.sparse_rows("T"), 3, 0)
    assert_same_rows(loaded, TableRows(rows.keys, rows.values, rows.state[:, :0], rows.seen, rows.touched))
    with pytest.raises(
        CheckpointError,
        match=r"without its optimizer's state: for scoring \(sparsefleet infer\).*values_only=True",
    ):
        checkpoint.check_table(Spec())
    checkpoint.check_table(Spec(), reset_optimizer=True)


def test_table_of_another_shape(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(save(tmp_path / "c"))
    assert checkpoint.check_table(Spec()).step == 1
    checkpoint.check_table(Spec(rule=Rule(learning_rate=0.5)))
    with pytest.raises(CheckpointError, match="no table 'U'; it has T"):
        checkpoint.check_table(Spec(name="U"))
    with pytest.raises(CheckpointError, match=r"/c: table 'T' was saved with rows of 3 values; the model's have 4"):
        checkpoint.check_table(Spec(dim=4))
    with pytest.raises(CheckpointError, match="saved with rows of 3 values"):
        checkpoint.check_table(Spec(dim=4), reset_optimizer=True)
    with pytest.raises(
        CheckpointError,
        match=r"adam; the model's is ftrl\. Resume with that optimizer \(--optimizer\); or .*values_only=True",
    ):
        checkpoint.check_table(Spec(rule=Rule("ftrl")))
    checkpoint.check_table(Spec(rule=Rule("ftrl")), reset_optimizer=True)
    with pytest.raises(CheckpointError, match="saved with 6 floats of adam state; the model's rule has 9"):
        checkpoint.check_table(Spec(rule=Rule(floats=3)))


def test_block_of_another_shape(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(save(tmp_path / "c"))
    assert checkpoint.check_block("model", LAYOUT, Rule()).size == SIZE
    with pytest.raises(CheckpointError, match="no dense block 'head'; it has model"):
        checkpoint.check_block("head", LAYOUT, Rule())
    with pytest.raises(CheckpointError, match=r"'fc1.bias' was saved with shape \[4\]; the model's has \[5\]"):
        checkpoint.check_block("model", [(n, (5,) if n == "fc1.bias" else s) for n, s in LAYOUT], Rule())
    with pytest.raises(CheckpointError, match="has no parameter 'fc2'; the model has"):
        checkpoint.check_block("model", [*LAYOUT, ("fc2", (1,))], Rule())
    with pytest.raises(CheckpointError, match="has a parameter 'scale'; the model has none"):
        checkpoint.check_block("model", LAYOUT[:-1], Rule())
    with pytest.raises(CheckpointError, match="the same parameters in another order"):
        checkpoint.check_block("model", LAYOUT[::-1], Rule())
    with pytest.raises(CheckpointError, match="saved with optimizer adam; the model's is sgd"):
        checkpoint.check_block("model", LAYOUT, Rule("sgd", 0))
    checkpoint.check_block("model", LAYOUT, Rule("sgd", 0), reset_optimizer=True)
    with pytest.raises(CheckpointError, match="has 17 values; there is no range 3 to 18"):
        checkpoint.dense_cut("model", 3, 18)


def test_rows_of_the_wrong_shape_are_not_written(tmp_path: Path) -> None:
    with begin(tmp_path / "c") as draft:
        with pytest.raises(CheckpointError, match=r"rows of 3 values and 6 floats of state came; .* hold 4 and 6"):
            write_sparse_shard(draft.directory, "T", 0, [make_rows(3)], 4, 6)
        with pytest.raises(CheckpointError, match=r"table '\.\./T': it names files"):
            write_sparse_shard(draft.directory, "../T", 0, [make_rows(3)], 3, 6)
        flat, nothing = np.zeros(5, np.float32), np.zeros(0, np.float32)
        with pytest.raises(CheckpointError, match="the piece 15 to 20 is not within its layout's 17 values"):
            write_dense(draft.directory, 0, [(DensePiece("model", 15, flat, nothing), LAYOUT)])
        with pytest.raises(CheckpointError, match="dense block 'a/b': it names files"):
            write_dense(draft.directory, 0, [(DensePiece("a/b", 0, flat, nothing), LAYOUT)])
        with pytest.raises(CheckpointError, match="a tensor that safetensors cannot hold"):
            write_buffers(draft.directory, {"names": np.array(["a"])})
    with pytest.raises(CheckpointError, match="7 floats of state do not go evenly on 5 values"):
        DensePiece("model", 0, flat, np.zeros(7, np.float32))
    with pytest.raises(CheckpointError, match="values must be flat float32; got float64"):
        DensePiece("model", 0, np.zeros(5), nothing)  # type: ignore[arg-type]


def test_a_keep_that_gives_no_mask(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(save(tmp_path / "c"))
    with pytest.raises(TypeError, match="keep must give a mask of 50 truth values"):
        list(checkpoint.sparse_rows("T", keep=lambda keys: keys))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("field", "array", "reason"),
    [
        ("keys", np.zeros(2, np.int64), r"keys must be uint64 of shape \[2\]; got int64"),
        (
            "values",
            np.zeros((3, 1), np.float32),
            r"values must be float32 of shape \[2, width\]; got float32 \(3, 1\)",
        ),
        ("state", np.zeros(2, np.float32), "state must be float32"),
        ("seen", np.zeros(2, np.int32), "seen must be uint32"),
        ("touched", np.zeros(3, np.uint32), r"touched must be uint32 of shape \[2\]"),
    ],
)
def test_table_rows_check_their_arrays(field: str, array: np.ndarray, reason: str) -> None:
    rows = make_rows(2)
    arrays = {name: getattr(rows, name) for name in ("keys", "values", "state", "seen")}
    with pytest.raises(ConfigError, match=reason):
        TableRows(**{**arrays, field: array})


@pytest.mark.parametrize("clock", [0, 5, 2**31 - 1, 2**31, 2**32 - 2, 2**32, 3 * 2**32 + 7])
def test_touched_is_compared_by_difference(clock: int) -> None:
    before = [0, 1, 100, 2**31 - 1]
    after = [1, 2, 100, 2**31 - 1]
    touched = np.array(
        [(clock - ago) % 2**32 for ago in before] + [(clock + ticks) % 2**32 for ticks in after], np.uint32
    )
    np.testing.assert_array_equal(touched_after(touched, clock), [False] * 4 + [True] * 4)
