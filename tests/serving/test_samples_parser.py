"""Raw rows into batches: the keys and numbers of the file readers, and errors that name the field."""

import json
from dataclasses import replace

import numpy as np
import pytest
from bundle_fixtures import NAMES, SCHEMA
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.batch import Batch
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.open import open_reader
from sparsefleet.data.python_samples import batch_of_samples
from sparsefleet.serving import Predictor
from sparsefleet.serving.samples import MAX_VALUES, RequestError, SampleParser

PARSER = SampleParser(SCHEMA, max_rows=1000)
SMALL = Schema((DenseFeature("age", 10, 5), DenseFeature("x")), (Slot("a"), Slot("b", "77")), sparse_feature_dim=1009)
KEYS = replace(SMALL, slots=(Slot("a", keys=True), Slot("b", "77", keys=True)))
GOOD = {"age": 20, "x": None, "a": "hello", "b": ["p", "q", 12]}


def same(got: Batch, want: Batch) -> None:
    np.testing.assert_array_equal(got.keys, want.keys)
    np.testing.assert_array_equal(got.offsets, want.offsets)
    np.testing.assert_array_equal(got.dense, want.dense)
    assert got.slots == want.slots


def test_rows_are_what_the_native_reader_makes_of_the_file(trained):
    reader = open_reader(str(trained.data / "test"), SCHEMA, batch_size=1000)
    with reader.epoch(1) as epoch:
        (want,) = list(epoch.streams[0])
    same(PARSER.samples(trained.rows), want)
    same(PARSER.samples([list(row.values()) for row in trained.rows]), want)
    as_text = [line.split("\t")[1:] for line in trained.lines]  # numbers as the text of the log line
    same(PARSER.samples(as_text), want)
    same(PARSER.samples([{**row, "label": 1} for row in trained.rows]), want)


def test_context_and_candidates_are_rows_written_shorter(trained):
    shared = NAMES[:20]
    context = {name: trained.rows[0][name] for name in shared}
    candidates = [{name: row[name] for name in NAMES if name not in shared} for row in trained.rows]
    want = PARSER.samples([{**context, **candidate} for candidate in candidates])
    same(PARSER.candidates(context, candidates), want)
    same(PARSER.request({"context": context, "candidates": candidates}), want)
    predictor = Predictor(trained.bundles[0])
    np.testing.assert_array_equal(predictor.predict_candidates(context, candidates), predictor.predict_batch(want))


VALUE = st.one_of(st.text(max_size=12), st.integers(0, 2**64 - 1), st.sampled_from(["", "é"]))
BAG = st.one_of(st.none(), VALUE, st.lists(VALUE, max_size=3))
NUMBER = st.one_of(st.none(), st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6))
ROW = st.fixed_dictionaries({"age": NUMBER, "x": NUMBER, "a": BAG, "b": BAG})


@settings(max_examples=150, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=6), st.sets(st.sampled_from(["age", "x", "a", "b"]), max_size=3))
def test_any_rows_agree_with_the_reader_of_python_samples(rows, shared):
    same(SampleParser(SMALL).samples(rows), batch_of_samples(rows, SMALL))
    context = {name: rows[0][name] for name in sorted(shared)}
    candidates = [{name: value for name, value in row.items() if name not in shared} for row in rows]
    same(
        SampleParser(SMALL).candidates(context, candidates),
        SampleParser(SMALL).samples([{**row, **context} for row in rows]),
    )


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"age": "old"}, "age", "allowed is a number, or null"),
        ({"age": True}, "age", "a truth value True"),
        ({"age": [1]}, "age", "a list"),
        ({"age": 10**400}, "age", "too large for float32"),
        ({"age": float("inf")}, "age", "too large for float32"),
        ({"x": "1e300"}, "x", "too large for float32"),
        ({"x": "1e999"}, "x", "allowed is a number, or null"),
        ({"x": "1e-400"}, "x", "allowed is a number, or null"),
        ({"a": "x\udc80"}, "a", "not valid Unicode: half of a surrogate pair"),
        ({"b": ["p", "\ud800"]}, "b", "not valid Unicode"),
        ({"a": {}}, "a", "allowed is text, a whole number"),
        ({"a": 1.5}, "a", "a number 1.5"),
        ({"a": [["x"]]}, "a", "a list"),
        ({"a": ["x", None]}, "a", "null"),
        ({"a": True}, "a", "truth value"),
        ({"a": "x" * 70000}, "a", "at most 65536"),
        ({"b": ["x"] * (MAX_VALUES + 1)}, "b", f"at most {MAX_VALUES}"),
        ({"c": 1}, "c", "no such field; it has age, x, a, b"),
    ],
)
def test_values_that_do_not_fit(change, field, message):
    for rows in ([GOOD, {**GOOD, **change}], [{**GOOD, "b": []}, {**GOOD, **change}]):
        with pytest.raises(RequestError, match=message) as caught:
            SampleParser(SMALL).samples(rows)
        assert (caught.value.field, caught.value.row) == (field, 1)
        assert f"row 1: field {field!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [([["x"]], "a list within a list, a list ['x']"), ({"k": 1}, "an object {'k': 1}"), ([{"k": 1}], "an object")],
)
def test_what_is_nested_is_told_with_its_row_and_field(value, message):
    transforms = replace(SMALL, slots=(Slot("a", lower=True), Slot("b")))
    with pytest.raises(RequestError) as caught:
        SampleParser(transforms).samples([GOOD, {**GOOD, "a": value}])
    assert f"row 1: field 'a': {message}" in str(caught.value)
    assert (caught.value.field, caught.value.row) == ("a", 1)


def test_a_whole_number_is_hashed_as_its_text():
    for number in (0, 7, -7, 2**64, 10**30):
        same(
            SampleParser(SMALL).samples([{**GOOD, "a": number}]),
            SampleParser(SMALL).samples([{**GOOD, "a": str(number)}]),
        )
        body = json.dumps({"rows": [{**GOOD, "a": number}]}).encode()
        same(SampleParser(SMALL).body(body), SampleParser(SMALL).samples([{**GOOD, "a": number}]))


@pytest.mark.parametrize("schema", [KEYS, replace(SMALL, version=1)], ids=["keys", "version 1"])
def test_ready_made_keys(schema):
    parser = SampleParser(schema)
    for row in ({**GOOD, "a": 12345, "b": [1, 2]}, {**GOOD, "a": 2**64 - 1, "b": None}):
        batch = parser.samples([row])
        assert batch.slot("a")[0].tolist() == [row["a"] % 1009]
        same(parser.body(json.dumps({"rows": [row]}).encode()), batch)
    for key in (-1, 2**64):
        with pytest.raises(RequestError, match="0 to 2"):
            parser.samples([{**GOOD, "a": key, "b": 1}])


def test_keys_take_no_text():
    with pytest.raises(RequestError, match="takes feature keys here"):
        SampleParser(KEYS).body(json.dumps({"rows": [{**GOOD, "a": "x", "b": 1}]}).encode())


def test_fields_that_are_missing():
    row = {name: value for name, value in GOOD.items() if name != "a"}
    with pytest.raises(RequestError, match="row 0: field 'a': it is missing; null stands for no value"):
        SampleParser(SMALL).samples([row])
    lenient = SampleParser(SMALL, allow_missing=True)
    same(lenient.samples([row]), lenient.samples([{**row, "a": None}]))
    with pytest.raises(RequestError, match="no such field"):
        lenient.samples([{**row, "z": 1}])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must be a JSON object; got a list"),
        ({}, "it has none"),
        ({"rows": [], "context": {}}, "it has 'rows', 'context'"),
        ({"rows": {}}, "must be a list of rows; got an object"),
        ({"rows": "x"}, "must be a list of rows; got text"),
        ({"rows": [3]}, "row 0: a row must be an object"),
        ({"rows": [GOOD, None]}, "row 1: a row must be an object"),
        ({"rows": [[1, 2, "x"]]}, "row 0: 3 values; a row given as a list has 4 values: age, x, a, b"),
        ({"rows": [[1, 2, "x", "y"], GOOD]}, "row 1: an object"),
        ({"rows": [GOOD] * 11}, "has 11 rows; at most 10"),
        ({"context": [], "candidates": []}, '"context" must be an object'),
        ({"context": {"z": 1}, "candidates": []}, "context: field 'z': the model has no such field"),
        ({"context": {"age": "x"}, "candidates": [{"x": 1, "a": 1, "b": 1}]}, "context: field 'age'"),
        ({"context": {"age": 1}, "candidates": [GOOD]}, "it stands in the context too"),
        (
            {"context": {"age": 1}, "candidates": [{"x": 1, "a": 1}]},
            "row 0: field 'b': it is missing; it stands neither",
        ),
        ({"context": {"age": 1}, "candidates": [[1]]}, "must be objects"),
    ],
)
def test_bodies_that_do_not_fit(document, message):
    with pytest.raises(RequestError, match=message):
        SampleParser(SMALL, max_rows=10).request(document)


def test_no_rows_are_no_scores():
    assert len(SampleParser(SMALL).request({"rows": []})) == 0
    assert len(SampleParser(SMALL).request({"context": {"age": 3}, "candidates": []})) == 0


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["rows", "context", "candidates", "age", "x", "a", "b", "label", "?"]), inner, max_size=5
        ),
    ),
    max_leaves=25,
)


@settings(max_examples=400, deadline=None)
@given(JSON)
def test_any_document_is_a_batch_or_a_refusal(document):
    text = json.dumps(document)
    try:
        batch = SampleParser(SMALL).request(json.loads(text))
    except RequestError as error:
        text = str(error)
        json.dumps({"error": text}).encode()
    else:
        assert batch.dense.shape == (len(batch), 2)
        assert np.isfinite(batch.dense).all()
