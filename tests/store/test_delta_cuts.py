"""Deltas: cuts that hold what changed since the one before. All of them together are the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsefleet import optim
from sparsefleet.checkpoint import (
    Base,
    Chain,
    ChainPolicy,
    Checkpoint,
    begin,
    commit,
    latest,
    loadable,
    prune,
    show,
    write_sparse_shard,
)
from sparsefleet.checkpoint.checksum import checksum_of
from sparsefleet.checkpoint.manifest import FILE_NAME
from sparsefleet.checkpoint.sparse import read_sparse_file
from sparsefleet.checkpoint.storage import locate
from sparsefleet.core.errors import CheckpointError, ConfigError, StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.store.base import RunFacts
from sparsefleet.store.partition import Share
from sparsefleet.store.shards import ShardCut, load_table, manifest_of
from sparsefleet.table import SparseTable, TableSpec

SPEC = TableSpec("t", 2, optim.SGD(1.0), Constant(0.0))
SERVERS = 2


class Servers:
    """Tables of a job of two servers, and its cuts, each a delta where the chain says so."""

    def __init__(self, folder: Path, policy: ChainPolicy | None = None, spec: TableSpec = SPEC) -> None:
        self.folder, self.spec, self.chain = folder, spec, Chain(policy)
        self.shares = [Share(index, SERVERS) for index in range(SERVERS)]
        self.tables = [SparseTable(spec) for _ in self.shares]
        self.marks: dict[str, list[dict[str, int]]] = {}
        self.step = 0

    def push(self, keys: list[int], gradient: float) -> None:
        for share, table in zip(self.shares, self.tables, strict=True):
            mine = self._mine(share, keys)
            table.push(mine, np.full((len(mine), self.spec.dim), gradient, np.float32))

    def pull(self, keys: list[int]) -> None:
        for share, table in zip(self.shares, self.tables, strict=True):
            table.pull(self._mine(share, keys))

    def clear(self) -> None:
        """As a load does: what was known of changes is of no use any more."""
        for table in self.tables:
            table.clear()
        self.marks.clear()

    def cut(self) -> Path:
        self.step += 1
        path = str(self.folder / f"step-{self.step:08d}")
        since = self.chain.base_for(path)
        marks = self.marks.get(since) if since is not None else None
        cuts = [ShardCut([table], []) for table in self.tables]
        self.push([10**6], 0.0)  # what comes after the cut was named is not in it
        with begin(path) as draft:
            files = []
            for index, cut in enumerate(cuts):
                with cut:
                    files += cut.write(draft.directory, index, since=None if marks is None else marks[index])
            base = None
            if marks is not None:
                rows = {"t": sum(cut.rows()["t"] for cut in cuts)}
                base = Base(locate(since).name, checksum_of(locate(since) / FILE_NAME), rows)
            manifest = manifest_of(
                RunFacts(step=self.step), cuts[0].table_infos(), [], files, servers=SERVERS, base=base
            )
            commit(draft, manifest)
        self.chain.written(path, manifest)
        self.marks[path] = [cut.clocks() for cut in cuts]
        return Path(path)

    def _mine(self, share: Share, keys: list[int]) -> np.ndarray:
        given = np.array(sorted(set(keys)), np.uint64)
        return given[share.mine(given)] if len(given) else given


def contents(tables: list[SparseTable]) -> dict[int, tuple[float, int]]:
    return {
        int(key): (float(rows.values[i, 0]), int(rows.seen[i]))
        for table in tables
        for rows in table.scan()
        for i, key in enumerate(rows.keys)
    }


def loaded(path: Path, servers: int, spec: TableSpec = SPEC) -> list[SparseTable]:
    tables = [SparseTable(spec) for _ in range(servers)]
    for index, table in enumerate(tables):
        load_table(Checkpoint.open(path), table, share=Share(index, servers))
    return tables


KEYS = st.lists(st.integers(0, 40), max_size=8)
CHANGES = st.one_of(
    st.tuples(st.just("push"), KEYS, st.integers(-3, 3)),
    st.tuples(st.just("pull"), KEYS),
    st.tuples(st.just("clear")),
    st.tuples(st.just("cut")),
    st.tuples(st.just("cut")),
)


@given(st.lists(CHANGES, max_size=25), st.integers(0, 4), st.sampled_from([0.2, 1.0, 100.0]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_cut_is_the_whole_of_its_moment(tmp_path_factory, changes, deltas, share):
    servers = Servers(tmp_path_factory.mktemp("cuts"), ChainPolicy(deltas, share))
    model: dict[int, tuple[float, int]] = {}
    taken: list[tuple[Path, dict[int, tuple[float, int]]]] = []
    after_cut = {10**6}
    for change in [*changes, ("cut",)]:
        match change:
            case ("push", keys, gradient):
                servers.push(keys, gradient)
                for key in set(keys):
                    value, seen = model.get(key, (0.0, 0))
                    model[key] = (value - gradient, seen + 1)
            case ("pull", keys):
                servers.pull(keys)
                for key in keys:
                    model.setdefault(key, (0.0, 0))
            case ("clear",):
                servers.clear()
                model.clear()
            case ("cut",):
                taken.append((servers.cut(), dict(model)))
                for key in after_cut:
                    value, seen = model.get(key, (0.0, 0))
                    model[key] = (value, seen + 1)
    for path, expected in taken:
        checkpoint = Checkpoint.open(path)
        checkpoint.verify()
        assert len(checkpoint.layers()) <= deltas + 1
        for count in (1, SERVERS, 3):
            assert contents(loaded(path, count)) == expected
        rows = list(checkpoint.sparse_rows("t"))
        keys = [int(key) for part in rows for key in part.keys]
        assert sorted(keys) == sorted(expected), "each key once"
        assert checkpoint.row_count("t") == len(expected)
        found = {int(key): float(part.values[i, 0]) for part in rows for i, key in enumerate(part.keys)}
        assert found == {key: value for key, (value, _) in expected.items()}
        mine = Share(1, 3)
        kept = [int(key) for part in checkpoint.sparse_rows("t", mine.mine) for key in part.keys]
        assert sorted(kept) == [key for key in sorted(keys) if mine.mine(np.array([key], np.uint64))[0]]


def bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_a_delta_of_one_row_in_a_hundred_has_at_most_three_hundredths_of_the_bytes(tmp_path):
    servers = Servers(tmp_path, spec=TableSpec("t", 8, optim.Adam(0.1)))
    servers.push(list(range(100_000)), 1.0)
    whole = servers.cut()
    servers.push(list(range(0, 100_000, 100)), 1.0)
    delta = servers.cut()
    assert Checkpoint.open(delta).manifest.base.name == whole.name
    assert bytes_of(delta) <= 0.03 * bytes_of(whole)


def three_cuts(folder: Path) -> list[Path]:
    """A whole one, and two deltas."""
    servers = Servers(folder, ChainPolicy(5, 100.0))
    cuts = []
    for keys in (range(1000), range(100, 200), range(150, 250)):
        servers.push(list(keys), 1.0)
        cuts.append(servers.cut())
    return cuts


def test_a_delta_that_is_missing_is_found_and_the_one_before_it_is_taken(tmp_path):
    first, second, third = three_cuts(tmp_path)
    assert latest(tmp_path).name == third.name
    next((second / "sparse" / "t").iterdir()).unlink()
    with pytest.raises(CheckpointError, match=rf"{third.name} is a delta of {second.name}, which cannot be opened: .*"):
        Checkpoint.open(third)
    assert latest(tmp_path).name == first.name


def test_a_delta_whose_bytes_were_changed_is_refused_when_it_is_read(tmp_path):
    _, second, third = three_cuts(tmp_path)
    file = max((second / "sparse" / "t").iterdir(), key=lambda one: one.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(data)
    checkpoint = Checkpoint.open(third)
    with pytest.raises(CheckpointError, match=rf"{second.name}.*damaged"):
        checkpoint.verify()
    with pytest.raises(CheckpointError, match=rf"{second.name}.*damaged"):
        loaded(third, SERVERS)
    with pytest.raises(CheckpointError, match=rf"{second.name}.*damaged"):
        list(checkpoint.sparse_rows("t"))


def test_another_checkpoint_cannot_take_the_place_of_a_base(tmp_path):
    _, second, third = three_cuts(tmp_path)
    manifest = second / FILE_NAME
    manifest.write_text(manifest.read_text().replace('"step": 2', '"step": 7', 1))
    with pytest.raises(
        CheckpointError, match=rf"is a delta of {second.name}, but not of the one that is there: its man"
    ):
        Checkpoint.open(third)


def test_what_a_delta_stands_on_is_not_pruned_before_it(tmp_path):
    servers = Servers(tmp_path, ChainPolicy(2, 100.0))
    for _ in range(4):
        servers.push(list(range(50)), 1.0)
        servers.cut()
    names = ["step-00000001", "step-00000002", "step-00000003", "step-00000004"]  # the last is whole again
    assert [len(Checkpoint.open(tmp_path / name).layers()) for name in names] == [1, 2, 3, 1]
    assert prune(tmp_path, 2) == []
    assert prune(tmp_path, 1) == names[:3]
    assert [checkpoint.location.name for checkpoint in loadable(tmp_path)] == names[3:]


def test_a_checkpoint_of_a_delta_says_so(tmp_path):
    first, second, _ = three_cuts(tmp_path)
    assert (show(first)["base"], show(second)["base"]) == (None, first.name)
    assert show(second)["tables"][0]["rows"] == 1001
    assert '"version": 3' in (first / FILE_NAME).read_text()
    assert '"version": 4' in (second / FILE_NAME).read_text(), "who reads whole ones only must refuse it"


def types_in(checkpoint: Path) -> dict[str, str]:
    (file,) = (checkpoint / "sparse" / "t").glob("part-00000-*")
    return {field.name: str(field.type) for field in pq.read_schema(file)}


def test_a_delta_has_its_floats_as_bytes_and_one_of_lists_is_read_too(tmp_path, monkeypatch):
    spec = TableSpec("t", 2, optim.Adam(0.1))
    lists = {
        "values": "fixed_size_list<element: float not null>[2]",
        "state": "fixed_size_list<element: float not null>[4]",
    }
    packed = {"values": "fixed_size_binary[8]", "state": "fixed_size_binary[16]"}
    for name, deltas in (("packed", packed), ("lists", lists)):
        if name == "lists":  # as they were written before

            def unpacked(*arguments, packed):
                return write_sparse_shard(*arguments)

            monkeypatch.setattr("sparsefleet.store.shards.write_sparse_shard", unpacked)
        (tmp_path / name).mkdir()
        servers = Servers(tmp_path / name, spec=spec)
        servers.push(list(range(1000)), 1.0)
        assert types_in(servers.cut()).items() >= lists.items(), "whole ones are for other programs too"
        servers.push(list(range(100)), 3.0)
        delta = servers.cut()
        assert types_in(delta).items() >= deltas.items()
        monkeypatch.undo()
        again = loaded(delta, SERVERS, spec)
        for table, other in zip(again, servers.tables, strict=True):
            found, expected = next(table.scan()), next(other.scan())
            order, ordered = np.argsort(found.keys), np.argsort(expected.keys)
            stranger = expected.keys[ordered] == 10**6  # pushed after the cut was named
            for field in ("keys", "values", "state", "seen"):
                mine, theirs = getattr(found, field)[order], getattr(expected, field)[ordered][~stranger]
                assert np.array_equal(mine[found.keys[order] != 10**6], theirs), field


def test_packed_rows_of_another_width_are_refused(tmp_path):
    first, second, _ = three_cuts(tmp_path)
    (file,) = (second / "sparse" / "t").glob("part-00000-*")
    read = pq.read_table(file)
    wider = pa.array([bytes(12)] * len(read), pa.binary(12))
    pq.write_table(read.set_column(1, "values", wider), file)
    checkpoint = Checkpoint.open(first)
    (entry,) = (one for one in Checkpoint.open(first).manifest.files_of("sparse", "t") if one.shard == 0)
    entry = replace(entry, rows=len(read))
    with pytest.raises(CheckpointError, match=r"values fixed_size_binary\[12\].*says .*values fixed_size_binary\[8\]"):
        list(read_sparse_file(locate(str(file)), entry, checkpoint.manifest.table("t")))


def test_the_chain_is_bounded_and_begins_anew_where_a_name_comes_again(tmp_path):
    servers = Servers(tmp_path, ChainPolicy(3, 0.5))
    servers.push(list(range(1000)), 1.0)
    servers.cut()
    for _ in range(3):  # each of them changes a third: after the second one the next is whole
        servers.push(list(range(300)), 1.0)
        servers.cut()
    assert [len(checkpoint.layers()) for checkpoint in reversed(loadable(tmp_path))] == [1, 2, 3, 1]
    assert servers.chain.base_for(str(tmp_path / "step-00000004")) is None
    assert servers.chain.base_for(str(tmp_path / "step-00000005")) == str(tmp_path / "step-00000004")
    assert servers.chain.base_for(str(tmp_path / "elsewhere" / "step-00000005")) is None
    with pytest.raises(ConfigError, match="deltas=65 must be 0 to 64"):
        ChainPolicy(65)
    with pytest.raises(ConfigError, match=r"share=0 must be above 0"):
        ChainPolicy(share=0)


def test_an_exact_table_is_whole_in_every_delta(tmp_path):
    spec = TableSpec("t", 2, optim.Adam(0.1, exact=True))
    servers = Servers(tmp_path, ChainPolicy(5, 100.0), spec)
    servers.push(list(range(100)), 1.0)
    servers.cut()
    servers.push([5], 1.0)
    expected = [dict(zip(rows.keys.tolist(), rows.values.tolist(), strict=True)) for rows in servers.tables[0].scan()]
    checkpoint = Checkpoint.open(servers.cut())
    assert checkpoint.base is not None
    assert sum(len(part) for part in checkpoint.own_rows("t")) == checkpoint.row_count("t")
    table = SparseTable(spec)
    load_table(checkpoint, table, share=Share(0, SERVERS))
    assert [dict(zip(rows.keys.tolist(), rows.values.tolist(), strict=True)) for rows in table.scan()] == expected
    with servers.tables[0].begin_cut() as cut, pytest.raises(StoreError, match="'t' is exact: each step changes every"):
        cut.scan(since=1)


def test_a_reader_follows_so_many_deltas_and_no_more(tmp_path, monkeypatch):
    _, _, third = three_cuts(tmp_path)
    monkeypatch.setattr("sparsefleet.checkpoint.reader.MAX_DELTAS", 1)
    with pytest.raises(CheckpointError, match="more than 1 deltas stand on each other"):
        Checkpoint.open(third)
