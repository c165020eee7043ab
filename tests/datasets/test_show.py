"""MultiSlot lines of hand-made batches, and which format a file is taken for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.data.formats.base import BadSamples
from sparsefleet.datasets.show import multislot_lines, show

# The dense values that the reference prints for the first row of the Criteo set.
REFERENCE_DENSE = [
    0.05,
    0.00663349917081,
    0.05,
    0.0,
    0.02159375,
    0.008,
    0.15,
    0.04,
    0.362,
    0.1,
    0.2,
    0.0,
    0.04,
]
FIRST_ROW = "0\t1\t1\t5\t0\t1382\t4\t15\t2\t181\t1\t2\t\t2" + "\t68fd1e64" * 26


def test_one_row_as_the_reference_prints_it() -> None:
    slots = {f"C{i + 1}": ([700000 + i], [0, 1]) for i in range(26)}
    (line,) = multislot_lines(Batch.from_slots(slots, labels=[0], dense=[REFERENCE_DENSE]))
    words = line.split(" ")
    assert words[0] == "13"
    assert words[1:3] == ["0.05", "0.006633499"]
    assert [float(word) for word in words[1:14]] == pytest.approx(REFERENCE_DENSE, abs=1e-7)
    assert words[14:] == [word for i in range(26) for word in ("1", str(700000 + i))] + ["1", "0"]


def test_slots_of_any_length_and_large_keys() -> None:
    batch = Batch.from_slots(
        {"a": ([2**64 - 1, 5], [0, 2, 2]), "b": ([7], [0, 0, 1])},
        labels=[1, 0.25],
        dense=[[-1.5], [1e20]],
    )
    assert list(multislot_lines(batch)) == ["1 -1.5 2 18446744073709551615 5 0 1 1", "1 1e+20 0 1 7 1 0.25"]


def test_no_dense_values_and_no_label() -> None:
    assert list(multislot_lines(Batch.from_slots({"a": ([3], [0, 1])}))) == ["1 3 0"]


def test_slices_of_a_batch_print_the_same() -> None:
    batch = Batch.from_slots({"a": ([1, 2, 3], [0, 1, 3]), "b": ([9], [0, 1, 1])}, labels=[0, 1])
    assert list(multislot_lines(batch.samples(1, 2))) == list(multislot_lines(batch))[1:]


def test_numbers_read_back_as_the_same_float32() -> None:
    values = np.random.default_rng(1).normal(size=500).astype(np.float32)
    batch = Batch.from_slots({"a": ([1], [0, 1])}, labels=[0], dense=values[None])
    words = next(multislot_lines(batch)).split(" ")
    assert np.array_equal(np.array(words[1:501], np.float32), values)


def test_first_row_of_the_criteo_set(tmp_path: Path) -> None:
    file = tmp_path / "part-0"
    file.write_text(FIRST_ROW + "\n" + FIRST_ROW + "\n")
    (line,) = show(file, rows=1)
    words = line.split(" ")
    assert [float(word) for word in words[1:14]] == pytest.approx(REFERENCE_DENSE, abs=1e-7)
    assert words[14::2] == ["1"] * 27
    assert words[-1] == "0"
    assert all(0 <= int(key) < 1000001 for key in words[15:-2:2])
    assert len(set(words[15:-2:2])) > 20, "the slot is part of the key"
    assert list(show(file, format="criteo")) == [line, line]
    (unfolded,) = show(file, rows=1, sparse_feature_dim=0)
    assert max(int(key) for key in unfolded.split(" ")[15:-2:2]) > 2**32


def test_what_show_prints_reads_back_the_same(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text(FIRST_ROW + "\n")
    (line,) = show(tmp_path / "raw")
    (tmp_path / "slots").write_text(line + "\n")
    assert list(show(tmp_path / "slots")) == [line]
    assert list(show(tmp_path / "raw", pipe_command=f"cat {tmp_path / 'slots'}")) == [line]


def test_bad_rows_of_the_file_are_told(tmp_path: Path) -> None:
    file = tmp_path / "part-0"
    file.write_text(FIRST_ROW + "\n" + FIRST_ROW.replace("1382", "x") + "\n" + FIRST_ROW + "\n")
    with pytest.raises(BadRowError, match=r"part-0, line 2, column 6: .*number"):
        list(show(file))
    bad_samples = BadSamples("skip")
    assert len(list(show(file, bad_samples=bad_samples))) == 2
    assert sum(bad_samples.counts.values()) == 1


def test_refuses_nonsense(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        show(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="is a folder; give one file"):
        show(tmp_path)
    (tmp_path / "a").write_text(FIRST_ROW)
    with pytest.raises(ConfigError, match="--format 'xml' is not a format; choose auto, csv, jsonl"):
        show(tmp_path / "a", format="xml")
    with pytest.raises(ConfigError, match="--rows -1 must be 0 or above"):
        show(tmp_path / "a", rows=-1)
    with pytest.raises(ConfigError, match="--format criteo does not go with --pipe-command"):
        show(tmp_path / "a", format="criteo", pipe_command="cat")
