"""libsvm and libffm: what a line means, to the native parser and to plain Python; files cut, packed, resumed."""

from __future__ import annotations

import gzip
import re
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.data.formats import guess_format
from sparsefleet.data.formats.base import BadSamples, Format, Unit
from sparsefleet.data.formats.libffm import LibffmFormat
from sparsefleet.data.formats.libsvm import LibsvmFormat
from sparsefleet.kernels import records as native
from sparsefleet.kernels.record_types import RecordColumns
from sparsefleet.kernels.reference import records as twin
from sparsefleet.kernels.text_types import Block, Reason
from sparsefleet.serving.samples import SampleParser

SVM = Schema(
    dense=(DenseFeature("price", 1.0, 2.0, column="7", missing=3.0),),
    slots=(Slot("features", keys=True), Slot("range", column="8", buckets=(0.0, 1.0))),
    sparse_feature_dim=0,
    group="qid",
)
FFM = Schema(
    dense=(DenseFeature("price", column="7:value"),),
    slots=(Slot("user", column="1"), Slot("ids", column="7", keys=True), Slot("cut", column="2", keys=True, first=2)),
    sparse_feature_dim=0,
)
LINES = {
    "libsvm": b"+1 qid:3 7:2.5 12:1 3:1\n-1 12:1 8:-4\n0 7:0 9:0 10:1.0 # a comment\r\n1\n",
    "libffm": b"1 1:5:1 7:9:0.5 2:1:1 2:2:1 2:3:1\n0 1:5:1 1:6:1\n1 9:9:0.3 2:8:0\n",
}
FORMATS: dict[str, Any] = {"libsvm": (LibsvmFormat, SVM), "libffm": (LibffmFormat, FFM)}


def read(format: Format, unit: Unit, policy: str = "error", resume: Mark | None = None) -> Batch:
    return Batch.concat([chunk.batch for chunk in format.read(unit, BadSamples(policy), resume)])


def bags(batch: Batch) -> list[list[int]]:
    ends = batch.offsets.tolist()
    return [batch.keys[a:b].tolist() for a, b in pairwise(ends)]


def key(slot: str, text: str) -> int:
    return xxh64(f"{slot}\x1f{text}".encode())


def test_what_a_line_of_libsvm_means(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(LINES["libsvm"])
    assert guess_format(str(tmp_path / "f"), SVM) == "libsvm"
    batch = read(LibsvmFormat(SVM), Unit(str(tmp_path / "f")))
    assert batch.labels.tolist() == [1, 0, 0, 1]
    assert batch.dense[:, 0].tolist() == [0.75, 1.0, -0.5, 1.0]  # missing: (3 - 1) / 2
    assert bags(batch) == [[12, 3], [], [12], [key("range", "0")], [10], [], [], []]
    assert batch.groups is not None
    assert batch.groups.tolist() == [xxh64(b"3"), *[xxh64(b"")] * 3]


def test_what_a_line_of_libffm_means(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(LINES["libffm"])
    assert guess_format(str(tmp_path / "f"), FFM) == "libffm"
    batch = read(LibffmFormat(FFM), Unit(str(tmp_path / "f")))
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.dense[:, 0].tolist() == [0.5, 0, 0]
    five, six = key("user", "5"), key("user", "6")
    assert bags(batch) == [[five], [9], [1, 2], [five, six], [], [], [], [], []]


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("libsvm", "1 12:0.5", "column 'features': value of a feature is not 1; a slot holds no weights: take it as a"),
        ("libsvm", "2 12:1", "label is not 0 or 1, nor -1"),
        ("libsvm", "12:1", "label is missing"),
        ("libsvm", "1 12", "not a feature and its value"),
        ("libsvm", "1 x:1", "feature key is not a whole number: features have whole numbers"),
        ("libsvm", "1 -3:1", "negative feature key"),
        ("libsvm", f"1 {2**64}:1", "feature key above 64 bits"),
        ("libsvm", "1 12:x", "not a number"),
        ("libsvm", "1 7:1 7:2", "column '7': field stands twice"),
        ("libsvm", "# nothing", "empty line"),
        ("libffm", "1 1:5:2", "column '1': value of a feature is not 1"),
        ("libffm", "1 1:5", "not a feature and its value"),
        ("libffm", "1 7:1:2 7:2:1", "column '7:value': field stands twice"),
    ],
)
def test_what_is_refused(name: str, line: str, said: str, tmp_path: Path) -> None:
    kind, schema = FORMATS[name]
    (tmp_path / "f").write_bytes(LINES[name] + line.encode() + b"\n" + LINES[name])
    good = LINES[name].count(b"\n")
    with pytest.raises(BadRowError, match=re.escape(said)) as error:
        read(kind(schema), Unit(str(tmp_path / "f")))
    assert f"line {good + 1}" in str(error.value)
    bad = BadSamples("skip")
    assert sum(len(chunk.batch) for chunk in kind(schema).read(Unit(str(tmp_path / "f")), bad)) == 2 * good
    assert sum(bad.counts.values()) == 1


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("libsvm", {"slots": (Slot("user"),)}, "the columns of such files are 'features' (the indices"),
        ("libsvm", {"weight": "w"}, "no column 'w'"),
        ("libffm", {"group": "qid"}, "no column 'qid'"),
        ("libffm", {"slots": (Slot("features"),)}, "'3:value' (the value of field 3)"),
    ],
)
def test_schemas_that_do_not_fit(name: str, change: dict[str, Any], said: str) -> None:
    kind, schema = FORMATS[name]
    fields = {"dense": schema.dense, "slots": schema.slots, "group": schema.group, **change}
    with pytest.raises(ConfigError) as error:
        kind(Schema(**fields))
    assert said in str(error.value) or ("qid" in said and "'qid'" in str(error.value))


@pytest.mark.parametrize("name", ["libsvm", "libffm"])
def test_cut_packed_resumed_and_in_a_request_the_same(name: str, tmp_path: Path) -> None:
    kind, schema = FORMATS[name]
    data = LINES[name] * 300
    plain, packed, zstd = (str(tmp_path / f"f{end}") for end in ("", ".gz", ".zst"))
    Path(plain).write_bytes(data)
    Path(packed).write_bytes(gzip.compress(data))
    Path(zstd).write_bytes(pa.compress(data, "zstd", asbytes=True))
    format = kind(schema)
    whole = read(format, Unit(plain))
    for file in (packed, zstd):
        assert read(format, Unit(file)).keys.tolist() == whole.keys.tolist()
    units = format.plan([plain], 5)
    assert len(units) == 5
    parts = [read(format, unit) for unit in units]
    assert list(chain(*(bags(part) for part in parts))) == bags(whole)
    rest = read(format, Unit(plain), resume=Mark(0, 2, data.index(b"\n", data.index(b"\n") + 1) + 1))
    assert bags(rest) == bags(whole)[2 * len(schema.slots) :]
    raw = list(format.raw_samples(plain))[:7]
    asked = SampleParser(schema).samples(raw)
    np.testing.assert_array_equal(asked.dense, whole.dense[:7])
    assert bags(asked) == bags(whole)[: 7 * len(schema.slots)]


WORDS = {
    "libsvm": st.builds(
        "{}:{}".format,
        st.one_of(st.integers(0, 12), st.sampled_from(["", "x", "-1", "007", "qid", str(2**64), str(2**64 - 1)])),
        st.one_of(
            st.sampled_from(["1", "1", "1", "0", "1.0", "+1", "-0", "", "x", "1e400"]), st.floats(-9, 9).map(str)
        ),
    ),
    "libffm": st.builds(
        "{}:{}:{}".format,
        st.one_of(st.integers(0, 9), st.sampled_from(["", "x", "01"])),
        st.one_of(st.integers(0, 20), st.sampled_from(["-2", "04", ""])),
        st.one_of(st.sampled_from(["1", "1", "0", "1.00", "x"]), st.floats(-9, 9).map(str)),
    ),
}


@pytest.mark.parametrize("name", ["libsvm", "libffm"])
def test_native_and_twin_agree_with_each_other_and_with_plain_python(name: str) -> None:
    kind, schema = FORMATS[name]
    format = kind(schema)
    plan = format.record_plan()
    places = format._places(plan)
    label = st.sampled_from(["1", "0", "-1", "+1", "1.0", "-1.0", "2", "", "x"])
    odd = st.sampled_from(["", " ", "\t", "#", "# x", "é", "1:1:1:1", "word"])
    line = st.builds(
        lambda first, words, last, gap: gap.join([first, *words, last]),
        label,
        st.lists(WORDS[name], max_size=4),
        odd,
        st.sampled_from([" ", "  ", "\t"]),
    )

    @settings(max_examples=150, deadline=None)
    @given(st.lists(line, min_size=1, max_size=8))
    def check(lines: list[str]) -> None:
        data = "\n".join(lines).encode() + b"\n"
        made = []
        for parsers in (native, twin):
            out = RecordColumns.for_plan(plan, 20, 2000)
            block = Block(np.frombuffer(data, np.uint8).copy(), 0, len(data), len(data) + 1, final=True, skip=True)
            parsers.SvmParser(plan, places).parse(block, out)
            made.append(out)
        one, other = made
        assert one.filled == other.filled
        assert one.counts.tolist() == other.counts.tolist()
        n = one.filled
        np.testing.assert_array_equal(one.labels[:n], other.labels[:n])
        np.testing.assert_allclose(one.dense[:n], other.dense[:n], rtol=1e-6)
        assert one.offsets is not None
        assert other.offsets is not None
        ends = one.offsets[: n * len(schema.slots) + 1]
        np.testing.assert_array_equal(ends, other.offsets[: len(ends)])
        np.testing.assert_array_equal(one.keys[: ends[-1]], other.keys[: ends[-1]])
        # Plain Python on the lines that were fine: what stands in the text is what is in the sample.
        fine = [lines[number - 1] for number in one.lines[:n].tolist()]
        slot = schema.slot_names.index("features" if name == "libsvm" else "ids")
        for sample, text in enumerate(fine):
            words = [word.split(":") for word in text.partition("#")[0].split() if ":" in word]
            if name == "libsvm":
                mine = [int(w[0]) for w in words if w[0] not in ("qid", "7", "8", "007") and float(w[1])]
            else:
                mine = [int(w[1]) for w in words if int(w[0]) == 7 and float(w[2])]
            at = sample * len(schema.slots) + slot
            assert one.keys[ends[at] : ends[at + 1]].tolist() == mine

    check()


def test_reasons_have_their_numbers() -> None:
    assert (Reason.PAIR, Reason.NOT_ONE) == (25, 26)
