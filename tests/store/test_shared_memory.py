"""Bodies in memory that trainer and server share: the same answers as without, and nothing that a peer can break."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_processes import Servers, servers
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Uniform
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.wire import WireError
from sparsefleet.store.wire.segment import AVAILABLE, SEALS, OwnSegment, accepted
from sparsefleet.table import TableSpec

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="needs Linux's memfd")

SPEC = TableSpec("ads", 10, optim.Adam(1e-2), Uniform(-0.1, 0.1))
KEYS = np.arange(1, 20_001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
SMALL = 1 << 16


def shared_by(process: int) -> int:
    """Mappings of segments that a process has."""
    return Path(f"/proc/{process}/maps").read_text().count("/memfd:sparsefleet")


@pytest.fixture
def fleet():
    with servers() as made:
        yield made


# --- room in a segment


@given(st.lists(st.tuples(st.integers(1, 20_000), st.booleans()), max_size=40))
def test_rooms_never_overlap_and_all_come_back(steps):
    segment = OwnSegment(SMALL)
    taken = []
    for size, give_back in steps:
        room = segment.take(size)
        if room is not None:
            assert len(room) == size
            room[:] = len(taken)
            taken.append((len(taken), room))
        if give_back and taken:
            number, oldest = taken.pop(0)
            assert (oldest == number).all()
            segment.give_back(oldest)
        taken = [(index, room) for index, (_, room) in enumerate(taken)]
        for index, room in taken:
            room[:] = index
    for index, room in taken:
        assert (room == index).all()
        segment.give_back(room)
    assert segment.take(SMALL - 64) is not None


def test_a_room_given_back_twice_is_free_once():
    segment = OwnSegment(SMALL)
    first = segment.take(1000)
    for _ in range(2):
        segment.give_back(first)
    second, third = segment.take(1000), segment.take(1000)
    second[:], third[:] = 2, 3
    assert (second == 2).all()


def test_without_address_space_the_descriptor_is_closed_once(monkeypatch):
    closed, close, made, make = [], os.close, [], os.memfd_create

    def noted(*arguments: object) -> int:
        made.append(make(*arguments))
        return made[-1]

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOMEM, "no address space")

    monkeypatch.setattr("mmap.mmap", refuse)
    monkeypatch.setattr(os, "memfd_create", noted)
    monkeypatch.setattr(os, "close", lambda file: (closed.append(file), close(file)))
    with pytest.raises(OSError, match="no address space"):
        OwnSegment(SMALL)
    gc.collect()
    assert [file for file in closed if file in made] == made  # others may close theirs meanwhile


def test_bytes_of_elsewhere_have_no_place():
    segment, other = OwnSegment(SMALL), OwnSegment(SMALL)
    room = segment.take(100)
    assert segment.place(room) == [64, 100]
    assert other.place(room) is None
    other.give_back(room)
    assert segment.place(np.empty(10, np.uint8)) is None


@pytest.mark.parametrize(
    "place", [None, "x", [64], [64, 1, 1], [-64, 8], [64, -8], [True, 8], [0, 8], [65, 8], [64, SMALL], [SMALL, 8]]
)
def test_a_place_outside_is_refused(place):
    with pytest.raises(WireError, match="no place in a segment of 65536 bytes"):
        OwnSegment(SMALL).view(place)


# --- what a server accepts


def test_what_one_writes_the_other_reads():
    mine = OwnSegment(SMALL)
    theirs = accepted(mine.offer())
    room = mine.take(8)
    room[:] = np.arange(8)
    np.testing.assert_array_equal(theirs.view(mine.place(room)), np.arange(8))


def unsealed(size: int) -> int:
    file = os.memfd_create("sparsefleet", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    return file


def test_offers_that_are_declined(tmp_path):
    mine = OwnSegment(SMALL)
    good = mine.offer()
    file = os.open(tmp_path / "memfd:sparsefleet", os.O_RDWR | os.O_CREAT)
    shrinks, stranger = unsealed(SMALL), os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(stranger, SMALL)
    fcntl.fcntl(stranger, fcntl.F_ADD_SEALS, SEALS)
    try:
        for change in (
            {"secret": "00" * 32},
            {"bytes": SMALL // 2},
            {"bytes": 1 << 50},
            {"descriptor": 1 << 20},
            {"descriptor": file},
            {"descriptor": shrinks, "secret": "00" * 32},
            {"descriptor": stranger, "secret": "00" * 32},
            {"process": 1 << 22},
            {"process": 1 << 70},
        ):
            assert accepted({**good, **change}) is None, change
        mine.withdraw()
        assert accepted(good) is None
    finally:
        for descriptor in (file, shrinks, stranger):
            os.close(descriptor)


@pytest.mark.parametrize("offer", ["x", 3, [], {}, {"process": "1", "descriptor": 1, "bytes": 1, "secret": "00" * 32}])
def test_an_offer_that_is_none_is_an_error(offer):
    with pytest.raises(WireError, match="segment's offer"):
        accepted(offer)


# --- with real servers


def trained(fleet: Servers, *, shared: bool) -> list[np.ndarray]:
    """Every kind of call that carries much."""
    seen = []
    store = fleet.store(shared_memory=shared)
    store.create_table(SPEC)
    rng = np.random.default_rng(3)
    block = np.linspace(-1, 1, 50_000).astype(np.float32)
    store.create_dense("net", block, optim.Adam(1e-2), [("w", (50_000,))])
    out = np.empty_like(block)
    for _ in range(5):
        keys = rng.permutation(KEYS)[:15_000]
        seen.append(store.pull("ads", keys).wait())
        grads, dense = rng.standard_normal((15_000, 10)).astype(np.float32), rng.standard_normal(50_000)
        pushed = store.push_step({"ads": KeyedRows(keys, grads)}, {"net": dense.astype(np.float32)}, steps=1)
        later = store.pull_dense("net", out)
        grads[:] = 99  # the store has its own copy
        pushed.wait()
        later.wait()
        seen.append(out.copy())
    store.rounds.push({"ads": KeyedRows(KEYS, np.ones((len(KEYS), 10), np.float32))}, {"net": block}).wait()
    seen.append(store.pull("ads", KEYS).wait())
    return seen


@pytest.mark.parametrize("count", [1, 2])
def test_all_answers_are_those_of_messages(fleet, count):
    fleet.start(count)
    shared = trained(fleet, shared=True)
    assert [shared_by(process.pid) for process in fleet.processes] == [1] * count
    with servers() as other:
        other.start(count)
        plain = trained(other, shared=False)
        assert [shared_by(process.pid) for process in other.processes] == [0] * count
    for one, another in zip(shared, plain, strict=True):
        assert one.tobytes() == another.tobytes()


def test_answers_waited_for_in_any_order(fleet):
    store = fleet.start(2).store()
    store.create_table(SPEC)
    pending = [store.pull("ads", KEYS[start : start + 5000]) for start in range(0, 20_000, 5000)]
    seen = [one.wait() for one in reversed(pending)][::-1]
    np.testing.assert_array_equal(np.concatenate(seen), store.pull("ads", KEYS).wait())


def test_answers_that_nobody_waits_for_give_their_room_back(fleet):
    store = fleet.start().store()
    store.create_table(SPEC)
    wanted = store.pull("ads", KEYS).wait()
    for _ in range(1000):  # 800 KB each: more than a segment holds
        store.pull("ads", KEYS)
    gc.collect()
    np.testing.assert_array_equal(store.pull("ads", KEYS).wait(), wanted)
    assert segment_of(store).take(128 << 20) is not None


def test_more_than_a_segment_holds_goes_in_messages(fleet, monkeypatch):
    monkeypatch.setattr(sys.modules["sparsefleet.store.remote.stream"], "OwnSegment", lambda: OwnSegment(SMALL))
    store = fleet.start().store()
    store.create_table(SPEC)
    first = store.pull("ads", KEYS).wait()
    store.push("ads", KEYS, np.ones((len(KEYS), 10), np.float32)).wait()
    assert (store.pull("ads", KEYS).wait() < first).all()
    assert shared_by(fleet.processes[0].pid) == 1


def test_a_segment_is_gone_with_its_store(fleet):
    store = fleet.start().store()
    store.create_table(SPEC)
    store.pull("ads", KEYS).wait()
    assert shared_by(fleet.processes[0].pid) == 1
    store.close()
    del store
    fleet.stores.clear()
    gc.collect()
    wait_until(lambda: shared_by(fleet.processes[0].pid) == 0, 20, "the end of the sharing")
    assert shared_by(os.getpid()) == 0


def segment_of(store):
    return store.connection.callers.mine()._streams[0]._segment


def test_places_that_are_not_there_get_an_error_and_the_server_goes_on(fleet):
    store = fleet.start().store()
    store.create_table(SPEC)
    first = store.pull("ads", KEYS).wait()
    lane = store.connection.callers.mine()
    parts = [["rows", "ads", 1000, 0]]
    for place in ([64, 1 << 40], [1 << 40, 64], "here", [3, 8], [0, 8000], {"a": 1}):
        for header in ({"at": place}, {"room": place}):
            call = lane.send("test", {0: ({"op": "pull", "parts": parts, **header}, np.empty(0, np.uint8), 0)})[0]
            with pytest.raises(StoreError, match="no place in a segment"):
                call.wait(10)
    np.testing.assert_array_equal(store.pull("ads", KEYS).wait(), first)


@pytest.mark.parametrize("op", ["pull", "push"])
def test_keys_that_change_while_they_are_read_do_no_harm(fleet, op):
    store = fleet.start().store()
    store.create_table(SPEC)
    store.pull("ads", KEYS).wait()
    lane, segment, count = store.connection.callers.mine(), segment_of(store), 60_000
    room, floats = segment.take(48 * count), 10 * count if op == "push" else 0
    keys, over = room[: 8 * count].view(np.uint64), threading.Event()
    spread = np.random.default_rng(0).integers(0, 1 << 63, count, dtype=np.uint64)

    def change():
        while not over.is_set():
            keys[:] = 12345
            keys[:] = spread

    thread = threading.Thread(target=change)
    thread.start()
    try:
        at = segment.place(room[: 8 * count + 4 * floats])
        header = {"op": op, "create": False, "parts": [["rows", "ads", count, floats]], "at": at}
        for _ in range(100):  # about 10 were enough to bring a server down
            lane.send("test", {0: (header, np.empty(0, np.uint8), 40 * count)})[0].wait(10)
    finally:
        over.set()
        thread.join()
    assert store.pull("ads", KEYS).wait().shape == (len(KEYS), 10)


def test_without_a_segment_a_shared_body_is_refused(fleet):
    store = fleet.start().store(shared_memory=False)
    store.create_table(SPEC)
    header = {"op": "pull", "parts": [["rows", "ads", 1, 0]], "at": [64, 8]}
    call = store.connection.callers.mine().send("test", {0: (header, np.empty(0, np.uint8), 0)})[0]
    with pytest.raises(StoreError, match="on a stream that shares none"):
        call.wait(10)
