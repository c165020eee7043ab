"""manifest.json: its exact bytes, and every way it can be wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builders import CREATED, LAYOUT, Rule, Spec, save
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.checkpoint import (
    BlockInfo,
    Checkpoint,
    FileEntry,
    Manifest,
    Partition,
    TableInfo,
    begin,
    commit,
    file_entry,
    parse,
)
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.initializer import Normal
from sparsefleet.core.inputs import Inputs

GOLDEN = """{
 "format": "sparsefleet-checkpoint",
 "version": 3,
 "sparsefleet": "0.1.0",
 "created": "2026-01-31T12:00:00.000000Z",
 "step": 1234,
 "schema": null,
 "inputs": {
  "format": "pipe",
  "pipe_command": "python generator.py",
  "hash_seed": "0",
  "layout": [
   [
    "user",
    "sparse"
   ],
   [
    "label",
    "label"
   ]
  ],
  "slots": {
   "user": "ready"
  },
  "dense": {}
 },
 "model": {
  "name": "größer"
 },
 "tables": [
  {
   "name": "T",
   "dim": 3,
   "rule": {
    "name": "adam",
    "learning_rate": 0.1
   },
   "state_width": 6,
   "initializer": {
    "name": "Uniform",
    "low": -0.01,
    "high": 0.01
   },
   "seed": 5,
   "step": 77
  }
 ],
 "blocks": [
  {
   "name": "model",
   "size": 6,
   "layout": [
    [
     "w",
     [
      3,
      2
     ]
    ]
   ],
   "rule": {
    "name": "sgd",
    "learning_rate": 0.1
   },
   "state_width": 0,
   "step": 77
  }
 ],
 "files": [
  {
   "path": "sparse/T/part-00000-000.parquet",
   "bytes": 1000,
   "checksum": "crc32:0123abcd",
   "kind": "sparse",
   "of": "T",
   "rows": 10,
   "shard": 0
  },
  {
   "path": "dense/model-00000.safetensors",
   "bytes": 100,
   "checksum": "crc32:00000000",
   "kind": "dense",
   "of": "model",
   "start": 0,
   "stop": 6
  },
  {
   "path": "buffers.safetensors",
   "bytes": 90,
   "checksum": "crc32:ffffffff",
   "kind": "buffers"
  }
 ],
 "positions": {
  "0": {
   "unit": 3
  }
 },
 "extra": {},
 "partition": {
  "name": "murmur3-high32",
  "servers": 1
 }
}
"""

MANIFEST = Manifest(
    step=1234,
    tables=(TableInfo("T", 3, Rule().to_dict(), 6, {"name": "Uniform", "low": -0.01, "high": 0.01}, 5, 77),),
    blocks=(BlockInfo("model", 6, (("w", (3, 2)),), Rule("sgd", 0).to_dict(), 0, 77),),
    files=(
        FileEntry("sparse/T/part-00000-000.parquet", 1000, "crc32:0123abcd", "sparse", of="T", rows=10, shard=0),
        FileEntry("dense/model-00000.safetensors", 100, "crc32:00000000", "dense", of="model", start=0, stop=6),
        FileEntry("buffers.safetensors", 90, "crc32:ffffffff", "buffers"),
    ),
    inputs=Inputs(
        "pipe", {"user": "ready"}, {}, "python generator.py", "0", (("user", "sparse"), ("label", "label"))
    ).to_dict(),
    model={"name": "größer"},
    positions={"0": {"unit": 3}},
    partition=Partition("murmur3-high32", 1),
    created=CREATED,
    sparsefleet="0.1.0",
)


def test_golden_bytes_are_written() -> None:
    assert MANIFEST.to_json().decode() == GOLDEN


def test_golden_bytes_are_read() -> None:
    assert parse.manifest(GOLDEN.encode(), "golden") == MANIFEST


def test_a_manifest_of_version_2_knows_nothing_of_inputs() -> None:
    old = {**json.loads(GOLDEN), "version": 2}
    del old["inputs"]
    found = parse.manifest(json.dumps(old).encode(), "old")
    assert (found.version, found.inputs, found.partition) == (2, None, MANIFEST.partition)
    assert json.loads(found.to_json()) == old
    with pytest.raises(CheckpointError, match="unknown fields 'inputs'"):
        parse.manifest(json.dumps({**old, "inputs": None}).encode(), "old")


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    document = json.loads(GOLDEN)
    change(document)
    return json.dumps(document).encode()


def put(*way: Any) -> bytes:
    """The golden manifest with one value replaced: put("tables", 0, "dim", -1)."""

    def change(document: Any) -> None:
        for step in way[:-2]:
            document = document[step]
        document[way[-2]] = way[-1]

    return changed(change)


def delta(**base: Any) -> bytes:
    """The golden manifest as one of a delta, with some of `base` replaced."""
    good = {"name": "step-00001000", "checksum": "crc32:00000000", "rows": {"T": 1}}
    return changed(lambda document: document.update(version=4, base={**good, **base}))


HOSTILE = {
    "list": (b"[]", "must be a JSON object, not a list"),
    "empty": (b"", "not a JSON document"),
    "text": (b"hello", "not a JSON document"),
    "not utf-8": (b'{"a": "\xff"}', "not a JSON document"),
    "truncated": (GOLDEN.encode()[:-30], "not a JSON document"),
    "nan": (GOLDEN.replace('"extra": {}', '"extra": {"a": NaN}').encode(), "NaN is not JSON"),
    "deep": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "not a JSON document"),
    "key twice": (GOLDEN.replace('"step": 1234,', '"step": 1, "step": 1234,').encode(), "a key stands twice"),
    "huge number": (GOLDEN.replace("1234", "9" * 5000).encode(), "not a JSON document"),
    "huge": (b" " * ((64 << 20) + 1), "67108865 bytes; a manifest has at most 67108864"),
    "other format": (put("format", "onnx"), "format is 'onnx', not 'sparsefleet-checkpoint'"),
    "no format": (changed(lambda d: d.pop("format")), "field 'format' is missing"),
    "newer": (put("version", 5), "checkpoint version 5; this release reads versions 1 to 4"),
    "delta": (put("version", 4), "field 'base' is missing"),
    "base of a whole one": (put("base", None), "unknown fields 'base'"),
    "base elsewhere": (delta(name="../T"), "base: field 'name' is '../T': it names files"),
    "base without a checksum": (delta(checksum="1"), "base: field 'checksum' is '1'"),
    "base of other tables": (delta(rows={}), "base.rows must count the rows of the tables T; it has none"),
    "base of no rows": (delta(rows={"T": -1}), "base: rows: field 'T' is -1; allowed are 0 to"),
    "version 1.0": (put("version", 1.0), "checkpoint version 1.0; this release reads"),
    "fields of a newer version": (put("version", 1), "unknown fields 'shard'"),
    "inputs of no kind": (put("inputs", {"format": "pipe"}), "inputs: field 'pipe_command' is missing"),
    "no shard": (changed(lambda d: d["files"][0].pop("shard")), "files[0]: field 'shard' is missing"),
    "a shard beyond": (put("files", 0, "shard", 1), "is of shard 1; the partition says that there are 1"),
    "a shard missing": (put("partition", "servers", 2), "table 'T' has no file of shard 1; the partition says"),
    "no partition": (changed(lambda d: d.pop("partition")), "field 'partition' is missing"),
    "partition of text": (put("partition", "all"), "partition: must be a JSON object, not text"),
    "no servers": (put("partition", "servers", 0), "partition: field 'servers' is 0; allowed are 1 to 100000"),
    "surplus in partition": (put("partition", "more", 0), "partition: unknown fields 'more'"),
    "version true": (put("version", True), "checkpoint version True"),
    "no step": (changed(lambda d: d.pop("step")), "field 'step' is missing"),
    "negative step": (put("step", -1), "field 'step' is -1; allowed are 0 to"),
    "step of text": (put("step", "1"), "field 'step' must be a whole number, not text"),
    "unknown field": (put("surplus", 1), "unknown fields 'surplus'"),
    "schema list": (put("schema", []), "field 'schema' must be a JSON object or null, not a list"),
    "extra list": (put("extra", []), "field 'extra' must be a JSON object, not a list"),
    "created": (put("created", "yesterday"), "field 'created' is 'yesterday'"),
    "tables": (put("tables", {}), "field 'tables' must be a list, not an object"),
    "table": (put("tables", 0, 5), "tables[0]: must be a JSON object, not a number"),
    "dim 0": (put("tables", 0, "dim", 0), "tables[0]: field 'dim' is 0; allowed are 1 to 65536"),
    "absurd dim": (put("tables", 0, "dim", 10**9), "field 'dim' is 1000000000"),
    "table name": (put("tables", 0, "name", "../T"), "field 'name' is '../T': it names files"),
    "rule": (put("tables", 0, "rule", {}), "field 'rule' must hold the update rule's name"),
    "table twice": (changed(lambda d: d["tables"].append(d["tables"][0])), "table 'T' is listed twice"),
    "parent path": (put("files", 0, "path", "../../etc/passwd"), "leads out of the checkpoint's directory"),
    "hidden parent": (put("files", 0, "path", "sparse/../../x"), "leads out of the checkpoint's directory"),
    "absolute path": (put("files", 0, "path", "/etc/passwd"), "leads out of the checkpoint's directory"),
    "dot path": (put("files", 0, "path", "./a"), "not a plain relative path"),
    "double slash": (put("files", 0, "path", "a//b"), "not a plain relative path"),
    "backslash": (put("files", 0, "path", "..\\a"), "not a plain relative path"),
    "nul": (put("files", 0, "path", "a\0b"), "not a plain relative path"),
    "surrogate": (put("files", 0, "path", "a\ud800b"), "not a plain relative path"),
    "empty path": (put("files", 0, "path", ""), "not a plain relative path"),
    "long path": (put("files", 0, "path", "a" * 2000), "has 2000 characters; 1000 are allowed"),
    "itself": (put("files", 0, "path", "manifest.json"), "the manifest cannot list itself"),
    "file twice": (put("files", 2, "path", "dense/model-00000.safetensors"), "is listed twice"),
    "absurd size": (
        put("files", 0, "bytes", 10**30),
        "field 'bytes' is 1000000000000000000000000000000; allowed",
    ),
    "size true": (put("files", 0, "bytes", True), "field 'bytes' must be a whole number, not a truth value"),
    "checksum": (put("files", 0, "checksum", "md5:00"), "wanted is 'crc32:' and 8 hexadecimal digits"),
    "kind": (
        put("files", 0, "kind", "code"),
        "field 'kind' is 'code'; allowed are sparse, dense and buffers",
    ),
    "owner": (put("files", 0, "of", "U"), "belongs to table 'U', which is not listed"),
    "block owner": (put("files", 1, "of", "U"), "belongs to block 'U', which is not listed"),
    "rows missing": (changed(lambda d: d["files"][0].pop("rows")), "files[0]: field 'rows' is missing"),
    "gap": (put("files", 1, "start", 1), "holds 1 to 6 where 0 should follow"),
    "too short": (put("files", 1, "stop", 5), "hold 5 of its 6 values"),
    "too long": (put("files", 1, "stop", 7), "must cover 0 to 6 once"),
    "backwards": (put("files", 1, "stop", 0), "hold 0 of its 6 values"),
    "more than its bytes": (put("files", 1, "bytes", 23), "24 bytes, in a file of 23"),
    "layout": (put("blocks", 0, "layout", [["w", [3, 3]]]), "have 9 values in all, size says 6"),
    "layout form": (put("blocks", 0, "layout", [{"w": 3}]), "wanted is [name, shape]"),
    "layout shape": (put("blocks", 0, "layout", [["w", [-3, -2]]]), "is not the shape of a parameter"),
    "layout twice": (put("blocks", 0, "layout", [["w", [3]], ["w", [3]]]), "names a parameter twice"),
    "absurd block": (put("blocks", 0, "size", 2**50), "field 'size' is 1125899906842624"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_manifest_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    data, reason = HOSTILE[case]
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=re.escape(reason)) as caught:
        Checkpoint.open(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.text(), s),
    )
)
@settings(max_examples=100, deadline=None)
def test_any_json_is_refused_without_surprise(document: Any) -> None:
    with pytest.raises(CheckpointError):
        parse.manifest(json.dumps(document).encode(), "somewhere")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_damage_to_the_manifest_is_an_error_or_harmless(data: st.DataObject) -> None:
    golden = bytearray(GOLDEN.encode())
    golden[data.draw(st.integers(0, len(golden) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CheckpointError):
        parse.manifest(bytes(golden), "somewhere")


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*/absent: there is no such directory"):
        Checkpoint.open(tmp_path / "absent")


def test_folder_of_checkpoints_is_not_one_itself(tmp_path: Path) -> None:
    save(tmp_path / "step-00000001")
    with pytest.raises(CheckpointError, match="it is a folder of 1 checkpoints: open one of them"):
        Checkpoint.open(tmp_path)


def test_manifest_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    save(tmp_path / "c", step=1)
    with pytest.raises(CheckpointError, match="plain JSON data without NaN"):
        save(tmp_path / "c", step=2, extra={"loss": float("nan")})
    with pytest.raises(CheckpointError, match="plain JSON data"):
        save(tmp_path / "c", step=2, extra={"array": np.zeros(3)})
    with pytest.raises(CheckpointError, match="the manifest to be written: field 'step' is -1"):
        save(tmp_path / "c", step=-1)
    with begin(tmp_path / "c") as draft, pytest.raises(CheckpointError, match="hold 0 of its 17 values"):
        commit(draft, Manifest(step=2, blocks=(BlockInfo("model", 17, LAYOUT, {"name": "sgd"}, 0),)))
    assert Checkpoint.open(tmp_path / "c").manifest.step == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_commit_misses_files_that_were_written_elsewhere(tmp_path: Path) -> None:
    entry = FileEntry("sparse/T/part-00001-000.parquet", 1000, "crc32:00000000", "sparse", of="T", rows=1)
    with (
        begin(tmp_path / "c") as draft,
        pytest.raises(CheckpointError, match=r"missing where 1000 bytes .* shared filesystem"),
    ):
        commit(draft, Manifest(step=2, files=(entry,)))


def test_file_entries_travel_as_plain_data() -> None:
    for entry in MANIFEST.files:
        assert file_entry(json.loads(json.dumps(entry.to_dict())), "reply") == entry
    with pytest.raises(CheckpointError, match=r"reply of server 1: field 'path' is '\.\./x'"):
        file_entry({**MANIFEST.files[0].to_dict(), "path": "../x"}, "reply of server 1")


def test_table_info_of_a_spec() -> None:
    class Full(Spec):
        initializer = Normal(0.0, 0.5)
        seed = 9

    info = TableInfo.of(Full(), step=4)  # type: ignore[arg-type]
    assert (info.name, info.dim, info.state_width, info.seed, info.step) == ("T", 3, 6, 9, 4)
    assert info.initializer == {"name": "Normal", "mean": 0.0, "std": 0.5}
    assert TableInfo.of(Full(), step=4, drop_state=True).state_width == 0  # type: ignore[arg-type]
    block = BlockInfo.of("model", LAYOUT, Rule(), 4)  # type: ignore[arg-type]
    assert (block.size, block.state_width, block.layout) == (17, 2, LAYOUT)
