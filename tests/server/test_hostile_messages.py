"""Messages that are malformed, huge, or of another table, dimension or version get an error; the server goes on."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from sparsefleet import optim
from sparsefleet.core.errors import StoreError
from sparsefleet.core.initializer import Constant
from sparsefleet.store.remote.packing import RowItem, pack
from sparsefleet.store.wire import PROTOCOL, WireError, decode, encode, read_parts
from sparsefleet.table import TableSpec

SPEC = TableSpec("ads", 2, optim.SGD(1.0), Constant(0.0))
KEYS = np.arange(4, dtype=np.uint64)
TIMEOUT = flight.FlightCallOptions(timeout=10)


@pytest.fixture
def store(fleet):
    made = fleet.start(1).store()
    made.create_table(SPEC)
    made.create_dense("net", np.zeros(6, np.float32), optim.SGD(1.0), [("w", (6,))])
    return made


class Raw:
    """A stream on which anything can be said."""

    def __init__(self, fleet, store, **changes) -> None:
        hello = {"protocol": PROTOCOL, "worker": 0, "incarnation": store.connection.incarnation, "lane": 9, **changes}
        self.client = flight.FlightClient(f"grpc://{fleet.endpoints[0]}")
        self.open(json.dumps(hello).encode())

    def open(self, command: bytes) -> None:
        self.writer, self.reader = self.client.do_exchange(flight.FlightDescriptor.for_command(command), TIMEOUT)
        self.begun = False

    def answer(self) -> dict:
        chunk = self.reader.read_chunk()
        return decode(chunk.app_metadata, chunk.data).header

    def ask(self, metadata: bytes, batch: pa.RecordBatch | None = None) -> dict:
        if batch is None:
            self.writer.write_metadata(pa.py_buffer(metadata))
        else:
            if not self.begun:
                self.writer.begin(batch.schema)
                self.begun = True
            self.writer.write_with_metadata(batch, pa.py_buffer(metadata))
        return self.answer()

    def close(self) -> None:
        self.reader.cancel()


def message(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"SFW1" + struct.pack("<I", len(text)) + text + body


def test_each_wrong_message_is_told_what_is_wrong(fleet, store):
    raw = Raw(fleet, store)
    assert "server" in raw.answer()
    eight, four = np.arange(1, dtype=np.uint64).tobytes(), np.ones(1, np.float32).tobytes()
    push = {"op": "push", "seq": 1}
    for bad, reason in [
        (b"x", "needs a header"),
        (b"GET / HTTP/1.1\r\n", "begins with b'SFW1'"),
        (b"SFW1" + struct.pack("<I", 0xFFFFFFFF), "claims 4294967295 bytes"),
        (b"SFW1" + struct.pack("<I", 8) + b"{nojson}", "not JSON"),
        (b"SFW1" + struct.pack("<I", 2) + b"[]", "must be a JSON object; got list"),
        (message({"op": "push"}), "seq must be 1 or above; got None"),
        (message({"op": "push", "seq": -4}), "seq must be 1 or above; got -4"),
        (message({"op": "drop_tables", "seq": 1}), "operation 'drop_tables' does not exist"),
        (message({"op": ["push"], "seq": 1}), "does not exist"),
        (message(push), "lists up to 4096 parts"),
        (message({**push, "parts": [["rows", "ads"]]}), r"a part is [rows or dense"),
        (message({**push, "parts": [["rows", "ads", -1, 0]]}), "must be 0 or above; got [-1, 0]"),
        (message({**push, "parts": [["rows", "ads", 1 << 70, 0]]}), "bytes; 0 came"),
        (
            message({**push, "parts": [["rows", "ads", 1, 2]]}, eight),
            "with their counts, are 16 bytes; 8 came",
        ),
        (message({**push, "parts": [["rows", "cats", 1, 1]]}, eight + four), "no table 'cats'; there are: ads"),
        (message({**push, "parts": [["rows", "ads", 1, 3]]}, eight + 3 * four), "'ads' has rows of 2 values"),
        (message({**push, "parts": [["dense", "net", 0, 5]]}, 5 * four), "'net': 6 floats belong here; got 5"),
        (message({**push, "parts": [["dense", "net", 1, 0]]}, eight), "has no keys; got 1"),
        (message({"op": "pull", "seq": 1, "create": "yes", "parts": []}), "create must be true or false; got 'yes'"),
        (message({"op": "geo", "seq": 1, "parts": [["rows", "dogs", 0, 0]]}), "no table 'dogs'"),
        (message({"op": "create_dense", "seq": 1, "parts": []}), "create_dense needs one part"),
        (message({**push, "pulls": 2, "parts": []}), "pulls=2 of 0 parts"),
        (message({**push, "pulls": -1, "parts": []}), "pulls must be a whole number"),
        (message({**push, "pulls": 1, "parts": [["dense", "net", 0, 0]]}), "by fresh, not as parts"),
        (message({**push, "dense": "int4", "parts": []}), "one of float32, bfloat16, int8; got 'int4'"),
        (
            message({**push, "dense": "int8", "parts": [["dense", "net", 0, 6]]}, 6 * four),
            "6 numbers as int8 are 3 words; 6 came",
        ),
        (message({"op": "norm", "seq": 1, "parts": []}), "clip_norm must be a number above 0; got None"),
        (message({"op": "sync", "seq": 1, "parts": [], "held": 2.0}), "held must be a number from 0 to 1; got 2.0"),
        (
            message({"op": "sync", "seq": 1, "parts": [], "held": 0.5}),
            "gradients that this server does not hold",
        ),
        (message({"op": "sync", "seq": 1, "parts": [["rows", "ads", 0, 0]], "held": 0.5}), "not both"),
        (message({**push, "dense": "int8", "fresh": ["net"], "parts": []}), "base must have a number for each"),
    ]:
        assert reason in raw.ask(bad)["error"], bad
    raw.close()
    store.push("ads", KEYS, np.ones((4, 2), np.float32)).wait()
    assert (store.pull("ads", KEYS).wait() == -1).all()


def test_a_body_of_another_shape_is_refused(fleet, store):
    raw = Raw(fleet, store)
    raw.answer()
    batch = pa.record_batch({"a": [1, 2], "b": [3, 4]})
    assert "one column of bytes" in raw.ask(message({"op": "pull", "seq": 1, "parts": []}), batch)["error"]
    raw.close()
    assert store.pull("ads", KEYS).wait().shape == (4, 2)


def shortened(size: int, *, bitmap: bool) -> pa.RecordBatch:
    """A batch of so many bytes whose bytes, or whose bitmap of nulls, are cut down to 64 before it is sent."""
    short, whole = pa.allocate_buffer(size, resizable=True), pa.py_buffer(bytes(size))
    column = pa.Array.from_buffers(pa.uint8(), size, [short, whole] if bitmap else [None, short], int(bitmap))
    batch = pa.RecordBatch.from_arrays([column], ["body"])
    short.resize(64, shrink_to_fit=False)
    return batch


@pytest.mark.parametrize("bitmap", [False, True])
def test_a_batch_that_claims_more_than_it_brings_is_refused(fleet, store, bitmap):
    raw = Raw(fleet, store)
    raw.answer()
    for size in (1 << 14, 1 << 22, 1 << 26):
        pull = {"op": "pull", "seq": 1, "create": False, "parts": [["rows", "ads", size // 8, 0]]}
        assert "not what its batch claims" in raw.ask(message(pull), shortened(size, bitmap=bitmap))["error"]
    raw.close()
    assert store.pull("ads", KEYS).wait().shape == (4, 2)
    assert fleet.processes[0].poll() is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"protocol": 99}, "protocol 99 came; this server speaks 3"),
        ({"worker": 5}, "worker 5 is not registered here"),
        ({"incarnation": "other"}, "worker 0 is not registered here"),
        ({"incarnation": 7}, "incarnation must be text"),
        ({"lane": 1 << 40}, "lane 1099511627776 must be 0 to 4095"),
        ({"lane": None}, "lane must be a whole number; got None"),
    ],
)
def test_a_stream_of_a_stranger_is_refused(fleet, store, change, reason):
    raw = Raw(fleet, store, **change)
    assert reason in raw.answer()["error"]
    raw.close()
    assert store.pull("ads", KEYS).wait().shape == (4, 2)


def test_actions_of_any_kind_get_an_answer(fleet, store):
    client = flight.FlightClient(f"grpc://{fleet.endpoints[0]}")

    def act(name: str, body: bytes) -> dict:
        return json.loads(next(iter(client.do_action(flight.Action(name, body), TIMEOUT))).body.to_pybytes())

    hello = {"protocol": PROTOCOL}
    living = {**hello, "worker": 0, "incarnation": store.connection.incarnation}
    for name, data, reason in [
        ("format_disk", b"{}", "action 'format_disk' does not exist"),
        ("stats", b"\xff\x00", "not JSON"),
        ("stats", b"{}", "protocol None came"),
        ("stats", b"[" * 100_000, "not JSON"),
        ("register", json.dumps(hello).encode(), "servers must be a list"),
        ("create_table", json.dumps(living).encode(), "spec must describe a table"),
        ("create_table", json.dumps({**living, "spec": {"name": "x"}}).encode(), "a table's dim must be of type int"),
        (
            "meet",
            json.dumps({**living, "kind": "barrier", "name": "x", "turn": 1, "patience": 1e9}).encode(),
            "0 to 60",
        ),
        ("write", json.dumps({**living, "patience": 1, "directory": "/"}).encode(), "the cut is gone"),
        ("freeze", json.dumps({**living, "seconds": 1e9}).encode(), "seconds must be 0 to 3600"),
        ("meet", json.dumps({**hello, "patience": 1}).encode(), "a meeting has a kind"),
        ("advance", json.dumps({**living, "accounts": 3}).encode(), "accounts must say numbers"),
    ]:
        assert reason in act(name, data)["error"], (name, data)
    client.close()
    assert store.pull("ads", KEYS).wait().shape == (4, 2)


@pytest.mark.parametrize(
    "action",
    [
        "freeze",
        "renew",
        "advance",
        "name_cut",
        "thaw",
        "write",
        "drop_cut",
        "saved",
        "load",
        "create_table",
        "lower_rates",
        "open_cut",
    ],
)
def test_what_changes_or_stops_a_server_needs_a_registered_life(fleet, store, tmp_path, action):
    everything = {"seconds": 60, "patience": 1, "accounts": {}, "directory": str(tmp_path), "path": str(tmp_path)}
    request = {**everything, "ticket": "mine", "spec": {"name": "evil"}, "owner": "stranger"}
    link = store._links[0]
    with pytest.raises(StoreError, match="incarnation must be text"):
        link.action(action, request)
    with pytest.raises(StoreError, match="worker 0 is not registered here"):
        link.action(action, {**request, "worker": 0, "incarnation": "stranger"})
    store.push("ads", KEYS, np.zeros((4, 2), np.float32)).wait(5)
    assert not list(tmp_path.iterdir())


def test_noise_does_not_bring_the_server_down(fleet, store):
    rng = random.Random(7)
    good = message({"op": "push", "seq": 1, "parts": [["rows", "ads", 1, 2]]}, b"\x01" * 16)
    for _ in range(3):
        raw = Raw(fleet, store)
        raw.answer()
        for _ in range(100):
            bad = bytearray(good)
            for _ in range(rng.randrange(1, 6)):
                bad[rng.randrange(len(bad))] = rng.randrange(256)
            raw.ask(bytes(bad[: rng.randrange(1, len(bad) + 1)]))  # nothing at all ends a stream
        raw.close()
    assert store.pull("ads", KEYS).wait().shape == (4, 2)
    assert fleet.processes[0].poll() is None


def test_frames_survive_the_way_there_and_back():
    for size in (0, 8, 4096, 1 << 20):
        body = np.arange(size, dtype=np.uint64).astype(np.uint8)
        frame = decode(*encode({"op": "pull", "name": "größe"}, body))
        assert frame.header == {"op": "pull", "name": "größe"}
        np.testing.assert_array_equal(frame.body, body)


def test_the_bytes_of_a_message_are_these():
    metadata, batch = encode({"seq": 1}, np.arange(4, dtype=np.uint8))
    assert batch is None
    assert metadata.to_pybytes() == b'SFW1\x10\x00\x00\x00{"seq":1}       \x00\x01\x02\x03'


def test_parts_must_fill_the_body():
    with pytest.raises(WireError, match="2 keys and 0 floats, with their counts, are 16 bytes; 15 came"):
        read_parts({"parts": [["rows", "t", 2, 0]]}, np.zeros(15, np.uint8))
    with pytest.raises(WireError, match="3 keys and 0 floats, with their counts, are 32 bytes; 24 came"):
        read_parts({"parts": [["rows", "t", 3, 0, 2]]}, np.zeros(24, np.uint8))
    with pytest.raises(WireError, match="'t': a key's count has 2 or 4 bytes; got 3"):
        read_parts({"parts": [["rows", "t", 1, 0, 3]]}, np.zeros(11, np.uint8))
    with pytest.raises(WireError, match="a part is"):
        read_parts({"parts": [["rows", "t", 1, 0, 2, 2]]}, np.zeros(12, np.uint8))
    with pytest.raises(WireError, match="must be 0 or above"):
        read_parts({"parts": [["rows", "t", 1, 0, -2]]}, np.zeros(8, np.uint8))


def test_counts_go_in_as_few_bytes_as_they_need():
    """Of three tables one has small counts, one a large one, and one only ones, which needs no word."""
    tables = {"small": [1, 3, 65535], "large": [1, 65536, 2], "ones": [1, 1, 1]}
    keys, values = np.arange(3, dtype=np.uint64), np.arange(6, dtype=np.float32).reshape(3, 2)
    items = [RowItem.of(name, 2, keys, values, 2, np.array(counts, np.uint32)) for name, counts in tables.items()]
    found: dict[str, dict[int, int]] = {name: {} for name in tables}
    for server in range(2):
        described, body = pack(items, server, lambda _, size: np.empty(size, np.uint8))
        assert [part[4:] for part in described] == [[2], [4], []]
        for part in read_parts({"parts": described}, body):
            counts = np.ones(len(part.keys), np.uint32) if part.counts is None else part.counts
            assert counts.dtype == np.uint32
            found[part.name] |= dict(zip(part.keys.tolist(), counts.tolist(), strict=True))
            np.testing.assert_array_equal(part.rows(2), values[part.keys.astype(int)])
    assert found == {name: dict(enumerate(counts)) for name, counts in tables.items()}
    with pytest.raises(StoreError, match=r"counts must be uint32 of shape \[3\]; got int64 of shape \[3\]"):
        RowItem.of("t", 2, keys, values, 2, np.ones(3, np.int64))
