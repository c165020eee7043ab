"""The native parser of plain requests accepts only what the readable one does, and gives the same batch."""

import json
import re

import numpy as np
import pytest
from bundle_fixtures import NAMES, SCHEMA
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.serving.kernels import request as native
from sparsefleet.serving.kernels.reference import request as reference
from sparsefleet.serving.samples import RequestError, SampleParser, parse_json, split_request_id

SMALL = Schema((DenseFeature("age", 10, 5), DenseFeature("é")), (Slot("a"), Slot("bb", "77")), sparse_feature_dim=1009)
ROW = '{"age": 20, "é": null, "a": "hello", "bb": ["p", "q", 12]}'


def agree(parser: SampleParser, body: bytes) -> bool:
    """Whether it was plain; a plain one must be a right one, and the same to both."""
    found = parser._plain.parse(body)
    if found is None:
        return False
    want = parser.request(parse_json(body))
    for got, expected in zip(found, (want.dense, want.keys, want.offsets), strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype
    return True


def test_what_clients_send_is_plain(trained):
    parser = SampleParser(SCHEMA)
    context = {name: trained.rows[0][name] for name in NAMES[:20]}
    candidates = [{name: row[name] for name in NAMES[20:]} for row in trained.rows]
    for document in (
        {"rows": trained.rows},
        {"rows": [{"label": 0, **row} for row in trained.rows]},
        {"rows": [list(row.values()) for row in trained.rows]},
        {"rows": [dict(reversed(row.items())) for row in trained.rows]},
        {"context": context, "candidates": candidates},
        {"context": {}, "candidates": trained.rows},
    ):
        for body in (json.dumps(document), json.dumps(document, indent=2), json.dumps(document, separators=(",", ":"))):
            assert agree(parser, body.encode())


@pytest.mark.parametrize(
    "body",
    [
        '{"rows": [' + ROW + "]}",
        ' {"rows" :[ ' + ROW + " , " + ROW + " ]}\r\n",
        '{"rows": []}',
        '{"rows": [{"age": -1.5e3, "é": 1E-2, "a": 18446744073709551, "bb": []}]}',
        '{"rows": [{"age": 123456789012345678901234567890, "é": 0.1, "a": "é€😀", "bb": null}]}',
        '{"rows": [[1, 2, "x", ["y", 3]], [null, -0.0, [], "a long value that has more than thirty-two bytes"]]}',
        '{"context": {"a": ["x", "y"], "age": 3}, "candidates": [{"é": 1, "bb": "z"}, {"bb": 4, "é": 2, "label": 1}]}',
        '{"context": {"a": "x", "age": 3, "é": 1, "bb": 7}, "candidates": [{}, {}]}',
    ],
)
def test_plain_ones(body):
    assert agree(SampleParser(SMALL), body.encode())


OTHER_WAY = '{"bb": 4 ,"a":"x", "é": 2, "age": null}'


@pytest.mark.parametrize(
    "rows",
    [
        (ROW, ROW, OTHER_WAY, ROW, OTHER_WAY, OTHER_WAY),
        (ROW, ROW.replace(" ", ""), ROW.replace(" ", "\n"), ROW),
        (ROW, ROW.replace("}", ', "label": 1}'), ROW, ROW.replace("{", '{"label": null, '), ROW),
        (ROW, "{ " + ROW[1:], ROW[:-1] + " }", ROW),
    ],
)
def test_rows_may_differ_in_order_and_in_white_space(rows):
    assert agree(SampleParser(SMALL), ('{"rows": [' + ",".join(rows) + "]}").encode())


@pytest.mark.parametrize(
    "second",
    [
        ROW.replace("}", ', "a": "again"}'),
        ROW.replace("{", '{"bb": 1, '),
        ROW.replace(', "bb"', ', "a"'),
        ROW.replace('"a": "hello", ', ""),
        ROW.replace(", ", ",, ", 1),
        ROW.replace('"é": ', '"é" '),
        ROW.replace('"a": "hello", ', '"a": "hello" '),
        "{}",
    ],
)
def test_a_row_is_not_right_because_the_one_before_was(second):
    parser = SampleParser(SMALL)
    assert parser._plain.parse(('{"rows": [' + ROW + ", " + second + "]}").encode()) is None
    assert agree(parser, ('{"rows": [' + ROW + "]}").encode())


@pytest.mark.parametrize(
    "row",
    [
        ROW.replace("hello", "he\\\\nllo"),
        ROW.replace("20", '"20"'),
        ROW.replace("20", "020"),
        ROW.replace("20", "+20"),
        ROW.replace("20", "20."),
        ROW.replace("20", "1e400"),
        ROW.replace("20", "NaN"),
        ROW.replace("20", "true"),
        ROW.replace("12", "-0"),
        ROW.replace("12", "12.0"),
        ROW.replace("12", "99999999999999999999"),
        ROW.replace("12", '["x"]'),
        ROW.replace("12", "null"),
        ROW.replace('"a": "hello", ', ""),
        ROW.replace('"age"', '"agee"'),
        ROW.replace("}", ', "a": "again"}'),
        ROW.replace("}", ",}"),
        ROW[:-1],
        ROW + "x",
        ROW.replace("hello", "he\tllo"),
        ROW.replace("hello", "x" * 65537),
    ],
)
def test_ones_that_are_left_to_the_readable_parser(row):
    assert SampleParser(SMALL)._plain.parse(b'{"rows": [' + row.encode() + b"]}") is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"rows": [' + b"\xff" + b"]}", b'{"rows":' + b"[" * 99999])
def test_ones_that_are_nothing(body):
    assert SampleParser(SMALL)._plain.parse(body) is None
    with pytest.raises(RequestError, match=r"JSON|must have the field|row"):
        SampleParser(SMALL).body(body)


def test_bad_utf8_is_no_text():
    body = ROW.encode().replace(b"hello", b"h\xe9llo")
    assert SampleParser(SMALL)._plain.parse(b'{"rows": [' + body + b"]}") is None


def test_limits():
    body = ('{"rows": [' + ", ".join([ROW] * 3) + "]}").encode()
    assert SampleParser(SMALL, max_rows=3)._plain.parse(body) is not None
    assert SampleParser(SMALL, max_rows=2)._plain.parse(body) is None
    many = ROW.replace("12", ", ".join(["1"] * 10_000)).encode()
    assert SampleParser(SMALL)._plain.parse(b'{"rows": [' + many + b"]}") is None


def test_fields_that_are_left_out_where_that_is_allowed():
    parser = SampleParser(SMALL, allow_missing=True)
    assert agree(parser, b'{"rows": [{"a": "x"}, {"bb": 3, "age": 9}, {}]}')
    assert agree(parser, b'{"context": {"a": "x"}, "candidates": [{"age": 1}, {"bb": ["u", "v"]}]}')


VALUE = st.one_of(st.text(max_size=10), st.integers(-3, 2**65), st.none(), st.floats(allow_nan=False), st.booleans())
BAG = st.one_of(VALUE, st.lists(VALUE, max_size=3))
FIELDS = st.dictionaries(st.sampled_from(["age", "é", "a", "bb", "label", "zz"]), BAG, min_size=3, max_size=5)
WHOLE = st.fixed_dictionaries({"age": BAG, "é": BAG, "a": BAG, "bb": BAG})
DOCUMENT = st.one_of(
    st.fixed_dictionaries(
        {"rows": st.lists(st.one_of(WHOLE, FIELDS, st.lists(BAG, min_size=4, max_size=4)), max_size=3)}
    ),
    st.fixed_dictionaries({"context": FIELDS, "candidates": st.lists(FIELDS, max_size=3)}),
)


@settings(max_examples=600, deadline=None)
@given(DOCUMENT, st.booleans(), st.booleans())
def test_any_document(document, ascii_only, allow_missing):
    agree(
        SampleParser(SMALL, allow_missing=allow_missing),
        json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "replace"),
    )


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 200), st.binary(max_size=4), st.integers(0, 3))
def test_any_damage(start, junk, cut):
    body = bytearray(('{"rows": [' + ROW + ", " + ROW.replace("20", "-3.25e1") + "]}").encode())
    body[start : start + cut] = junk
    agree(SampleParser(SMALL), bytes(body))


@given(st.binary(max_size=300), st.binary(min_size=1, max_size=1))
def test_bytes_are_counted_as_the_twin_does(data, byte):
    assert native.count_byte(data, byte) == reference.count_byte(data, byte)


@given(st.lists(st.floats(width=32), max_size=20))
def test_scores_are_written_so_that_they_read_back(values):
    values = np.array(values, np.float32)
    got, want = native.format_floats(values), reference.format_floats(values)
    assert (got is None) == (want is None) == (not np.isfinite(values).all())
    if got is not None and want is not None:
        np.testing.assert_array_equal(np.array(json.loads(got), np.float32), values)
        np.testing.assert_array_equal(np.array(json.loads(want), np.float32), values)


@pytest.mark.parametrize(
    "body",
    [
        '{"rows": [' + ROW + "]}",
        '{"request_id": "r-1", "rows": [' + ROW + "]}",
        '{ "request_id" :7 , "context": {"a": "x", "age": 3}, "candidates": [{"é": 1, "bb": "z"}]}',
        '{"rows": [' + ROW + '], "request_id": "last"}',
        '{"request_id": 1, "rows": [' + ROW + '], "request_id": 2}',
        '{"request_id": null, "rows": []}',
        '{"request_id": "' + "x" * 300 + '", "rows": [' + ROW + "]}",
        '{"request_id": "r-1", "rows": [' + ROW.replace("20", '"twenty"') + "]}",
        '{"rows": [' + ROW.replace("}", ', "request_id": 3}') + "]}",
        '{"request_id": "r"}',
    ],
)
def test_ids_of_requests_are_found_without_a_search(body):
    parser = SampleParser(SMALL)

    def split():
        request_id, text = split_request_id(body.encode())
        return request_id, parser.request(parse_json(text))

    try:
        want = split()
    except RequestError as error:
        with pytest.raises(RequestError, match=re.escape(str(error))):
            parser.identified(body.encode())
        return
    found = parser.identified(body.encode())
    assert found[0] == want[0]
    np.testing.assert_array_equal(found[1].keys, want[1].keys)
    np.testing.assert_array_equal(found[1].dense, want[1].dense)
