"""Every reader over every format gives the same batches, and trains the same bits."""

from __future__ import annotations

import gzip
import itertools
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fit_jobs import BATCH, assert_same_bits, network, trainer

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.datasets.show import show

KINDS = ("queue", "memory", "pyreader", "feeder")
FORMATS = ("criteo", "gzip", "multislot", "multislot gzip", "pipe", "pipe gzip", "parquet")
ROWS = 1250


@pytest.fixture(scope="module")
def inputs(clicks, tmp_path_factory) -> dict[str, tuple[Path, dict[str, object]]]:
    """The same rows in every format: folder and settings."""
    root = tmp_path_factory.mktemp("formats")
    lines = [line for part in sorted((clicks / "train").iterdir()) for line in part.open()][:ROWS]
    raw = ["".join(lines[:700]), "".join(lines[700:])]
    for name in ("criteo", "gzip", "multislot", "multislot gzip", "parquet"):
        (root / name).mkdir()
    for index, text in enumerate(raw):
        plain = root / "criteo" / f"part-{index}"
        plain.write_text(text)
        (root / "gzip" / f"part-{index}.gz").write_bytes(gzip.compress(text.encode()))
        slots = "".join(f"{line}\n" for line in show(plain, schema=CRITEO))
        (root / "multislot" / f"part-{index}").write_text(slots)
        (root / "multislot gzip" / f"part-{index}.gz").write_bytes(gzip.compress(slots.encode()))
        rows = [line.rstrip("\n").split("\t") for line in text.splitlines()]
        columns = {"label": pa.array([int(row[0]) for row in rows])}
        for column, name in enumerate(CRITEO.dense_names, 1):
            columns[name] = pa.array([int(row[column]) if row[column] else None for row in rows], pa.int64())
        for column, name in enumerate(CRITEO.slot_names, 14):
            columns[name] = pa.array([row[column] for row in rows])
        pq.write_table(pa.table(columns), root / "parquet" / f"part-{index}.parquet", row_group_size=300)
    command = {"pipe_command": f"{sys.executable} -c 'import sys; [print(line, end=str()) for line in sys.stdin]'"}
    return {
        "criteo": (root / "criteo", {}),
        "gzip": (root / "gzip", {}),
        "multislot": (root / "multislot", {}),
        "multislot gzip": (root / "multislot gzip", {}),
        "pipe": (root / "multislot", command),
        "pipe gzip": (root / "multislot gzip", {"pipe_command": "cat"}),
        "parquet": (root / "parquet", {}),
    }


def opened(inputs, format, kind, **more):
    path, settings = inputs[format]
    return open_reader(path, CRITEO, kind=kind, batch_size=BATCH, **settings, **more)


def batches(reader, threads=1):
    with reader.epoch(threads) as epoch:
        return [batch for stream in epoch.streams for batch in stream]


@pytest.fixture(scope="module")
def wanted(inputs):
    """The batches of the plainest way, and what training on them gives."""
    reader = opened(inputs, "criteo", "queue")
    job = trainer()
    job.fit(network(), reader)
    return batches(reader), job


@pytest.mark.parametrize(("format", "kind"), list(itertools.product(FORMATS, KINDS)))
def test_the_same_batches_and_the_same_bits(inputs, wanted, format, kind):
    expected, trained = wanted
    found = batches(opened(inputs, format, kind))
    assert [len(batch) for batch in found] == [BATCH] * 12 + [50]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.slots == theirs.slots
        for field in ("labels", "dense", "keys", "offsets"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(theirs, field), err_msg=field)
    job = trainer()
    assert job.fit(network(), opened(inputs, format, kind)).rows == ROWS
    assert_same_bits(job, trained)


@pytest.mark.parametrize(("format", "kind"), [("criteo", "queue"), ("parquet", "queue"), ("pipe", "memory")])
def test_threads_split_the_rows_of_every_format(inputs, wanted, format, kind):
    found = batches(opened(inputs, format, kind, threads=2), threads=2)
    rows = sorted(row.tobytes() for batch in found for row in batch.dense)
    assert rows == sorted(row.tobytes() for batch in wanted[0] for row in batch.dense)


@pytest.mark.parametrize(("format", "kind"), [("gzip", "queue"), ("pipe", "queue"), ("parquet", "pyreader")])
def test_formats_resume_too(inputs, wanted, tmp_path, format, kind):
    from fit_jobs import every

    trainer().fit(network(), opened(inputs, format, kind), save=every(tmp_path, 5))
    job = trainer()
    job.fit(network(1), opened(inputs, format, kind), resume=str(tmp_path / "step-00000005"))
    assert_same_bits(job, wanted[1])


def test_names_that_do_not_exist(inputs):
    with pytest.raises(ConfigError, match="reader='tape' is not a reader; choose queue, memory, pyreader, feeder"):
        opened(inputs, "criteo", "tape")
    with pytest.raises(ConfigError, match="format='xml' is not a format; choose auto, csv"):
        opened(inputs, "criteo", "queue", format_name="xml")
    with pytest.raises(ConfigError, match="only the memory reader shuffles"):
        opened(inputs, "criteo", "queue", shuffle_seed=1)
    with pytest.raises(ConfigError, match="on_bad_row='ignore' is not a policy; choose error or skip"):
        batches(opened(inputs, "criteo", "feeder", on_bad_row="ignore"))


@pytest.mark.parametrize("kind", KINDS)
def test_skipped_rows_are_counted_per_reason_in_each_epoch(clicks, tmp_path, kind):
    good = (clicks / "train" / "part-0").read_text().splitlines(keepends=True)[:300]
    bad = ["2" + good[0][1:], good[1].replace("\t", "\tx", 1), "only\tthree\tfields\n", "1\n"]
    (tmp_path / "part-0").write_text("".join(good[:100] + bad + good[100:]))
    reader = open_reader(tmp_path / "part-0", CRITEO, kind=kind, batch_size=BATCH, on_bad_row="skip")
    result = trainer().fit(network(), reader, epochs=2)
    assert result.rows == 600
    assert sum(result.skipped.values()) == 4
    assert len(result.skipped) == 3
    assert sorted(result.skipped.values()) == [1, 1, 2]
