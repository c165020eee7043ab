"""Data behind URIs: file://, any pyarrow filesystem, an S3 server; listing, ranges, retries, and what is refused."""

from __future__ import annotations

import gzip
import json
import logging
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from remote_place import URI, Place, place
from s3_server import S3, s3

import sparsefleet as sf
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data import remote
from sparsefleet.data.base import Reader
from sparsefleet.data.split import ordered_shares, split_files

__all__ = ["s3"]


@pytest.fixture
def folder(clicks: Path, tmp_path: Path) -> Path:
    """The clicks, with a packed part and a folder of Parquet beside them."""
    root = tmp_path / "root"
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
        for file in (clicks / part).iterdir():
            (root / part / file.name).write_bytes(file.read_bytes())
    (root / "schema.json").write_bytes((clicks / "schema.json").read_bytes())
    (root / "train" / "_SUCCESS").touch()
    (root / "packed").mkdir()
    (root / "packed" / "part-0.gz").write_bytes(gzip.compress((root / "test" / "part-0").read_bytes()))
    (root / "columns").mkdir()
    _as_parquet(root / "test" / "part-0", root / "columns" / "part-0.parquet")
    return root


def _as_parquet(text: Path, out: Path) -> None:
    names = (CRITEO.label, *CRITEO.dense_names, *CRITEO.slot_names)
    columns = list(zip(*(line.split("\t") for line in text.read_text().splitlines()), strict=True))
    numbers = [[int(value) if value else None for value in column] for column in columns[:14]]
    pq.write_table(pa.table(dict(zip(names, [*numbers, *columns[14:]], strict=True))), out, row_group_size=200)


@pytest.fixture
def held(folder: Path) -> Place:
    with place(folder) as made:
        yield made


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WAITS", (0.0, 0.0, 0.0))


def samples(reader: Reader, threads: int = 1) -> np.ndarray:
    found = []
    with reader.epoch(threads) as epoch:
        for stream in epoch.streams:
            for batch in stream:
                found.append(np.column_stack([batch.labels, batch.dense, batch.keys.reshape(len(batch), -1)]))
                reader.consumed(batch)
    return np.concatenate(found)


def in_any_order(found: np.ndarray) -> np.ndarray:
    return found[np.lexsort(found.T)]


def test_file_uris_are_local_paths(folder: Path) -> None:
    assert sf.list_files(f"file://{folder}/train") == sf.list_files(folder / "train")
    assert sf.list_files(f"file://{folder}/train/part-[01]")[1] == f"{folder}/train/part-1"
    assert split_files([f"file://{folder}/test/part-0"], 0, 1) == [f"{folder}/test/part-0"]
    dataset = sf.QueueDataset([f"file://{folder}/test/part-0"])
    assert dataset.files == [f"{folder}/test/part-0"]
    with pytest.raises(DataError, match="three slashes"):
        sf.list_files("file://train/part-0")
    reader = sf.open_reader(f"file://{folder}/test", CRITEO)
    assert np.array_equal(samples(reader), samples(sf.open_reader(folder / "test", CRITEO)))


def test_folders_and_patterns_of_set_filelist(held: Place, folder: Path) -> None:
    test = [f"{URI}/test/{Path(name).name}" for name in sf.list_files(folder / "test")]
    for given in ([f"{URI}/test"], [f"{URI}/te*/part-*"], test):
        dataset = sf.QueueDataset()
        dataset.set_filelist(given)
        assert dataset.files == test
        assert split_files(given, 0, 1) == test
    dataset = sf.QueueDataset()
    dataset.set_filelist([f"{URI}/nowhere"])
    assert dataset.files == [f"{URI}/nowhere"], "refused where it is read"


def test_listing(held: Place, folder: Path) -> None:
    local = [Path(name).name for name in sf.list_files(folder / "train")]
    assert sf.list_files(f"{URI}/train") == [f"{URI}/train/{name}" for name in local]
    assert sf.list_files(f"{URI}/train/part-1") == [f"{URI}/train/part-1"]
    assert sf.list_files(f"{URI}/t*/part-0") == [f"{URI}/test/part-0", f"{URI}/train/part-0"]
    for path, said in (
        ("nowhere", "no such file or folder"),
        ("t*/nothing-*", "no file matches this pattern"),
        ("", r"the folder holds no data files .*give one of the folders in it \(columns, packed, test\)"),
    ):
        with pytest.raises(DataError, match=said):
            sf.list_files(f"{URI}/{path}")


@pytest.mark.parametrize("what", ["test", "packed", "columns"])
@pytest.mark.parametrize("kind", ["queue", "memory", "pyreader"])
def test_samples_are_those_of_local_files(held: Place, folder: Path, what: str, kind: str) -> None:
    there = sf.open_reader(f"{URI}/{what}", CRITEO, kind=kind, batch_size=300)
    assert np.array_equal(samples(there), samples(sf.open_reader(folder / what, CRITEO, batch_size=300)))


def test_byte_ranges_for_threads_and_trainers(held: Place, folder: Path) -> None:
    whole = in_any_order(samples(sf.open_reader(folder / "test" / "part-0", CRITEO)))
    reader = sf.open_reader(f"{URI}/test/part-0", CRITEO, batch_size=100, threads=3)
    assert np.array_equal(in_any_order(samples(reader, threads=3)), whole)
    shares = [split_files([f"{URI}/test/part-0"], index, 3) for index in range(3)]
    assert all("#bytes=" in share[0] for share in shares)
    assert shares == ordered_shares([f"{URI}/test/part-0"], 3)
    read = [samples(sf.open_reader(share, CRITEO)) for share in shares]
    assert np.array_equal(in_any_order(np.concatenate(read)), whole)
    with pytest.raises(ConfigError, match=r"1 file for 2 workers, and .*part-0.gz cannot be cut"):
        split_files([f"{URI}/packed/part-0.gz"], 0, 2)


def test_going_on_from_a_position(held: Place) -> None:
    reader = sf.open_reader(f"{URI}/test", CRITEO, batch_size=100)
    with reader.epoch() as epoch:
        for _ in range(4):
            reader.consumed(next(epoch.streams[0]))
        position = json.loads(json.dumps(reader.position()))
    again = sf.open_reader(f"{URI}/test", CRITEO, batch_size=100)
    again.seek(position)
    rest = samples(again)
    assert np.array_equal(rest, samples(sf.open_reader(f"{URI}/test", CRITEO))[400:])
    moved = sf.open_reader(f"{URI}/packed", CRITEO)
    with pytest.raises(ConfigError, match="another list of files"):
        moved.seek(position)


def test_a_pipe_command_reads_it(held: Place, folder: Path) -> None:
    generator = Path(__file__).parents[2] / "examples" / "criteo_generator.py"
    for what in ("test/part-0", "packed"):
        command = f"head -50 | {sys.executable} {generator}"
        there = sf.open_reader(f"{URI}/{what}", CRITEO, pipe_command=command)
        assert np.array_equal(samples(there), samples(sf.open_reader(folder / "test" / "part-0", CRITEO))[:50])


def test_reads_that_fail_are_tried_again(
    held: Place, folder: Path, at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    reader = sf.open_reader(f"{URI}/test", CRITEO, batch_size=100)
    caplog.set_level(logging.WARNING)
    held.failures = 3
    found = samples(reader)
    assert np.array_equal(found, samples(sf.open_reader(folder / "test", CRITEO)))
    assert held.failures == 0
    assert "connection reset" in caplog.text
    assert "second line" not in caplog.text
    held.failures = 50
    with pytest.raises(DataError, match=r"cannot be read: connection reset during info$"):
        sf.list_files(f"{URI}/test")


def test_what_is_not_there_is_not_tried_again(held: Place) -> None:
    with pytest.raises(DataError, match="part-9: no such file or folder"):
        sf.list_files(f"{URI}/test/part-9")
    assert held.calls.count("info") <= 2


def test_large_files_are_read_in_large_pieces(held: Place, tmp_path: Path, folder: Path) -> None:
    line = (folder / "test" / "part-0").read_bytes().splitlines(keepends=True)[0]
    (folder / "large").mkdir()
    (folder / "large" / "part-0").write_bytes(line * 50_000)
    size = (folder / "large" / "part-0").stat().st_size
    reader = sf.open_reader(f"{URI}/large", CRITEO, batch_size=10_000)
    held.calls.clear()
    assert len(samples(reader)) == 50_000
    assert held.calls.count("read") < 4 + 2 * size / remote.BUFFER


def test_the_schema_beside_it(held: Place, folder: Path) -> None:
    wanted = sf.Schema.load(folder / "schema.json")
    for path in ("train", "train/part-0", "train/part-*", "schema.json"):
        assert sf.schema_beside(f"{URI}/{path}") == wanted
    (folder / "schema.json").unlink()
    assert sf.schema_beside(f"{URI}/train") == CRITEO


def test_data_show(held: Place, folder: Path, cli) -> None:
    there = cli("data", "show", f"{URI}/test/part-0", "--rows", 3)
    here = cli("data", "show", folder / "test" / "part-0", "--rows", 3)
    assert there.exit_code == 0, there.output
    assert len(there.stdout.splitlines()) == 3
    assert there.stdout == here.stdout
    assert cli("data", "show", f"file://{folder}/test/part-0", "--rows", 3).stdout == here.stdout
    missing = cli("data", "show", f"{URI}/test/part-9")
    assert missing.exit_code == 1
    assert "no such file or folder" in missing.output + missing.stderr


def test_hdfs_without_java_is_one_line() -> None:
    with pytest.raises(DataError) as caught:
        sf.list_files("hdfs://127.0.0.1:9000/data")
    assert "JAVA_HOME" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises(DataError, match=r"cannot open 'ftp://there/data': .*give a local path or a URI such as s3://"):
        sf.list_files("ftp://there/data")


def test_hdfs_config_names_the_place_of_plain_paths() -> None:
    dataset = sf.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_filelist(["/user/me/part-0", "hdfs:/user/me/part 1", "s3://other/part-2"])
    dataset.set_hdfs_config("hdfs://namenode:9000", "me,secret")
    assert dataset.files == [
        "hdfs://me@namenode:9000/user/me/part-0",
        "hdfs://me@namenode:9000/user/me/part%201",
        "s3://other/part-2",
    ]
    dataset.set_hdfs_config("hdfs://namenode:9000", "")
    assert dataset.files[0] == "hdfs://namenode:9000/user/me/part-0"
    dataset.set_filelist(["part-0"])
    with pytest.raises(ConfigError, match="part-0: with set_hdfs_config, files are paths there"):
        assert dataset.files
    for name, ugi in (("afs://there:9902", "me,secret"), ("hdfs://", "me"), (None, "me"), ("hdfs://there", None)):
        with pytest.raises(ConfigError, match="set_hdfs_config"):
            dataset.set_hdfs_config(name, ugi)


def test_s3(s3: S3, folder: Path) -> None:
    s3.put_folder(folder, "data")
    files = sf.list_files(s3.uri("data/train"))
    assert [remote.base_name(name) for name in files] == ["part-0", "part-1", "part-2"]
    assert sf.schema_beside(s3.uri("data/train")) == sf.Schema.load(folder / "schema.json")
    whole = samples(sf.open_reader(folder / "test" / "part-0", CRITEO))
    for what in ("test/part-0", "packed", "columns"):
        assert np.array_equal(samples(sf.open_reader(s3.uri(f"data/{what}"), CRITEO)), whole)
    shares = [split_files([s3.uri("data/test/part-0")], index, 2) for index in range(2)]
    read = [samples(sf.open_reader(share, CRITEO)) for share in shares]
    assert np.array_equal(in_any_order(np.concatenate(read)), in_any_order(whole))
    with pytest.raises(DataError, match="no such file or folder"):
        sf.list_files(s3.uri("data/nothing"))


@pytest.mark.slow
def test_training_and_scoring_from_s3(s3: S3, clicks: Path, cli: object, tmp_path: Path) -> None:
    s3.put_folder(clicks, "whole")
    small = ("--hidden", "8", "--embedding-size", "4", "--batch-size", "500", "--threads", "1", "--json")
    said = {}
    for where, data in {"there": s3.uri("whole"), "here": str(clicks)}.items():
        train, test = (
            data.replace("whole?", f"whole/{part}?") if "?" in data else f"{data}/{part}" for part in ("train", "test")
        )
        done = cli("train", "--data", train, "--test-data", test, "--save", tmp_path / where, *small)  # type: ignore[operator]
        assert done.exit_code == 0, done.output
        said[where] = json.loads(done.stdout.splitlines()[-1])
        scored = cli("infer", tmp_path / where, "--data", test, "--json")  # type: ignore[operator]
        assert scored.exit_code == 0, scored.output
        assert json.loads(scored.stdout.splitlines()[-1])["auc"] == pytest.approx(said[where]["test_auc"], abs=1e-9)
    assert said["there"]["test_auc"] == said["here"]["test_auc"]
