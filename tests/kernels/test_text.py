"""Hashing and parsing: the native kernels and their twins, held to the same tests and to each other."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from level_faces import others

from sparsefleet.core.schema import CRITEO
from sparsefleet.kernels import text as native
from sparsefleet.kernels.reference import text as reference
from sparsefleet.kernels.text_types import Block, Columns, Parsed, Reason, SlotEntry, SlotKind

BOTH = pytest.mark.parametrize(
    "kernels", [pytest.param(native, id="native"), *others("text"), pytest.param(reference, id="reference")]
)

INTEGERS = ["1", "1", "5", "0", "1382", "4", "15", "2", "181", "1", "2", "", "2"]
CATEGORIES = ["68fd1e64", "80e26c9b"] + [f"{i:08x}" for i in range(24)]
ROW = "\t".join(["0", *INTEGERS, *CATEGORIES])


def array(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


def criteo(kernels: ModuleType, labelled: bool = True, max_line: int = 65536, dim: int = 1000001, seed: int = 0):
    return kernels.CriteoParser(
        [f.minimum for f in CRITEO.dense],
        [f.diff for f in CRITEO.dense],
        [s.prefix for s in CRITEO.slots],
        seed,
        dim,
        labelled,
        max_line,
    )


def run(parser, raw: bytes, out: Columns, **how) -> Parsed:
    size = how.pop("size", len(raw))
    given_ = {"begin": 0, "size": size, "stop": size, "final": True, **how}
    return parser.parse(Block(array(raw), **given_), out)


def criteo_columns(capacity: int = 16) -> Columns:
    return Columns.allocate(capacity, 13, 26)


# ---- hashing ----


@BOTH
@given(data=st.binary(max_size=200), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=200, deadline=None)
def test_xxh64_is_the_published_function(kernels: ModuleType, data: bytes, seed: int) -> None:
    assert kernels.xxh64(data, seed) == xxhash.xxh64_intdigest(data, seed)


@BOTH
def test_keys_never_change(kernels: ModuleType) -> None:
    # Keys are stored in checkpoints: these numbers are part of the format.
    assert kernels.xxh64(b"") == 0xEF46DB3751D8E999
    assert kernels.xxh64(b"1468fd1e64") == 3489908019897055664
    assert kernels.feature_key(b"68fd1e64", b"14", 0, 1000001) == 3489908019897055664 % 1000001


@BOTH
@given(
    values=st.lists(st.binary(max_size=40), max_size=8),
    prefix=st.binary(max_size=12),
    seed=st.integers(0, 2**64 - 1),
    dim=st.one_of(st.just(0), st.integers(1, 2**64 - 1)),
)
@settings(max_examples=200, deadline=None)
def test_hash_strings(kernels: ModuleType, values: list[bytes], prefix: bytes, seed: int, dim: int) -> None:
    offsets = np.cumsum([0] + [len(v) for v in values]).astype(np.int64)
    keys = kernels.hash_strings(array(b"".join(values)), offsets, prefix, seed, dim)
    whole = [xxhash.xxh64_intdigest(prefix + v, seed) for v in values]
    assert keys.tolist() == [h % dim if dim else h for h in whole]


def test_hash_strings_refuses_offsets_that_leave_the_data() -> None:
    with pytest.raises(ValueError, match="offsets leave the data"):
        native.hash_strings(array(b"abc"), np.array([0, 4], np.int64), b"", 0, 0)
    with pytest.raises(ValueError, match="offsets decrease"):
        native.hash_strings(array(b"abc"), np.array([0, 3, 1], np.int64), b"", 0, 0)


@BOTH
def test_skip_lines(kernels: ModuleType) -> None:
    raw = array(b"a\nbb\n\nccc")
    assert kernels.skip_lines(raw, 0, 9, 2) == (2, 5)
    assert kernels.skip_lines(raw, 0, 9, 9) == (3, 6)
    assert kernels.skip_lines(raw, 6, 9, 1) == (0, 6)


# ---- Criteo ----


@BOTH
def test_the_seeds_row(kernels: ModuleType) -> None:
    out = criteo_columns()
    done = run(criteo(kernels), ROW.encode() + b"\n", out)
    assert (done.filled, done.lines, done.reason) == (1, 1, Reason.FINE)
    expected = [0.05, 0.00663349917081, 0.05, 0.0, 0.02159375, 0.008, 0.15, 0.04, 0.362, 0.1, 0.2, 0.0, 0.04]
    assert out.dense[0].tolist() == np.array(expected).astype(np.float32).tolist()
    assert out.labels[0] == 0
    keys = [xxhash.xxh64_intdigest(f"{14 + i}{v}".encode()) % 1000001 for i, v in enumerate(CATEGORIES)]
    assert out.keys[:26].tolist() == keys


@BOTH
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_line_ends(kernels: ModuleType, end: bytes) -> None:
    out, plain = criteo_columns(), criteo_columns()
    done = run(criteo(kernels), ROW.encode() + end, out, line_base=10, byte_base=100)
    run(criteo(kernels), ROW.encode() + b"\n", plain)
    assert out.keys[:26].tolist() == plain.keys[:26].tolist()
    assert out.lines[0] == 11
    assert out.ends[0] == 100 + done.consumed == 100 + len(ROW.encode() + end)


@BOTH
def test_half_a_line_waits_for_its_rest(kernels: ModuleType) -> None:
    out = criteo_columns()
    raw = (ROW + "\n" + ROW).encode()
    done = run(criteo(kernels), raw, out, final=False)
    assert (done.filled, done.consumed) == (1, len(ROW) + 1)
    assert run(criteo(kernels), raw, out, begin=done.consumed).filled == 2


@BOTH
def test_unlabelled_rows_only_when_asked(kernels: ModuleType) -> None:
    raw = ROW.split("\t", 1)[1].encode()
    out = criteo_columns()
    done = run(criteo(kernels), raw, out)
    assert (Reason(done.reason), done.column, done.found) == (Reason.FIELD_COUNT, 40, 39)
    assert run(criteo(kernels, labelled=False), raw, out).filled == 1
    assert np.isnan(out.labels[0])
    assert out.dense[0, 4] == np.float32(0.02159375)


def field(index: int, value: str) -> bytes:
    fields = ROW.split("\t")
    fields[index] = value
    return "\t".join(fields).encode()


BAD_CRITEO = [
    (b"", Reason.EMPTY_LINE, 1),
    (b"\t".join(ROW.encode().split(b"\t")[:-1]), Reason.FIELD_COUNT, 40),
    (ROW.encode() + b"\tmore", Reason.FIELD_COUNT, 41),
    (ROW.encode().replace(b"\t", b" "), Reason.FIELD_COUNT, 2),
    (field(0, "2"), Reason.LABEL, 1),
    (field(0, ""), Reason.LABEL, 1),
    (field(0, "01"), Reason.LABEL, 1),
    (field(3, "abc"), Reason.NUMBER, 4),
    (field(3, "-"), Reason.NUMBER, 4),
    (field(3, "--1"), Reason.NUMBER, 4),
    (field(3, "1 "), Reason.NUMBER, 4),
    (field(3, "nan"), Reason.NUMBER, 4),
    (field(3, "inf"), Reason.NUMBER, 4),
    (field(3, "-inf"), Reason.NUMBER, 4),
    (field(3, "0x10"), Reason.NUMBER, 4),
    (field(3, "1e999"), Reason.NUMBER, 4),
    (field(3, "1e-999"), Reason.NUMBER, 4),
    (field(3, "1e60"), Reason.RANGE, 4),
    (field(20, "ab\0cd"), Reason.NUL, 21),
    (field(20, "X").replace(b"X", b"\xff\xfe"), Reason.UTF8, 21),
    (field(20, "X").replace(b"X", b"\xed\xa0\x80"), Reason.UTF8, 21),
    (field(39, "x" * 70000), Reason.LONG_LINE, 1),
]


@BOTH
@pytest.mark.parametrize(("line", "reason", "column"), BAD_CRITEO)
def test_bad_criteo_rows(kernels: ModuleType, line: bytes, reason: Reason, column: int) -> None:
    raw = ROW.encode() + b"\n" + line + b"\n" + ROW.encode() + b"\n"
    out = criteo_columns()
    done = run(criteo(kernels), raw, out)
    assert (Reason(done.reason), done.column) == (reason, column)
    assert (done.filled, done.lines, done.line_begin) == (1, 1, len(ROW) + 1)
    if reason in (Reason.LABEL, Reason.NUMBER, Reason.RANGE, Reason.NUL, Reason.UTF8):
        assert raw[done.begin : done.end] == line.split(b"\t")[column - 1]

    out = criteo_columns()
    done = run(criteo(kernels), raw, out, skip=True)
    assert (done.filled, done.lines, done.consumed) == (2, 3, len(raw))
    assert out.lines[:2].tolist() == [1, 3]
    assert out.counts[reason] == out.counts.sum() == 1


@BOTH
@pytest.mark.parametrize(
    ("text", "value"),
    [("-3", -3), ("+7", 7), ("1.5", 1.5), (".5", 0.5), ("5.", 5), ("1e3", 1000), ("123456789", 123456789)],
)
def test_numbers_that_are_fine(kernels: ModuleType, text: str, value: float) -> None:
    out = criteo_columns()
    assert run(criteo(kernels), field(3, text), out).filled == 1
    assert out.dense[0, 2] == np.float32(value / 100)


@BOTH
def test_an_endless_line_is_refused_without_being_held(kernels: ModuleType) -> None:
    parser, out = criteo(kernels, max_line=1000), criteo_columns()
    done = run(parser, b"x" * 1500, out, final=False)
    assert Reason(done.reason) == Reason.LONG_LINE
    done = run(parser, b"x" * 1500, out, final=False, skip=True)
    assert (done.open, done.consumed, done.lines) == (True, 1500, 1)
    done = run(parser, b"x" * 1500, out, final=False, skip=True, open=True)
    assert (done.open, done.consumed, done.lines) == (True, 1500, 0)
    done = run(parser, b"xx\n" + ROW.encode() + b"\n", out, final=False, skip=True, open=True)
    assert (done.open, done.filled, done.lines) == (False, 1, 1)
    assert out.counts[Reason.LONG_LINE] == 1


@BOTH
def test_stop_and_capacity(kernels: ModuleType) -> None:
    raw = (ROW + "\n").encode() * 5
    width = len(ROW) + 1
    out = criteo_columns(2)
    assert run(criteo(kernels), raw, out).consumed == 2 * width
    out = criteo_columns()
    assert run(criteo(kernels), raw, out, stop=2 * width + 1).filled == 3
    assert out.ends[:3].tolist() == [width, 2 * width, 3 * width]


def same(a: Columns, b: Columns, done: Parsed) -> None:
    rows = done.filled
    np.testing.assert_array_equal(a.labels[:rows], b.labels[:rows])
    np.testing.assert_array_equal(a.dense[:rows], b.dense[:rows])
    np.testing.assert_array_equal(a.lines[:rows], b.lines[:rows])
    np.testing.assert_array_equal(a.ends[:rows], b.ends[:rows])
    np.testing.assert_array_equal(a.counts, b.counts)
    if a.offsets is None or b.offsets is None:
        keys = rows * (len(a.keys) // len(a.labels))
    else:
        slots = (len(a.offsets) - 1) // len(a.labels)
        np.testing.assert_array_equal(a.offsets[: rows * slots + 1], b.offsets[: rows * slots + 1])
        keys = int(a.offsets[rows * slots])
    np.testing.assert_array_equal(a.keys[:keys], b.keys[:keys])


SMALL_FIELD = st.one_of(
    st.sampled_from([b"", b"0", b"1", b"-5", b"12345678", b"123456789012", b"1.25", b"1e3", b"x", b"-", b"\xc3\xa9"]),
    st.binary(max_size=6),
    st.text(max_size=30).map(str.encode),
)
SMALL_LINES = st.lists(
    st.one_of(
        st.lists(SMALL_FIELD, min_size=4, max_size=6).map(b"\t".join),
        st.tuples(
            st.sampled_from([b"0", b"1"]),
            st.sampled_from([b"", b"-3", b"77", b"1.5"]),
            st.integers(-(10**12), 10**12).map(lambda i: str(i).encode()),
            st.text(st.characters(exclude_characters="\n\r\t\0", exclude_categories=["Cs"]), max_size=40).map(
                str.encode
            ),
            st.binary(max_size=20),
        ).map(b"\t".join),
    ),
    max_size=8,
)


@given(lines=SMALL_LINES, feed=st.sampled_from([b"\n", b"\r\n"]), final=st.booleans(), skip=st.booleans())
@settings(max_examples=400, deadline=None)
def test_criteo_native_equals_reference(lines: list[bytes], feed: bytes, final: bool, skip: bool) -> None:
    raw = feed.join(lines)
    args = ([0.0, -3.0], [20.0, 603.0], [b"14", b"a longer prefix"], 7, 1000, True, 100)
    outs, dones = [], []
    for kernels in (native, reference):
        out = Columns.allocate(5, 2, 2)
        dones.append(run(kernels.CriteoParser(*args), raw, out, final=final, skip=skip))
        outs.append(out)
    assert dones[0] == dones[1]
    same(*outs, dones[0])


@given(raw=st.binary(max_size=600), begin=st.integers(0, 600), size=st.integers(0, 600), skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_bytes_never_crash(raw: bytes, begin: int, size: int, skip: bool) -> None:
    size = min(size, len(raw))
    begin = min(begin, size)
    for make, columns in (
        (lambda k: k.CriteoParser([0.0], [1.0], [b"p"], 0, 0, True, 64), lambda: Columns.allocate(9, 1, 1)),
        (lambda k: k.MultiSlotParser(LAYOUT, 2, 2, 0, 64), lambda: Columns.allocate(9, 2, 2, 8)),
    ):
        dones = []
        outs = []
        for kernels in (native, reference):
            out = columns()
            dones.append(run(make(kernels), raw, out, begin=begin, size=size, skip=skip))
            outs.append(out)
        assert dones[0] == dones[1]
        same(*outs, dones[0])


# ---- MultiSlot ----

LAYOUT = [
    SlotEntry(SlotKind.DENSE, 0, 2),
    SlotEntry(SlotKind.SPARSE, 1, 0),
    SlotEntry(SlotKind.SPARSE, 0, 0),
    SlotEntry(SlotKind.LABEL, 0, 1),
]


def multislot(kernels: ModuleType, dim: int = 0):
    return kernels.MultiSlotParser(LAYOUT, 2, 2, dim)


@BOTH
def test_multislot_rows_in_the_schemas_order(kernels: ModuleType) -> None:
    out = Columns.allocate(4, 2, 2, 100)
    raw = b"2 0.5 -1e-1 3 7 8 18446744073709551615 1 9 1 1\n2 0 1  1 5 2 6 7 1 0.0 \n"
    assert run(multislot(kernels), raw, out).filled == 2
    assert out.labels[:2].tolist() == [1, 0]
    assert out.dense[:2].tolist() == [[0.5, np.float32(-0.1)], [0, 1]]
    assert out.offsets is not None
    assert out.offsets[:5].tolist() == [0, 1, 4, 6, 7]
    assert out.keys[:7].tolist() == [9, 7, 8, 2**64 - 1, 6, 7, 5]
    folded = Columns.allocate(4, 2, 2, 100)
    run(multislot(kernels, dim=5), raw, folded)
    assert folded.keys[:7].tolist() == [4, 2, 3, (2**64 - 1) % 5, 1, 2, 0]


BAD_MULTISLOT = [
    (b"", Reason.EMPTY_LINE, 1, b""),
    (b"2 1 1 0 1 9 1 1", Reason.EMPTY_SLOT, 4, b"0"),
    (b"3 1 1 1 1 9 1 9 1 1", Reason.WIDTH, 1, b"3"),
    (b"2 1 1 1 9 1 9 2 1 1", Reason.WIDTH, 8, b"2"),
    (b"2 1 1 1 9 1 9", Reason.MISSING_VALUES, 8, None),
    (b"2 1 1 1 9 99999999999 9 1 1", Reason.MISSING_VALUES, 10, None),
    (b"2 1 1 1 9 1 9 1 1 5", Reason.SURPLUS_VALUES, 10, b"5"),
    (b"2 1 x 1 9 1 9 1 1", Reason.NUMBER, 3, b"x"),
    (b"2 1 nan 1 9 1 9 1 1", Reason.NUMBER, 3, b"nan"),
    (b"2 1 1e39 1 9 1 9 1 1", Reason.RANGE, 3, b"1e39"),
    (b"-2 1 1 1 9 1 9 1 1", Reason.NUMBER, 1, b"-2"),
    (b"2 1 1 1 9.5 1 9 1 1", Reason.KEY, 5, b"9.5"),
    (b"2 1 1 1 68fd 1 9 1 1", Reason.KEY, 5, b"68fd"),
    (b"2 1 1 1 -9 1 9 1 1", Reason.NEGATIVE_KEY, 5, b"-9"),
    (b"2 1 1 1 18446744073709551616 1 9 1 1", Reason.KEY_OVERFLOW, 5, b"18446744073709551616"),
    (b"2 1 1 1 9 1 9 1 2", Reason.LABEL, 9, b"2"),
    (b"2 1 1 1 9 1 9 1 yes", Reason.LABEL, 9, b"yes"),
    (b"2 1 1 1 9 1 \xff9 1 1", Reason.UTF8, 7, b"\xff9"),
    (b"2 1 1 1 9 1 9\0 1 1", Reason.NUL, 7, b"9\0"),
    (b"2 1\t1 1 9 1 9 1 1", Reason.NUMBER, 2, b"1\t1"),
]


@BOTH
@pytest.mark.parametrize(("line", "reason", "column", "text"), BAD_MULTISLOT)
def test_bad_multislot_rows(kernels: ModuleType, line: bytes, reason: Reason, column: int, text: bytes | None) -> None:
    good = b"2 0.5 0.5 1 7 1 8 1 1\n"
    raw = good + line + b"\n" + good
    out = Columns.allocate(4, 2, 2, 100)
    done = run(multislot(kernels), raw, out)
    assert (Reason(done.reason), done.column, done.filled) == (reason, column, 1)
    if text is not None:
        assert raw[done.begin : done.end] == text
    out = Columns.allocate(4, 2, 2, 100)
    assert run(multislot(kernels), raw, out, skip=True).filled == 2
    assert out.counts[reason] == out.counts.sum() == 1
    assert out.lines[:2].tolist() == [1, 3]


@BOTH
def test_multislot_stops_when_keys_are_full(kernels: ModuleType) -> None:
    raw = b"2 0 0 2 1 2 1 3 1 1\n" * 3
    out = Columns.allocate(4, 2, 2, 7)
    done = run(multislot(kernels), raw, out)
    assert (done.full, done.filled, done.consumed) == (True, 2, 2 * len(raw) // 3)
    with_room = Columns.allocate(4, 2, 2, 9)
    assert run(multislot(kernels), raw, with_room).filled == 3


WORDS = st.lists(
    st.one_of(
        st.sampled_from([b"1", b"2", b"0", b"1.5", b"-1", b"x", b"", b"18446744073709551616"]),
        st.binary(max_size=3),
    ),
    max_size=14,
).map(b" ".join)
GOOD = st.tuples(
    st.floats(-1e6, 1e6), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4), st.sampled_from([0, 1])
).map(lambda t: f"2 {t[0]} 1 {len(t[1])} {' '.join(map(str, t[1]))} 1 3 1 {t[2]}".encode())


@given(lines=st.lists(st.one_of(WORDS, GOOD), max_size=8), final=st.booleans(), skip=st.booleans())
@settings(max_examples=400, deadline=None)
def test_multislot_native_equals_reference(lines: list[bytes], final: bool, skip: bool) -> None:
    raw = b"\n".join(lines)
    outs, dones = [], []
    for kernels in (native, reference):
        out = Columns.allocate(5, 2, 2, 11)
        dones.append(run(kernels.MultiSlotParser(LAYOUT, 2, 2, 1001, 90), raw, out, final=final, skip=skip))
        outs.append(out)
    assert dones[0] == dones[1]
    same(*outs, dones[0])


@given(
    head=st.integers(0, 9),
    values=st.lists(
        st.one_of(st.just(""), st.from_regex(r"[0-9a-f]{8}", fullmatch=True), st.text("abcé", max_size=40)),
        min_size=11,
        max_size=11,
    ),
    dim=st.sampled_from([0, 1, 1000001, 2**63 + 5]),
)
@settings(max_examples=200, deadline=None)
def test_categories_of_every_size_behind_prefixes_of_every_size(head: int, values: list[str], dim: int) -> None:
    prefixes = [f"{i:x}".encode() * head for i in range(11)]
    out = Columns.allocate(1, 0, 11)
    raw = "\t".join(["1", *values]).encode()
    assert run(native.CriteoParser([], [], prefixes, 3, dim), raw, out).filled == 1
    whole = [xxhash.xxh64_intdigest(p + v.encode(), 3) for p, v in zip(prefixes, values, strict=True)]
    assert out.keys.tolist() == [h % dim if dim else h for h in whole]
