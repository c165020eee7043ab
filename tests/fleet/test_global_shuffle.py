"""global_shuffle across trainers: every row ends at exactly one of them, whatever they started with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from server_processes import Servers, servers

from sparsefleet import fleet
from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError, StoreError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.formats.base import BadSamples, Chunk, Unit
from sparsefleet.data.in_memory import InMemoryDataset
from sparsefleet.data.sample_bytes import Bytes, from_bytes, to_bytes
from sparsefleet.fleet.shuffle import exchange
from sparsefleet.server.config import ServerConfig
from sparsefleet.server.ledger import Account
from sparsefleet.server.letters import Letters
from sparsefleet.server.sessions import Sessions
from sparsefleet.store.remote import RemoteStore
from sparsefleet.store.wire import Letter

SCHEMA = Schema(dense=(DenseFeature("d"),), slots=(Slot("a"), Slot("b")))


class Numbered:
    """A format whose file "5:12" has rows 5 to 11; slot b has 0 to 2 values, and all say the row's number."""

    schema = SCHEMA

    def plan(self, files: list[str], pieces: int) -> list[Unit]:
        return [Unit(file) for file in files]

    def read(self, unit: Unit, bad_samples: BadSamples, resume: object = None) -> Iterable[Chunk]:
        start, stop = map(int, unit.file.split(":"))
        yield Chunk(batch_of(range(start, stop)), np.arange(stop - start) + 1)


def batch_of(numbers: Iterable[int]) -> Batch:
    numbers = list(numbers)
    lengths = [length for number in numbers for length in (1, number % 3)]
    return Batch(
        labels=np.array([number % 2 for number in numbers], np.float32),
        dense=np.array(numbers, np.float32).reshape(-1, 1),
        keys=np.repeat(np.array(numbers, np.uint64), [1 + number % 3 for number in numbers]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        slots=SCHEMA.slot_names,
    )


class Trainer:
    """What `fleet` is to a trainer's script: here several live in one process."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self._count = 0

    def worker_index(self) -> int:
        return self.store.config.worker

    def worker_num(self) -> int:
        return self.store.config.workers

    def exchange(self, letters: Iterable[tuple[int, Bytes]]) -> dict[int, list[Bytes]]:
        self._count += 1
        return exchange(self.store.crew, f"exchange {self._count}", letters)


def dataset(start: int, stop: int) -> InMemoryDataset:
    made = InMemoryDataset([f"{start}:{stop}"], Numbered(), 8)  # type: ignore[arg-type]
    made.load_into_memory()
    return made


def rows_of(made: InMemoryDataset) -> list[int]:
    numbers = []
    for batch in made.export_rows():
        there = [int(number) for number in batch.dense[:, 0]]
        expected = batch_of(there)
        for name in ("labels", "keys", "offsets"):
            assert np.array_equal(getattr(batch, name), getattr(expected, name)), "a row keeps all that is in it"
        numbers += there
    return numbers


@pytest.mark.parametrize(("sizes", "count"), [((20_000, 7001), 1), ((0, 5000, 12_001), 2)])
def test_every_row_exactly_once(sizes: tuple[int, ...], count: int) -> None:
    starts = np.cumsum([0, *sizes]).tolist()
    # One without rows of its own cannot be loaded: it starts with one.
    held = [dataset(start, max(stop, start + 1)) for start, stop in pairwise(starts)]
    before = sorted(number for each in held for number in rows_of(each))
    with servers() as made, ThreadPoolExecutor(len(sizes)) as pool:
        made.start(count)
        trainers = [Trainer(store) for store in made.stores_of_all(len(sizes))]
        for turn in range(2):
            list(pool.map(lambda each, trainer: each.global_shuffle(trainer, seed=turn), held, trainers))  # noqa: B023
            after = [rows_of(each) for each in held]
            assert sorted(number for rows in after for number in rows) == before
            assert max(map(len, after)) - min(map(len, after)) <= len(sizes), "evenly"
        stats = trainers[0].store.stats()["servers"]
        assert [server["queues"]["mail_bytes"] for server in stats] == [0] * count, "nothing stays on the servers"
    for rows in after:
        shares = np.histogram(rows, bins=[0, *starts[1:]])[0] / len(rows)
        assert shares == pytest.approx(np.array(sizes) / sum(sizes), abs=0.05), "from everywhere alike"
        assert np.abs(np.diff(rows)).mean() > len(before) / 10, "not in the order that they came in"


def test_the_same_seed_gives_the_same_rows() -> None:
    def shuffled(made: Servers) -> list[list[int]]:
        held = [dataset(0, 500), dataset(500, 800)]
        trainers = [Trainer(store) for store in made.stores_of_all(2)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda each, trainer: each.global_shuffle(trainer, seed=5), held, trainers))
        for trainer in trainers:
            trainer.store.close()
        return [rows_of(each) for each in held]

    with servers() as made:
        made.start(1)
        assert shuffled(made) == shuffled(made)


def test_a_trainer_that_is_lost_is_named() -> None:
    with servers() as made:
        made.start(1, "--timeout", "1")
        here = made.store(0, 2)
        made.store(1, 2, heartbeat=100.0)
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"exchange .*lost worker 1 .*last heard of"):
            dataset(0, 10).global_shuffle(Trainer(here))
        assert time.monotonic() - began < 15


def test_one_process_shuffles_by_itself() -> None:
    fleet.init(fleet.Role())
    one, other = dataset(0, 50), dataset(0, 50)
    one.global_shuffle(fleet, seed=3)  # type: ignore[arg-type]
    other.local_shuffle(3)
    assert rows_of(one) == rows_of(other)
    with pytest.raises(ConfigError, match="this one has no other"):
        fleet.exchange([])


def test_an_exchange_needs_the_servers() -> None:
    fleet.init(fleet.Role.worker(0, 2, ["127.0.0.1:1"]))
    with pytest.raises(ConfigError, match=r"call fleet.init_worker\(\) first"):
        fleet.exchange([])
    fleet.init(fleet.Role())


def test_a_letter_counts_once_and_is_given_until_the_next_is_asked_for() -> None:
    mail, lane = Letters(Sessions(ServerConfig(workers=2))), Account(0, "life", 0)
    for number, text in ((1, b"one"), (1, b"one"), (2, b"two")):
        mail.put(lane, number, "box", 1, Letter(0, False, np.frombuffer(text, np.uint8)), lambda reason: None)
    assert mail.held_bytes == 6
    for asked, expected in ((0, b"one"), (0, b"one"), (1, b"two"), (1, b"two")):
        letter = mail.take(Account(1, "life", 0), "box", asked, [0], 0.0)
        assert letter is not None
        assert letter.body.tobytes() == expected
    assert mail.take(Account(1, "life", 0), "box", 2, [0], 0.0) is None
    assert mail.held_bytes == 0
    with pytest.raises(StoreError, match="letter 0 of 'box' is gone"):
        mail.take(Account(1, "life", 0), "box", 0, [0], 0.0)


def test_whoever_brings_too_much_waits() -> None:
    mail = Letters(Sessions(ServerConfig(workers=2)), held_bytes=10)
    letter = Letter(0, False, np.zeros(8, np.uint8))
    mail.put(Account(0, "life", 0), 1, "box", 1, letter, lambda reason: None)
    second = threading.Thread(
        target=mail.put, args=(Account(0, "life", 1), 1, "box", 1, letter, lambda reason: None), daemon=True
    )
    second.start()
    second.join(0.3)
    assert second.is_alive()
    assert mail.held_bytes == 8
    mail.take(Account(1, "life", 0), "box", 1, [0], 5.0)
    second.join(5.0)
    assert not second.is_alive()


def test_bytes_that_are_no_samples() -> None:
    data = to_bytes(batch_of(range(10)))
    assert np.array_equal(from_bytes(data, SCHEMA.slot_names, 1).keys, batch_of(range(10)).keys)
    with pytest.raises(DataError, match="bytes hold no samples"):
        from_bytes(data[:8], SCHEMA.slot_names, 1)
    with pytest.raises(DataError, match="do not hold 10 samples"):
        from_bytes(data[:-4], SCHEMA.slot_names, 1)
    with pytest.raises(DataError, match="samples of 2 slots and 1 dense features came; here they have 3 and 1"):
        from_bytes(data, ("a", "b", "c"), 1)
