"""Checkpoints on filesystems that pyarrow opens: no rename, the manifest last."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_builders import assert_whole, make_rows, save
from pyarrow import fs

from sparsefleet.checkpoint import (
    Checkpoint,
    Location,
    Manifest,
    begin,
    commit,
    latest,
    locate,
    prune,
    step_path,
    write_sparse_shard,
)
from sparsefleet.checkpoint.retention import point_latest
from sparsefleet.checkpoint.storage.arrow import ArrowStorage
from sparsefleet.checkpoint.storage.local import LocalStorage
from sparsefleet.core.errors import CheckpointError


@pytest.fixture(params=["mock", "subtree", "local"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "mock":
        return Location(ArrowStorage(fs._MockFileSystem()), "bucket/run")
    if request.param == "subtree":
        return Location(ArrowStorage(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())), "bucket/run")
    return Location(ArrowStorage(fs.LocalFileSystem()), str(tmp_path / "run"))


def names(location: Location) -> list[str]:
    return [entry.name for entry in location.list()]


def test_save_and_load(folder: Location) -> None:
    save(folder / "c", shards=2)
    assert_whole(folder / "c", step=1)
    checkpoint = Checkpoint.open(folder / "c")
    assert all(entry.path.startswith("data-") for entry in checkpoint.manifest.files)


def test_replacing_keeps_the_old_one_until_the_manifest(folder: Location) -> None:
    save(folder / "c", step=1, seed=1)
    with begin(folder / "c") as draft:
        write_sparse_shard(draft.directory, "T", 0, [make_rows(5)], 3, 6)
        assert_whole(folder / "c", step=1, seed=1)
    assert_whole(folder / "c", step=1, seed=1)  # given up
    assert len(names(folder / "c")) == 2
    save(folder / "c", step=2, seed=2)
    assert_whole(folder / "c", step=2, seed=2)
    assert len(names(folder / "c")) == 2  # the manifest and its data; the old data is gone


def test_leftovers_of_a_dead_save_go_with_the_next_commit(folder: Location) -> None:
    draft = begin(folder / "c")
    write_sparse_shard(draft.directory, "T", 0, [make_rows(5)], 3, 6)
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*c: it holds no manifest.json"):
        Checkpoint.open(folder / "c")
    save(folder / "c", step=2)
    assert len(names(folder / "c")) == 2


def test_torn_manifest(folder: Location) -> None:
    save(folder / "c")
    data = (folder / "c" / "manifest.json").open_input().read()
    folder.storage.replace_file((folder / "c" / "manifest.json").path, data[:100])
    with pytest.raises(CheckpointError, match="not a JSON document"):
        Checkpoint.open(folder / "c")


def test_retention(folder: Location) -> None:
    for step in (1, 2, 3):
        point_latest(save(step_path(folder, step), step=step))
    begin(step_path(folder, 4))  # died: no manifest
    assert latest(folder).name == "step-00000003"
    assert (folder / "latest").open_input().read() == b"step-00000003\n"
    assert prune(folder, keep=2) == ["step-00000001", "step-00000004"]
    assert names(folder) == ["latest", "step-00000002", "step-00000003"]


def test_finished_draft(folder: Location) -> None:
    with begin(folder / "c") as draft:
        pass
    with pytest.raises(CheckpointError, match=r"the draft of .*c is finished already"):
        commit(draft, Manifest(step=1))


def test_file_uri_is_a_local_path(tmp_path: Path) -> None:
    save(f"file://{tmp_path}/c")
    assert_whole(tmp_path / "c", step=1)
    assert isinstance(locate(f"file://{tmp_path}/c").storage, LocalStorage)


def test_relative_and_home_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    save("c/")
    assert_whole(tmp_path / "c", step=1)
    save("~/d")
    assert_whole(tmp_path / "home/d", step=1)


def test_uris_extend_and_keep_their_options() -> None:
    location = locate("s3://bucket/run/?endpoint_override=localhost:1&scheme=http&region=us-east-1")
    assert location.path == "bucket/run"
    below = location / "step-00000001" / "manifest.json"
    assert below.path == "bucket/run/step-00000001/manifest.json"
    assert str(below).startswith("s3://bucket/run/step-00000001/manifest.json?endpoint_override=localhost:1")
    assert below.parent.parent.path == "bucket/run"
    assert locate(str(below)).path == below.path


def test_uri_that_nobody_opens() -> None:
    with pytest.raises(CheckpointError, match=r"cannot open 'nosuch://a/b'.*give a local path or a URI such as s3://"):
        locate("nosuch://a/b")
    with pytest.raises(CheckpointError, match="'' is not a path"):
        locate("")
