"""InMemoryDataset: the reader contract from memory, loading, shuffling, and what is refused."""

from __future__ import annotations

import itertools
import json
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reader_contract import FakeFormat, ReaderContract, drain, numbers, reading_threads, rows, same

import sparsefleet as sf
from sparsefleet.core import notes
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.data.base import Reader
from sparsefleet.data.formats import format_for
from sparsefleet.data.in_memory import InMemoryDataset, draw_order
from sparsefleet.data.sample_blocks import Block, BlockBuilder, SampleBlocks, join_small


def loaded(sizes: list[int], batch_size: int = 8, *, shuffle: int | None = None, **settings: object) -> InMemoryDataset:
    format = FakeFormat(sizes)
    reader = InMemoryDataset(format.files, format, batch_size, **settings)  # type: ignore[arg-type]
    reader.load_into_memory()
    if shuffle is not None:
        reader.local_shuffle(shuffle)
    return reader


class TestInMemoryInOrder(ReaderContract):
    def make(self, batch_size: int = 8) -> Reader:
        return loaded([20, 3, 0, 8, 1, 21], batch_size)

    def make_empty(self) -> Reader:
        return loaded([0, 0])

    def test_an_error_while_reading_comes_out_of_the_stream_with_its_traceback(self) -> None:
        """Here it comes out of the load."""
        format = FakeFormat([20, 30], broken="1")
        reader = InMemoryDataset(format.files, format, threads=2)
        with pytest.raises(OSError, match="file 1 cannot be read beyond row 2") as caught:
            reader.load_into_memory()
        assert "_read" in [entry.name for entry in caught.traceback]
        with pytest.raises(ConfigError, match="no samples in memory"):
            reader.epoch()


class TestInMemoryShuffled(TestInMemoryInOrder):
    in_order = False

    def make(self, batch_size: int = 8) -> Reader:
        return loaded([20, 3, 0, 8, 1, 21], batch_size, shuffle=5)


def order_of(reader: Reader) -> list[int]:
    return [n for batch in drain(reader)[0] for n in numbers(batch)]


def test_every_epoch_has_an_order_of_its_own_given_by_seed_and_number() -> None:
    reader = loaded([50], shuffle=3)
    first, second = order_of(reader), order_of(reader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))
    assert first == draw_order(50, 3, 0).tolist()
    again = loaded([50], shuffle=3)
    again.set_epoch(1)
    assert order_of(again) == second
    assert order_of(loaded([50], shuffle=4)) != first


def test_the_order_does_not_depend_on_how_many_threads_load() -> None:
    orders = [order_of(loaded([10, 40, 3], shuffle=9, threads=threads)) for threads in (1, 2, 5)]
    assert orders[0] == orders[1] == orders[2]


def test_going_on_in_the_second_epoch_gives_the_order_of_the_second_epoch() -> None:
    whole = loaded([53], shuffle=1)
    drain(whole)
    (second,) = drain(whole)
    (third,) = drain(whole)
    reader = loaded([53], shuffle=1)
    drain(reader)
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
        position = json.loads(json.dumps(reader.position()))
    resumed = loaded([53], shuffle=1)
    resumed.seek(position)
    assert all(same(a, b) for a, b in zip(drain(resumed)[0], second[1:], strict=True))
    assert all(same(a, b) for a, b in zip(drain(resumed)[0], third, strict=True))


def test_a_position_of_other_rows_or_another_shuffle_is_refused() -> None:
    reader = loaded([53], shuffle=1)
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
        position = reader.position()
    with pytest.raises(ConfigError, match="local_shuffle with the seed 1, here it is 2"):
        loaded([53], shuffle=2).seek(position)
    with pytest.raises(ConfigError, match="with the seed 1, here it is None"):
        loaded([53]).seek(position)
    with pytest.raises(ConfigError, match="samples in memory 53, here it is 52"):
        loaded([52], shuffle=1).seek(position)
    with pytest.raises(ConfigError, match="another list of files"):
        loaded([53, 1], shuffle=1).seek(position)
    for change, message in (
        ({"epoch": -1}, "epoch or order is missing"),
        ({"units": [["", 0, 99]]}, "go beyond the 53 samples"),
        ({"progress": [[3, 1, -1, False]]}, "makes no sense for 1 units"),
    ):
        with pytest.raises(ConfigError, match=message):
            reader.seek({**position, **change})
    reader.seek({**position, "order": 1})
    with pytest.raises(ConfigError, match="order drawn for this epoch is not the one"):
        reader.epoch()


def test_use_before_loading_says_what_to_call() -> None:
    format = FakeFormat([5])
    reader = InMemoryDataset(format.files, format)
    for use in (
        reader.epoch,
        reader.local_shuffle,
        reader.global_shuffle,
        lambda: list(reader.export_rows()),
    ):
        with pytest.raises(ConfigError, match=r"no samples in memory yet; call load_into_memory\(\) first"):
            use()
    with pytest.raises(ConfigError, match="nothing is being loaded"):
        reader.wait_preload_done()
    assert reader.get_memory_data_size() == 0
    assert reader.memory_bytes == 0


def test_preload_goes_on_in_the_background() -> None:
    gate = threading.Event()
    format = FakeFormat([50], block=gate)
    reader = InMemoryDataset(format.files, format)
    reader.preload_into_memory()
    with pytest.raises(ConfigError, match=r"call wait_preload_done\(\) first"):
        reader.epoch()
    with pytest.raises(ConfigError, match="being loaded already"):
        reader.preload_into_memory()
    gate.set()
    reader.wait_preload_done()
    assert reader.get_memory_data_size() == 50
    assert reading_threads() == []


def test_release_stops_a_load_and_frees_rows() -> None:
    gate = threading.Event()
    format = FakeFormat([5000], chunk=1, block=gate)
    reader = InMemoryDataset(format.files, format)
    reader.preload_into_memory()
    gate.set()
    started = time.monotonic()
    reader.release_memory()
    assert time.monotonic() - started < 2
    assert reading_threads() == []
    assert reader.memory_bytes == 0
    reader.load_into_memory()
    assert reader.get_memory_data_size() == 5000
    assert reader.memory_bytes > 5000 * 20
    with reader.epoch(), pytest.raises(ConfigError, match="release_memory while an epoch is open"):
        reader.release_memory()
    reader.release_memory()
    assert (reader.memory_bytes, reader.get_memory_data_size()) == (0, 0)


def test_bad_rows_are_errors_or_are_counted_once() -> None:
    format = FakeFormat([10, 10], bad=frozenset({4, 15}))
    with pytest.raises(BadRowError, match="not a number"):
        InMemoryDataset(format.files, format).load_into_memory()
    reader = InMemoryDataset(format.files, format, on_bad_row="skip", threads=2)
    reader.load_into_memory()
    drain(reader)
    assert reader.skipped() == {"not a number": 2}
    assert reader.get_memory_data_size() == 18
    nothing = FakeFormat([1], bad=frozenset({0}))
    with pytest.raises(DataError, match="no good samples in 0; skipped: 1 × not a number"):
        InMemoryDataset(nothing.files, nothing, on_bad_row="skip").load_into_memory()


def test_rows_go_out_and_come_in_as_batches() -> None:
    one, other = loaded([30]), loaded([20])
    exchanged = [*one.export_rows(np.arange(0, 30, 2)), *other.export_rows()]
    one.import_rows(exchanged)
    assert one.get_memory_data_size() == 35
    assert order_of(one) == [*range(0, 30, 2), *range(20)]
    strange = Batch.from_slots({"z": ([1], [0, 1])})
    with pytest.raises(ConfigError, match="do not fit among samples"):
        one.import_rows([strange])


def test_global_shuffle_of_one_trainer_is_a_local_one() -> None:
    one, other = loaded([30]), loaded([30], shuffle=8)
    one.global_shuffle(seed=8)
    assert order_of(one) == order_of(other)
    assert one.get_shuffle_data_size() == 30
    with pytest.raises(ConfigError, match=r"give sparsefleet\.fleet"):
        one.global_shuffle(fleet=object())


def test_fluids_numbers_of_threads_are_no_seeds(caplog: pytest.LogCaptureFixture) -> None:
    notes._told.clear()
    orders = []
    for arguments, settings in (((None, 12), {}), ((None,), {"thread_num": 3}), ((), {}), ((), {"seed": 12})):
        one = loaded([30])
        one.global_shuffle(*arguments, **settings)
        orders.append(order_of(one))
    assert orders[0] == orders[1] == orders[2] != orders[3]
    assert "needs no thread_num" in caplog.text
    one = loaded([20, 10])
    one.preload_into_memory(thread_num=2)
    one.wait_preload_done()
    assert one.get_memory_data_size() == 30
    with pytest.raises(ConfigError, match="threads=0"):
        one.preload_into_memory(0)
    assert one.get_memory_data_size() == 30, "what is refused releases nothing"


def test_sizes_of_all_trainers() -> None:
    one, both = loaded([30]), SimpleNamespace(worker_index=lambda: 0, worker_num=lambda: 2, exchange=dict)
    both.util = SimpleNamespace(all_reduce=lambda number: number + 5)
    alone = SimpleNamespace(worker_index=lambda: 0, worker_num=lambda: 1, exchange=dict)
    assert one.get_shuffle_data_size(alone) == one.get_memory_data_size(alone) == 30
    assert one.get_shuffle_data_size(both) == one.get_memory_data_size(both) == 35
    with pytest.raises(ConfigError, match=r"get_memory_data_size\(fleet=5\): give sparsefleet\.fleet"):
        one.get_memory_data_size(5)


def test_a_queue_is_not_shuffled() -> None:
    from sparsefleet.data import QueueDataset

    for call in ("local_shuffle", "global_shuffle"):
        with pytest.raises(ConfigError, match="QueueDataset streams its own: use create_dataset"):
            getattr(QueueDataset(), call)(None)


@pytest.mark.parametrize("seed", [-1, 1.5, None, True])
def test_a_senseless_seed_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match="the seed must be a whole number"):
        loaded([5]).local_shuffle(seed)


def test_setters_are_refused_once_loading_has_begun() -> None:
    reader = loaded([5])
    with pytest.raises(ConfigError, match=r"set_filelist after loading has begun; call release_memory\(\)"):
        reader.set_filelist(["x"])
    reader.release_memory()
    reader.set_batch_size(2)
    reader.load_into_memory()
    assert [len(batch) for batch in drain(reader)[0]] == [2, 2, 1]


def test_blocks_give_any_rows_in_any_order() -> None:
    batches = [rows(0, 5), rows(5, 6), rows(6, 40), rows(40, 41)]
    builder = BlockBuilder(("a", "b"), 2, block_samples=6)
    for batch in batches:
        builder.add(batch)
    held = SampleBlocks(("a", "b"), 2, builder.finish())
    assert len(held) == 41
    order = np.random.default_rng(0).integers(0, 41, 100)
    assert same(held.gather(order), Batch.concat([rows(n, n + 1) for n in order]))
    assert same(Batch.concat(list(held.export(at_a_time=7))), rows(0, 41))
    assert len(held.gather(order[:0])) == 0


def test_blocks_of_equal_rows_take_the_short_way() -> None:
    def make(first: int, stop: int) -> Batch:
        count = stop - first
        return Batch(
            labels=np.arange(first, stop, dtype=np.float32),
            dense=np.empty((count, 0), np.float32),
            keys=np.arange(first * 3, stop * 3, dtype=np.uint64),
            offsets=np.arange(count * 3 + 1, dtype=np.int64),
            slots=("a", "b", "c"),
        )

    held = SampleBlocks(("a", "b", "c"), 0, [Block.of([make(0, 10)]), Block.of([make(10, 13)])])
    order = np.asarray([12, 0, 5, 11, 5])
    assert same(held.gather(order), make(0, 13).take(order))


def test_blocks_of_equal_and_of_unequal_rows_go_together() -> None:
    equal = Batch.from_slots({"a": ([1, 2], [0, 1, 2]), "b": ([3, 4], [0, 1, 2])}, labels=[7, 8], dense=np.ones((2, 2)))
    whole = Batch.concat([rows(0, 9), equal, rows(9, 12)])
    blocks = [Block.of([batch]) for batch in (rows(0, 9), equal, rows(9, 12))]
    assert [block.bag_size for block in blocks] == [None, 1, None]
    order = np.random.default_rng(1).permutation(14)
    assert same(SampleBlocks(("a", "b"), 2, blocks).gather(order), whole.take(order))
    assert same(SampleBlocks(("a", "b"), 2, join_small(blocks, ("a", "b"))).gather(order), whole.take(order))


def test_many_small_blocks_become_few_in_the_same_order() -> None:
    blocks = [Block.of([rows(n, n + 1)]) for n in range(30)]
    joined = join_small(blocks, ("a", "b"), block_samples=8)
    assert [len(block) for block in joined] == [8, 8, 8, 6]
    assert same(SampleBlocks(("a", "b"), 2, joined).gather(np.arange(30)), rows(0, 30))


def test_rows_in_memory_take_less_than_batches_do() -> None:
    count, slots = 1000, tuple(f"C{i}" for i in range(26))
    batch = Batch(
        labels=np.zeros(count, np.float32),
        dense=np.zeros((count, 13), np.float32),
        keys=np.zeros(count * 26, np.uint64),
        offsets=np.arange(count * 26 + 1, dtype=np.int64),
        slots=slots,
    )
    assert Block.of([batch]).nbytes / count == 264
    one_more = Batch(batch.labels[:1], batch.dense[:1], batch.keys[:27], np.append(np.arange(26), 27), slots)
    assert Block.of([batch, one_more]).nbytes / count < 300


def ragged(samples: int = 900) -> InMemoryDataset:
    """Slots a (one key), b (0 to 2 keys), c (one key), all told by the sample's number."""
    schema = sf.Schema((sf.DenseFeature("n"),), tuple(sf.Slot(name) for name in "abc"), sparse_feature_dim=0)
    lines = []
    for n in range(samples):
        bag = [n] * (n % 2 + 1)
        lines.append(f"1 {n} 1 {n} {len(bag)} {' '.join(map(str, bag))} 1 {n} 1 {n % 2}")
    path = Path(tempfile.mkdtemp()) / "part-0"
    path.write_text("\n".join(lines) + "\n")
    reader = InMemoryDataset([path], format_for("multislot", schema), 100)
    reader.load_into_memory()
    return reader


def columns(reader: InMemoryDataset) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {"n": [], "a": [], "b": [], "c": []}
    for batch in reader.export_rows():
        found["n"] += [(int(value),) for value in batch.dense[:, 0]]
        for slot in "abc":
            keys, offsets = batch.slot(slot)
            found[slot] += [tuple(keys[x:y].tolist()) for x, y in itertools.pairwise(offsets)]
    return found


def test_slots_shuffle_moves_the_values_of_these_slots_among_samples() -> None:
    reader = ragged()
    before = columns(reader)
    reader.set_fea_eval(10_000, True)
    reader.slots_shuffle(["b", "c"])
    after = columns(reader)
    assert after["n"] == before["n"]
    assert after["a"] == before["a"]
    for slot in ("b", "c"):
        assert after[slot] != before[slot]
        assert sorted(after[slot]) == sorted(before[slot])
    assert [bag[0] for bag in after["b"]] == [bag[0] for bag in after["c"]]  # they move together
    assert sum(x == y for x, y in zip(after["c"], before["c"], strict=True)) < 20
    reader.slots_shuffle(["a"])
    assert columns(reader)["b"] == before["b"]  # each call starts from what was loaded
    reader.slots_shuffle(["a"], seed=1)
    other = columns(reader)
    reader.slots_shuffle(["a"], seed=1)
    assert columns(reader) == other
    reader.slots_shuffle([])
    assert columns(reader) == before
    assert len(order_of_dense(reader)) == 900


def order_of_dense(reader: InMemoryDataset) -> list[int]:
    return [int(value) for batch in drain(reader)[0] for value in batch.dense[:, 0]]


def test_a_position_knows_which_slots_were_shuffled() -> None:
    reader = ragged()
    reader.slots_shuffle(["a"])
    with reader.epoch() as epoch:
        reader.consumed(next(epoch.streams[0]))
        position = json.loads(json.dumps(reader.position()))
    reader.seek(position)
    reader.slots_shuffle([])
    with pytest.raises(ConfigError, match=r"slots_shuffle of \[\['a'\], 0\], here it is None"):
        reader.seek(position)


def test_what_slots_shuffle_refuses() -> None:
    reader = ragged()
    for names, said in ((["z"], "there is no slot z; there are a, b, c"), ("a", "give a list of slots' names")):
        with pytest.raises(ConfigError, match=said):
            reader.slots_shuffle(names)
    with pytest.raises(ConfigError, match="must be a whole number, 0 or above"):
        reader.slots_shuffle(["a"], seed=-1)
    with reader.epoch() as epoch:
        next(epoch.streams[0])
        with pytest.raises(ConfigError, match="while an epoch is open"):
            reader.slots_shuffle(["a"])
    reader.set_fea_eval(5, False)
    with pytest.raises(ConfigError, match=r"after set_fea_eval\(…, False\)"):
        reader.slots_shuffle(["a"])
    for size, switch in ((0, True), (True, True), (10, "yes")):
        with pytest.raises(ConfigError, match="set_fea_eval"):
            reader.set_fea_eval(size, switch)
    with pytest.raises(ConfigError, match=r"QueueDataset streams its samples: use create_dataset\(.InMemoryDataset"):
        sf.QueueDataset().set_fea_eval(1000, True)
    empty = InMemoryDataset(["x"])
    with pytest.raises(ConfigError, match="no samples in memory"):
        empty.slots_shuffle(["a"])
