"""Search in mapped rows: the native kernel and its twin, and files that lie about themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.core.errors import BundleError
from sparsefleet.core.table_rows import TableRows
from sparsefleet.export.kernels import bundle_rows as native
from sparsefleet.export.kernels.bundle_rows import RowType
from sparsefleet.export.kernels.reference import bundle_rows as reference
from sparsefleet.export.rows_file import RowsFile, RowsHeader
from sparsefleet.export.rows_writer import RowsWriter
from sparsefleet.kernels import levels
from sparsefleet.serving.kernels import request as native_request
from sparsefleet.serving.kernels.reference import request as reference_request

ID = "00112233445566778899aabbccddeeff"
KEYS = st.one_of(st.integers(0, 100), st.sampled_from([2**64 - 1, 2**63, 2**32]), st.integers(0, 2**64 - 1))


def written(folder, keys, values, dtype=RowType.FLOAT32, pass_bytes=1 << 30):
    keys = np.asarray(keys, np.uint64)
    values = np.asarray(values, np.float32)
    rows = TableRows(keys, values, np.empty((len(keys), 0), np.float32), np.ones(len(keys), np.uint32))
    path = folder / f"{len(list(folder.iterdir()))}.rows"
    header = RowsHeader.of(dtype, values.shape[1], len(keys), ID, "t")
    RowsWriter(path, header, 0, "t").write(lambda keep: iter([rows.select(keep(rows.keys))]), pass_bytes)
    return RowsFile(path)


@pytest.mark.parametrize("dtype", list(RowType))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_lookups_agree(tmp_path_factory, dtype, data):
    keys = data.draw(st.lists(KEYS, unique=True, max_size=60))
    dim = data.draw(st.sampled_from([1, 3, 8]))
    values = np.random.default_rng(len(keys)).standard_normal((len(keys), dim)).astype(np.float32)
    file = written(
        tmp_path_factory.mktemp("rows"), keys, values, dtype, pass_bytes=data.draw(st.sampled_from([64, 1 << 30]))
    )
    asked = np.array(data.draw(st.lists(st.one_of(KEYS, st.sampled_from(keys or [0])), max_size=80)), np.uint64)
    got = native.lookup_rows(file.data, file._layout, asked)
    want = reference.lookup_rows(file.data, file._layout, asked)
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(got[0], want[0])
    held = dict(zip(keys, values, strict=True))
    tolerance = {RowType.FLOAT32: 0, RowType.FLOAT16: 2e-3, RowType.INT8: 0.02}[dtype]
    for key, row, found in zip(asked.tolist(), *got, strict=True):
        assert found == (key in held)
        np.testing.assert_allclose(row, held.get(key, np.zeros(dim)), atol=tolerance)
    assert native.check_order(file.data, file._layout)
    assert reference.check_order(file.data, file._layout)


def test_every_half_is_read_as_numpy_reads_it(tmp_path):
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)].astype(np.float32)
    file = written(tmp_path, np.arange(len(finite)), finite[:, None], RowType.FLOAT16)
    rows, found = file.lookup(np.arange(len(finite), dtype=np.uint64))
    assert found.all()
    np.testing.assert_array_equal(rows[:, 0], finite)


def test_bytes_do_not_depend_on_the_number_of_passes_or_the_order_of_rows(tmp_path):
    random = np.random.default_rng(0)
    keys, values = random.permutation(500).astype(np.uint64), random.standard_normal((500, 3))
    order = random.permutation(500)
    one = written(tmp_path, keys, values)
    many = written(tmp_path, keys[order], values[order], pass_bytes=1000)
    assert one.data.tobytes() == many.data.tobytes()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=16))
def test_damage_behind_the_header_never_leaves_the_file(where, junk):
    """Whatever the directory, keys and rows hold: an answer or an error, and the twins agree which."""
    file, clean = _small()
    data = clean.copy()
    start = 128 + where % (len(data) - 128)
    junk = np.frombuffer(junk, np.uint8)[: len(data) - start]
    data[start : start + len(junk)] = junk
    asked = np.arange(40, dtype=np.uint64)
    outcomes = []
    for module in (native, reference):
        try:
            rows, found = module.lookup_rows(data, file._layout, asked)
            outcomes.append((rows.tobytes(), found.tolist()))
        except BundleError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    assert native.check_order(data, file._layout) in (True, False)


_SMALL = []


def _small():
    if not _SMALL:
        import pathlib
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            file = written(pathlib.Path(folder), np.arange(30), np.random.default_rng(0).standard_normal((30, 2)))
        _SMALL.append((file, file.data.copy()))
    return _SMALL[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 2**60},
        {"bits": 39},
        {"values": 2**63},
        {"keys": 2**64 - 8},
        {"directory": 10**9},
        {"stride": 2**31},
        {"dim": 60000},
        {"type": 9},
        {"dim": 0},
    ],
)
def test_a_layout_that_leaves_the_mapping_is_refused(changes):
    file, data = _small()
    layout = file._layout._replace(**changes)
    with pytest.raises(ValueError, match="do not lie within"):
        native._native.lookup_rows(
            data, *layout, np.zeros(1, np.uint64), np.zeros((1, layout.dim), np.float32), np.zeros(1, np.uint8)
        )


@given(
    st.lists(st.one_of(st.text(max_size=40), st.text("é€😀", max_size=12))),
    st.sampled_from([b"", b"14", b"C1\x1f", b"long prefix"]),
)
def test_hashed_columns_agree(texts, prefix):
    for dim in (0, 1000001):
        for column in (texts, tuple(texts)):
            got, want = (np.empty(len(texts), np.uint64) for _ in range(2))
            assert native_request.hash_column(column, prefix, 7, dim, got)
            assert reference_request.hash_column(column, prefix, 7, dim, want)
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("odd", [3, None, b"x", "\ud800", ["x"]])
def test_columns_that_are_not_all_text_are_left_to_others(odd):
    for module in (native_request, reference_request):
        assert not module.hash_column(["a", odd], b"", 0, 0, np.empty(2, np.uint64))


def test_a_guard_is_of_the_mapping_itself():
    """A converted copy lies elsewhere, and is gone after the call."""
    for other in (np.zeros(8), np.zeros(16, np.uint8)[::2]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            levels.native.guard_mapping(other)
