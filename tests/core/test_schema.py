"""The schema file, and the reference row: dense values as printed there, keys the same in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import CRITEO, CsvDialect, DenseFeature, Label, Schema, Slot, criteo_schema
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.stable_hash import stable_hash

RAW = (
    "0,1,1,5,0,1382,4,15,2,181,1,2,,2,68fd1e64,80e26c9b,fb936136,7b4723c4,25c83c98,7e0ccccf,de7995b8,1f89b562,a73ee510,"
    "a8cd5504,b2cb9c98,37c9c164,2824a5f6,1adce6ef,8ba8b39a,891b62e7,e5ba7672,f54016b9,21ddcdc9,b1252a9d,07b5194c,,"
    "3a171ecb,c5c50484,e8b83407,9727dd16"
)
ROW = RAW.replace(",", "\t")
CATEGORIES = ROW.split("\t")[14:]
DENSE = "0.05 0.00663349917081 0.05 0.0 0.02159375 0.008 0.15 0.04 0.362 0.1 0.2 0.0 0.04"


def read(tmp_path: Path, schema: Schema = CRITEO):
    file = tmp_path / "part-0"
    file.write_text(ROW + "\n")
    (chunk,) = CriteoFormat(schema).read(Unit(str(file)), BadSamples())
    return chunk.batch


def test_the_reference_row_gives_the_dense_values_that_the_reference_prints(tmp_path):
    batch = read(tmp_path)
    assert len(CATEGORIES) == 26
    assert CATEGORIES[21] == ""  # a blank category is hashed like any other
    assert batch.labels.tolist() == [0.0]
    assert batch.dense[0].tolist() == [float(np.float32(value)) for value in DENSE.split()]


def test_keys_are_those_of_the_python_path(tmp_path):
    hashed = [stable_hash(str(14 + index) + value) for index, value in enumerate(CATEGORIES)]
    assert read(tmp_path).keys.tolist() == [key % 1000001 for key in hashed]
    assert read(tmp_path, criteo_schema(0)).keys.tolist() == hashed


def test_keys_are_pinned_for_ever(tmp_path):
    import xxhash

    whole = read(tmp_path, criteo_schema(0))
    assert whole.keys.tolist()[0] == xxhash.xxh64_intdigest(b"1468fd1e64", 0)
    assert read(tmp_path).keys.tolist()[:2] == [
        xxhash.xxh64_intdigest(b"1468fd1e64", 0) % 1000001,
        xxhash.xxh64_intdigest(b"1580e26c9b", 0) % 1000001,
    ]


def test_keys_are_the_same_in_every_process(tmp_path):
    (tmp_path / "part-0").write_text(ROW + "\n")
    code = (
        "import sys\n"
        "from sparsefleet.core.schema import CRITEO\n"
        "from sparsefleet.data.formats.criteo import CriteoFormat\n"
        "from sparsefleet.data.formats.base import BadSamples, Unit\n"
        "(chunk,) = CriteoFormat(CRITEO).read(Unit(sys.argv[1]), BadSamples())\n"
        "print(hash('salted'), *chunk.batch.keys)\n"
    )
    printed = []
    for salt in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", code, str(tmp_path / "part-0")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
        printed.append(done.stdout.split())
    assert printed[0][0] != printed[1][0]  # Python's own hash is salted
    assert printed[0][1:] == printed[1][1:]
    assert [int(key) for key in printed[0][1:]] == read(tmp_path).keys.tolist()


# -- the file ----------------------------------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=8)


@given(
    st.lists(names, unique=True, min_size=3, max_size=8),
    st.integers(0, 2**40),
    st.integers(0, 2**64 - 1),
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
)
def test_round_trip(unique, dim, seed, low, diff):
    label, feature, *slots = unique
    schema = Schema(
        dense=(DenseFeature(feature, low, diff),),
        slots=tuple(Slot(name, None if index % 2 else "p") for index, name in enumerate(slots)),
        label=label,
        sparse_feature_dim=dim,
        hash_seed=seed,
    )
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_a_file_and_back(tmp_path):
    CRITEO.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json") == CRITEO
    assert len(CRITEO.dense_names) == 13
    assert len(CRITEO.slot_names) == 26


HOSTILE = [
    ({"format": "parquet"}, "not a sparsefleet-schema document"),
    ({"version": 3}, "schema version 3; this release reads versions 1 and 2"),
    ({"version": None}, "schema version None"),
    ({"dense": None}, "missing, surplus or mistyped"),
    ({"dense": [{"name": "a", "mean": 3}]}, "missing, surplus or mistyped"),
    ({"dense": [{"name": "a", "diff": 0}]}, "diff=0 must be above 0"),
    ({"dense": [{"name": "a", "diff": float("nan")}]}, "diff=nan"),
    ({"dense": [{"name": "a", "diff": float("inf")}]}, "diff=inf"),
    ({"dense": [{"name": "a", "minimum": float("nan")}]}, "minimum=nan"),
    ({"dense": [{"name": "a", "diff": "5"}]}, "mistyped"),
    ({"dense": ["a"]}, "missing, surplus or mistyped"),
    ({"dense": {"a": 1}}, "missing, surplus or mistyped"),
    ({"slots": 5}, "missing, surplus or mistyped"),
    ({"slots": [{}]}, "missing, surplus or mistyped"),
    ({"slots": [{"name": 5}]}, "mistyped"),
    ({"slots": [{"name": "a"}, {"name": "a"}]}, "used twice: a"),
    ({"slots": [{"name": "a", "hash_prefix": 7}]}, "mistyped"),
    ({"label": "C1"}, "used twice: C1"),
    ({"label": None}, "mistyped"),
    ({"sparse_feature_dim": -1}, "sparse_feature_dim=-1"),
    ({"sparse_feature_dim": 1.5}, "mistyped"),
    ({"sparse_feature_dim": "10"}, "mistyped"),
    ({"sparse_feature_dim": 2**64}, "sparse_feature_dim"),
    ({"hash_seed": -1}, "hash_seed=-1 must fit 64 bits"),
    ({"hash_seed": 2**64}, "must fit 64 bits"),
    ({"hash_seed": True}, "mistyped"),
]


@pytest.mark.parametrize(("change", "said"), HOSTILE, ids=[str(change) for change, _ in HOSTILE])
def test_hostile_documents(tmp_path, change, said):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({**CRITEO.to_dict(), **change}))
    with pytest.raises(ConfigError, match=said) as caught:
        Schema.load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"5", b'"x"', b"\xff\xfe\x00", b"[" * 100000])
def test_hostile_files(tmp_path, raw):
    file = tmp_path / "schema.json"
    file.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"schema\.json"):
        Schema.load(file)


@pytest.mark.parametrize("field", ["dense", "slots", "label", "format", "version"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_missing_field(version, field):
    data = {**CRITEO.to_dict(), "version": version}
    del data[field]
    with pytest.raises(ConfigError):
        Schema.from_dict(data)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read schema .*none"):
        Schema.load(tmp_path / "none.json")


# -- version 2 ---------------------------------------------------------------------------------------------------------

FULL = Schema(
    dense=(DenseFeature("price", 0.5, 2.0, clip=(0.0, 100.0), function="log1p", missing=1.0),),
    slots=(
        Slot("user", column="user id"),
        Slot("item", lower=True, length=8, missing="none"),
        Slot("history", split="|", first=20),
        Slot("shop", keys=True),
        Slot("hour", column="ts", derive="hour"),
        Slot("price_range", column="price", buckets=(1.0, 10.0, 100.0)),
        Slot("user_item", cross=("user", "item")),
    ),
    label="click",
    more_labels=(Label("buy", "click"), Label("like")),
    weight="importance",
    group="user id",
    time="ts",
    time_format="milliseconds",
    csv=CsvDialect("\t", header=False, columns=("a", "b")),
)


@pytest.mark.parametrize("schema", [CRITEO, FULL], ids=["Criteo", "everything"])
@pytest.mark.parametrize("name", ["schema.json", "schema.toml"])
def test_both_kinds_of_file_hold_the_same(tmp_path, schema, name):
    schema.save(tmp_path / name)
    assert Schema.load(tmp_path / name) == schema


def test_labels_and_their_conditions():
    assert CRITEO.labels == ("label",)
    assert FULL.labels == ("click", "buy", "like")
    assert FULL.label_conditions == {"buy": "click"}


def test_fields_are_the_columns_that_features_are_made_of():
    assert FULL.fields == ("price", "user id", "item", "history", "shop", "ts")
    assert not FULL.plain
    assert CRITEO.plain


def test_a_document_of_version_1_keeps_its_meaning():
    old = {**CRITEO.to_dict(), "version": 1}
    schema = Schema.from_dict(old)
    assert schema.version == 1
    assert schema.takes_keys(schema.slots[0])
    assert schema.to_dict() == old
    assert not CRITEO.takes_keys(CRITEO.slots[0])
    with pytest.raises(ConfigError, match="version 1 has no"):
        Schema.from_dict({**old, "group": "C1"})


WRONG = [
    ({"name": "a", "split": "||"}, "split='||' must be one printable ASCII character"),
    ({"name": "a", "first": 0}, "first=0 must be a whole number, 1 or above"),
    ({"name": "a", "buckets": [2, 1]}, r"buckets=\[2, 1\] must rise"),
    ({"name": "a", "derive": "minute"}, "derive='minute' is not known; choose hour, weekday, ln2"),
    ({"name": "a", "cross": ["b"]}, "must name two or three slots"),
    ({"name": "a", "cross": ["b", "c"]}, "cross has 'b', which is no slot"),
    ({"name": "a", "keys": True, "lower": True}, "keys are taken as they are"),
    ({"name": "a", "buckets": [1], "lower": True}, "lower is for values of text"),
    ({"name": "a", "keys": True, "derive": "hour"}, "do not go together"),
    ({"name": "a", "column": "label"}, "label 'label' is used as a feature too"),
]


@pytest.mark.parametrize(("slot", "said"), WRONG, ids=[str(slot) for slot, _ in WRONG])
def test_settings_of_a_slot_that_make_no_sense(slot, said):
    with pytest.raises(ConfigError, match=said):
        Schema.from_dict({"format": "sparsefleet-schema", "version": 2, "label": "label", "dense": [], "slots": [slot]})


def test_other_settings_that_make_no_sense():
    with pytest.raises(ConfigError, match="where='sale' must be a label before it"):
        Schema((), (Slot("a"),), more_labels=(Label("buy", "sale"),))
    with pytest.raises(ConfigError, match="give `columns`"):
        CsvDialect(header=False)
    with pytest.raises(ConfigError, match="is not one of"):
        CsvDialect("#")
