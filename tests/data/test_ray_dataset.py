"""A Ray dataset is read as a Parquet file with the same columns is."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.base import Reader
from sparsefleet.data.open import open_reader

SCHEMA = Schema(dense=(DenseFeature("d"),), slots=(Slot("user"), Slot("ad")))


def table(samples: int = 100) -> pa.Table:
    return pa.table(
        {
            "label": [number % 2 for number in range(samples)],
            "d": [number / 10 for number in range(samples)],
            "user": [f"u{number}" for number in range(samples)],
            "ad": [list(range(number % 3)) for number in range(samples)],
        }
    )


class FakeDataset:
    """Gives a table in blocks, as `ray.data.Dataset` does."""

    def __init__(self, samples: pa.Table, block: int = 30) -> None:
        self._table, self._block = samples, block
        self.context = SimpleNamespace(execution_options=SimpleNamespace(preserve_order=False))

    def iter_batches(self, *, batch_size: int | None, batch_format: str | None) -> Iterator[pa.Table]:
        assert batch_format == "pyarrow"
        assert self.context.execution_options.preserve_order
        for start in range(0, len(self._table), self._block):
            yield self._table.slice(start, self._block)

    def schema(self) -> Any:
        return SimpleNamespace(base_schema=self._table.schema)


FakeDataset.__module__ = "ray.data.dataset"


def read(reader: Reader, threads: int = 1) -> list[Any]:
    with reader.epoch(threads) as epoch:
        return [batch for stream in epoch.streams for batch in stream]


@pytest.mark.parametrize("kind", ["queue", "pyreader", "feeder"])
def test_batches_are_those_of_a_parquet_file(kind: str, tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "samples.parquet")
    from_file = open_reader(str(tmp_path / "samples.parquet"), SCHEMA, batch_size=16)
    from_ray = open_reader(FakeDataset(table()), SCHEMA, kind=kind, batch_size=16)
    assert from_ray.inputs() == from_file.inputs()
    one, other = read(from_file), read(from_ray)
    assert [len(batch) for batch in other] == [16] * 6 + [4]
    for name in ("labels", "dense", "keys"):
        left, right = (np.concatenate([getattr(batch, name) for batch in batches]) for batches in (one, other))
        np.testing.assert_array_equal(left, right)


def test_a_position_goes_on_where_it_was_taken() -> None:
    first = open_reader(FakeDataset(table()), SCHEMA, kind="feeder", batch_size=16)
    with first.epoch() as epoch:
        for _ in range(3):
            first.consumed(next(epoch.streams[0]))
        position = first.position()
    second = open_reader(FakeDataset(table()), SCHEMA, batch_size=16)
    second.seek(position)
    dense = np.concatenate([batch.dense[:, 0] for batch in read(second)])
    np.testing.assert_allclose(dense, np.arange(48, 100, dtype=np.float32) / 10)


def test_bad_samples_are_named_or_counted() -> None:
    bad = table().set_column(0, "label", pa.array([7 if number == 40 else 0 for number in range(100)]))
    with pytest.raises(BadRowError, match=r"the Ray dataset.*41.*'label'"):
        read(open_reader(FakeDataset(bad), SCHEMA))
    skipping = open_reader(FakeDataset(bad), SCHEMA, on_bad_row="skip")
    assert sum(map(len, read(skipping))) == 99
    assert sum(skipping.skipped().values()) == 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"the Ray dataset: no column 'ad'; the file has"):
        read(open_reader(FakeDataset(table().drop_columns(["ad"])), SCHEMA))
    with pytest.raises(ConfigError, match="reader='memory' does not read Ray datasets; choose queue"):
        open_reader(FakeDataset(table()), SCHEMA, kind="memory")
    with pytest.raises(ConfigError, match="no format and no pipe_command"):
        open_reader(FakeDataset(table()), SCHEMA, format_name="criteo")


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_real_dataset(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed (pip install 'sparsefleet[ray]'): ray.data is NOT tested")
    import ray

    for part in range(4):
        pq.write_table(table(1000).slice(part * 250, 250), tmp_path / f"part-{part}.parquet")
    ray.init("local", num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False)
    try:
        dataset = ray.data.read_parquet(str(tmp_path), override_num_blocks=4)
        reader = open_reader(dataset, SCHEMA, batch_size=100)
        users = np.concatenate([batch.dense[:, 0] for batch in read(reader)])
        np.testing.assert_allclose(users, np.arange(1000, dtype=np.float32) / 10)
        again = np.concatenate([batch.dense[:, 0] for batch in read(reader, threads=2)])
        assert sorted(again.tolist()) == sorted(users.tolist())
    finally:
        ray.shutdown()
