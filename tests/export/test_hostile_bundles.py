"""Bundles that are damaged, half copied, mixed up or made to hurt: an error that says so, never a crash."""

import contextlib
import json
import os
import shutil
import struct
import zlib

import onnx
import pytest
from bundle_edits import rewrite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsefleet.core.errors import BundleError
from sparsefleet.export import Bundle
from sparsefleet.export.kernels.bundle_rows import RowType
from sparsefleet.export.rows_file import RowsHeader
from sparsefleet.serving import Predictor
from sparsefleet.serving.source import SourceError

TABLE = "SparseFeatFactors"
ROWS = f"sparse/{TABLE}.rows"


@pytest.fixture
def copy(trained, tmp_path):
    """A bundle of one's own to damage."""
    return shutil.copytree(trained.bundles[0], tmp_path / "b")


def edited(bundle, **changes):
    path = bundle / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(bundle, message, *, full=False):
    with pytest.raises(BundleError, match=message):
        Bundle.open(bundle, full=full)


@pytest.mark.parametrize("path", ["model.onnx", "network.json", "schema.json", ROWS])
def test_files_that_are_missing_or_cut_short(copy, path):
    data = (copy / path).read_bytes()
    (copy / path).write_bytes(data[:-1])
    refused(copy, "bytes; the manifest says .* half copied")
    (copy / path).unlink()
    refused(copy, "No such file")


@pytest.mark.parametrize("path", ["model.onnx", "network.json", "schema.json"])
def test_flipped_bits_in_small_files_are_found_at_once(copy, path):
    data = bytearray((copy / path).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / path).write_bytes(data)
    refused(copy, "damaged: its checksum")


def test_flipped_bits_in_rows_are_found_by_a_full_check(copy):
    data = bytearray((copy / ROWS).read_bytes())
    data[-3] ^= 1
    (copy / ROWS).write_bytes(data)
    Bundle.open(copy)
    refused(copy, "damaged: its checksum", full=True)


def test_keys_out_of_order_are_found_even_with_a_right_checksum(copy):
    first = Bundle.open(copy).tables[TABLE]._layout.keys
    data = bytearray((copy / ROWS).read_bytes())
    data[first : first + 8], data[first + 8 : first + 16] = data[first + 8 : first + 16], data[first : first + 8]
    rewrite(copy, ROWS, bytes(data))
    refused(copy, "not in the order", full=True)


def test_a_directory_that_runs_wild_is_an_error_not_a_crash(copy):
    layout = Bundle.open(copy).tables[TABLE]._layout
    data = bytearray((copy / ROWS).read_bytes())
    data[layout.directory : layout.keys] = b"\xff" * (layout.keys - layout.directory)
    rewrite(copy, ROWS, bytes(data))
    predictor = Predictor(copy)
    with pytest.raises(SourceError, match="directory is damaged"):
        predictor.predict([[0] * 13 + ["x"] * 26])


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"XXXXXXXX", "magic"),
        (8, struct.pack("<I", 2), "version 2; this release reads version 1"),
        (24, struct.pack("<Q", 2**60), "header is damaged"),
        (72, struct.pack("<Q", 1), "header is damaged"),
    ],
)
def test_headers_of_rows_files(copy, offset, value, message):
    data = bytearray((copy / ROWS).read_bytes())
    data[offset : offset + len(value)] = value
    rewrite(copy, ROWS, bytes(data))
    refused(copy, message)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (12, struct.pack("<I", 7), "absurd header: dtype 7"),
        (16, struct.pack("<I", 0), "absurd header"),
        (16, struct.pack("<I", 70000), "absurd header"),
        (20, struct.pack("<I", 4), "do not fit"),
        (24, struct.pack("<Q", 2**63), "absurd header"),
        (24, struct.pack("<Q", 2**47), "do not fit"),
        (40, struct.pack("<I", 40), "do not fit"),
        (56, struct.pack("<Q", 2**64 - 64), "do not fit"),
        (80, bytes(16), "belongs to bundle 0000"),
        (96, bytes(8), "another table"),
        (104, b"\1", "do not fit"),
    ],
)
def test_headers_with_a_right_checksum(copy, offset, value, message):
    data = bytearray((copy / ROWS).read_bytes())
    data[offset : offset + len(value)] = value
    data[124:128] = struct.pack("<I", zlib.crc32(data[:124]))
    rewrite(copy, ROWS, bytes(data))
    refused(copy, message)


def test_an_absurd_size_that_the_whole_header_agrees_on(copy):
    header = RowsHeader.of(RowType.FLOAT32, 4, 2**40, Bundle.open(copy).manifest.id, TABLE)
    rewrite(copy, ROWS, header.to_bytes() + bytes(1000))
    refused(copy, "cut short or half copied")


@pytest.mark.parametrize("path", ["model.onnx", ROWS])
def test_files_of_two_bundles(trained, copy, path):
    shutil.copyfile(trained.bundles[1] / path, copy / path)
    refused(copy, "damaged|belongs to bundle|the manifest says")
    rewrite(copy, path, (trained.bundles[1] / path).read_bytes())
    if path == ROWS:
        refused(copy, "belongs to bundle .* files of two bundles")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 4}, "version 4 of the bundle format; this release reads versions 1 to 3"),
        ({"version": True}, "version True"),
        ({"format": "sparsefleet-checkpoint"}, "no bundle"),
        ({"name": ""}, "'name' is ''"),
        ({"name": 3}, "must be text, not a number"),
        ({"id": "zz"}, "32 hexadecimal"),
        ({"files": {}}, "must be a list"),
        ({"files": []}, "is not listed"),
        ({"inputs": {"format": "pipe"}}, "inputs: field 'pipe_command' is missing"),
        ({"min_seen": -1}, "allowed are 0 to"),
        ({"surplus": 1}, "unknown fields 'surplus'"),
        ({"tables": [{"name": "t"}]}, "'dim' is missing"),
    ],
)
def test_manifests(copy, changes, message):
    edited(copy, **changes)
    refused(copy, message)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/./b", "a\\b", "manifest.json", "x\x00y"])
def test_paths_that_lead_elsewhere(copy, path):
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"].append({"path": path, "bytes": 1, "checksum": "crc32:00000000"})
    edited(copy, files=manifest["files"])
    refused(copy, "leads out|not a plain|cannot list itself")


def test_links_that_lead_elsewhere(copy, trained):
    (copy / "model.onnx").unlink()
    os.symlink(trained.bundles[0] / "model.onnx", copy / "model.onnx")
    refused(copy, "leads out of the bundle")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1, "a": 2}', "a key stands twice"),
        (b"[" * 100_000, "not a JSON document"),
        (b" " * ((16 << 20) + 1), "at most 16777216"),
        (b"\xff\xfe", "not a JSON document"),
        (b"[1]", "must be a JSON object, not a list"),
    ],
)
def test_manifests_that_are_none(copy, content, message):
    (copy / "manifest.json").write_bytes(content)
    refused(copy, message)


def test_a_folder_without_a_manifest(copy, trained):
    (copy / "manifest.json").unlink()
    refused(copy, "holds no manifest.json")
    refused(trained.run, "folder of checkpoints")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda n: n["embeddings"][0].update(slots=["C1", "nope"]), "slot 'nope'"),
        (lambda n: n["embeddings"][0].update(dim=5), "that table's rows have 4 values"),
        (lambda n: n["embeddings"][0].update(table="other"), "no such table"),
        (lambda n: n["embeddings"][0].update(pooling="max"), "allowed are sum, mean"),
        (lambda n: n["embeddings"][0].update(unknown="random"), "allowed are zeros"),
        (lambda n: n["embeddings"][0].update(slots=[]), "at least one slot"),
        (lambda n: n["dense"].update(features=12), "the schema has 13"),
        (lambda n: n.update(version=9), "version 9"),
        (lambda n: n.update(parameters=[["a"]]), "name in the graph"),
    ],
)
def test_descriptions_of_networks(copy, edit, message):
    network = json.loads((copy / "network.json").read_text())
    edit(network)
    rewrite(copy, "network.json", json.dumps(network).encode())
    refused(copy, message)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: s.update(version=3), "schema version 3"),
        (lambda s: s["slots"][0].update(name=7), "name=7 is mistyped"),
        (lambda s: s["dense"][0].update(diff="x"), "mistyped|not a number"),
        (lambda s: s.update(hash_seed="a"), "mistyped|not a number"),
        (lambda s: s["slots"].pop(), "slot 'C26'"),
    ],
)
def test_schemas(copy, edit, message):
    schema = json.loads((copy / "schema.json").read_text())
    edit(schema)
    rewrite(copy, "schema.json", json.dumps(schema).encode())
    refused(copy, message)


def test_graphs_that_do_not_fit(copy, trained):
    rewrite(copy, "model.onnx", b"not onnx")
    with pytest.raises(BundleError, match="ONNX Runtime cannot load it"):
        Predictor(copy)
    model = onnx.load(trained.bundles[0] / "model.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 99
    rewrite(copy, "model.onnx", model.SerializeToString())
    with pytest.raises(BundleError, match=r"its inputs are|cannot load"):
        Predictor(copy)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["manifest.json", "network.json", "schema.json", ROWS]),
    where=st.floats(0, 1, exclude_max=True),
    junk=st.binary(min_size=1, max_size=12),
    cut=st.booleans(),
)
def test_any_damage_is_an_error_or_harmless(trained, tmp_path_factory, path, where, junk, cut):
    """With checksums made to agree, so that what lies behind them is tried too."""
    folder = tmp_path_factory.mktemp("fuzz") / "b"
    shutil.copytree(trained.bundles[0], folder)
    data = bytearray((folder / path).read_bytes())
    start = int(where * (3000 if path == ROWS else len(data)))
    data[start : start + len(junk)] = junk
    if cut:
        del data[start + len(junk) :]
    if path == "manifest.json":
        (folder / path).write_bytes(data)
    else:
        rewrite(folder, path, bytes(data))
    with contextlib.suppress(BundleError):
        predictor = Predictor(Bundle.open(folder))
        names = (*predictor.bundle.schema.dense_names, *predictor.bundle.schema.slot_names)
        assert predictor.predict([dict.fromkeys(names)]).shape == (1,)
    shutil.rmtree(folder)
