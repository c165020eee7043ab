"""A server that loads a checkpoint of as many servers reads its own files only, and refuses rows of others."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from small_jobs import cluster

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint, sparse
from sparsefleet.core.errors import CheckpointError, SparseFleetError
from sparsefleet.store import LocalStore
from sparsefleet.store.base import RunFacts
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 2, optim.Adam(0.1))
KEYS = np.arange(500, dtype=np.uint64)


@pytest.fixture
def files_read(monkeypatch):
    """Names of sparse files in the order they were read."""
    read, names = sparse.read_sparse_file, []

    def noted(location, *arguments, **settings):
        names.append(location.path.rpartition("/")[2])
        return read(location, *arguments, **settings)

    monkeypatch.setattr(sparse, "read_sparse_file", noted)
    return names


def saved_by(servers: int, path: str) -> np.ndarray:
    """The rows of a checkpoint that so many servers wrote."""
    with cluster(servers) as fleet:
        store = fleet.store()
        store.create_table(SPEC)
        store.push("ads", KEYS, np.ones((len(KEYS), 2), np.float32)).wait(30)
        store.save(path, RunFacts())
        return store.pull("ads", KEYS).wait(30)


@pytest.mark.parametrize("how", ["start from", "load"])
def test_as_many_servers_read_each_file_once(tmp_path, files_read, how):
    path = str(tmp_path / "saved")
    rows = saved_by(2, path)
    assert Checkpoint.open(path).manifest.partition.servers == 2
    with cluster(2, load_from=path if how == "start from" else None) as fleet:
        store = fleet.store()
        store.create_table(SPEC)
        if how == "load":
            store.load(path)
        assert sorted(files_read) == ["part-00000-000.parquet", "part-00001-000.parquet"]
        np.testing.assert_array_equal(store.pull("ads", KEYS, create=False).wait(30), rows)


@pytest.mark.parametrize("servers", [1, 3])
def test_another_number_of_servers_reads_all_files(tmp_path, files_read, servers):
    path = str(tmp_path / "saved")
    rows = saved_by(2, path)
    with cluster(servers, load_from=path) as fleet:
        store = fleet.store()
        store.create_table(SPEC)
        assert len(files_read) == 2 * servers
        np.testing.assert_array_equal(store.pull("ads", KEYS, create=False).wait(30), rows)


def test_a_checkpoint_of_one_process_or_of_version_1_is_read_whole(tmp_path, files_read):
    store = LocalStore()
    store.create_table(SPEC)
    store.push("ads", KEYS, np.ones((len(KEYS), 2), np.float32))
    store.save(str(tmp_path / "saved"), RunFacts())
    assert Checkpoint.open(str(tmp_path / "saved")).manifest.partition is None
    with cluster(2, load_from=str(tmp_path / "saved")) as fleet:
        fleet.store().create_table(SPEC)
        assert len(files_read) == 2
        assert sum(server.state.holdings.rows() for server in fleet.servers) == len(KEYS)


def test_rows_of_another_server_are_refused(tmp_path):
    path = tmp_path / "saved"
    saved_by(2, str(path))
    manifest = json.loads((path / "manifest.json").read_text())
    for entry in manifest["files"]:
        if entry["kind"] == "sparse":
            entry["shard"] = 1 - entry["shard"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with cluster(2, load_from=str(path)) as fleet:
        store = fleet.store()
        with pytest.raises(SparseFleetError, match=r"shard [01] hold \d+ keys that server [01] of 2 does not own"):
            store.create_table(SPEC)
    other = LocalStore()
    other.create_table(SPEC)
    other.load(str(path))
    assert other.stats()["tables"]["ads"]["rows"] == len(KEYS), "one process takes rows from wherever they are"


def test_a_shard_that_is_missing_is_found_before_anything_is_loaded(tmp_path):
    path = tmp_path / "saved"
    saved_by(2, str(path))
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"] = [entry for entry in manifest["files"] if entry.get("shard") != 1]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="'ads' has no file of shard 1; the partition says that there are 2"):
        Checkpoint.open(str(copy))
