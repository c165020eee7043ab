"""Commands and replies of rows in Redis: native kernels and their plain twins, whole and cut anywhere; the cache."""

import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bundle_rows import KEYS, written

from sparsefleet.export.kernels.bundle_rows import RowType
from sparsefleet.serving.kernels import redis_rows as native
from sparsefleet.serving.kernels.redis_rows import NOT_WANTED, UNKNOWN, BucketPlace, ReplyStatus, RowCache
from sparsefleet.serving.kernels.reference import redis_rows as reference

PLACES = [BucketPlace(b"p:0123456789ab:0", b""), BucketPlace(b"", b"p:0123456789ab:0:")]
"""Buckets as fields of a hash, and as strings of their own."""


def file_of(folder, keys, dtype=RowType.FLOAT32, dim=3):
    values = np.random.default_rng(len(keys)).standard_normal((len(keys), dim)).astype(np.float32)
    return written(folder, keys, values, dtype)


def reply_of(values, per_command):
    """What Redis answers to MGET; None is a bucket that is not there."""
    out = b""
    for start in range(0, len(values), per_command):
        part = values[start : start + per_command]
        out += b"*%d\r\n" % len(part)
        out += b"".join(b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value) for value in part)
    return out


@pytest.mark.parametrize("dtype", list(RowType))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back_however_it_is_cut(tmp_path_factory, dtype, data):
    keys = data.draw(st.lists(KEYS, unique=True, max_size=60))
    bits = data.draw(st.sampled_from([0, 1, 4, 7]))
    file = file_of(tmp_path_factory.mktemp("rows"), keys, dtype)
    layout = file.header.layout
    asked = np.array(data.draw(st.lists(st.one_of(KEYS, st.sampled_from(keys or [0])), min_size=1)), np.uint64)
    numbers = native.bucket_numbers(asked, layout.seed, bits)
    np.testing.assert_array_equal(numbers, reference.bucket_numbers(asked, layout.seed, bits))
    per_command = data.draw(st.integers(1, 8))
    for place in PLACES:
        names = [
            kernels.encode_names(place.get, place, numbers, per_command).tobytes() for kernels in (native, reference)
        ]
        assert names[0] == names[1]

    values = reference.bucket_values(file.data, layout, bits)
    raw = np.frombuffer(reply_of([values[number] for number in numbers], per_command), np.uint8)
    at = np.arange(len(asked), dtype=np.int64)
    want, there = file.lookup(asked)
    for kernels in (native, reference):
        packed, found = np.zeros((len(asked), layout.stride), np.uint8), np.full(len(asked), UNKNOWN, np.uint8)
        answered = begin = 0
        for end in sorted({*data.draw(st.lists(st.integers(0, len(raw)), max_size=5)), len(raw)}):
            read = kernels.read_buckets(raw, (begin, end), asked, at, per_command, answered, packed, found)
            begin, answered = begin + read.consumed, read.answered
        assert (read.status, answered, begin) == (ReplyStatus.DONE, len(asked), len(raw))
        np.testing.assert_array_equal(found.view(np.bool_), there)
        for decode in (native.decode_rows, reference.decode_rows):
            np.testing.assert_array_equal(decode(packed, found, layout.dim, dtype), want)


def hot_reply(rows):
    """What Redis answers to HMGET of all values that hot rows lie in."""
    each = native.hot_value_rows(rows.shape[1])
    return reply_of([rows[at : at + each].tobytes() for at in range(0, len(rows), each)], len(rows))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_hot_rows_are_read_however_they_are_cut(data):
    stride = data.draw(st.sampled_from([9000, 20000, 40000]))
    draw = np.random.default_rng(data.draw(st.integers(0, 9)))
    rows = draw.integers(0, 256, (data.draw(st.integers(1, 12)), stride), np.uint8)
    assert native.hot_value_rows(stride) == reference.hot_value_rows(stride)
    raw = np.frombuffer(hot_reply(rows), np.uint8)
    to = draw.permutation(len(rows)).astype(np.uint32)
    to[draw.random(len(rows)) < 0.3] = NOT_WANTED
    ends = sorted({*data.draw(st.lists(st.integers(0, len(raw)), max_size=5)), len(raw)})
    want = np.zeros_like(rows)
    want[to[to != NOT_WANTED]] = rows[to != NOT_WANTED]
    for kernels in (native, reference):
        packed, begin, answered = np.zeros_like(rows), 0, 0
        for end in ends:
            read = kernels.read_hot_rows(raw, (begin, end), to, answered, packed)
            begin, answered = begin + read.consumed, read.answered
        assert (read.status, begin) == (ReplyStatus.DONE, len(raw))
        np.testing.assert_array_equal(packed, want)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"-WRONGTYPE no\r\n", ReplyStatus.REFUSED),
        (b":1\r\n", ReplyStatus.MISSHAPEN),
        (b"*2\r\n$3\r\nabc\r\n", ReplyStatus.MISSHAPEN),
        (b"*1\r\n*1\r\n", ReplyStatus.MISSHAPEN),
        (b"*1\r\n$-1\r\n", ReplyStatus.ABSENT),
        (b"*1\r\n$11\r\n", ReplyStatus.MISSHAPEN),
        (b"*1\r\n$99999999999999999999\r\n", ReplyStatus.MISSHAPEN),
        (b"*" + b"1" * 40, ReplyStatus.MISSHAPEN),
        (b"*1\r\n$12\r\nabc", ReplyStatus.MORE),
        (b"", ReplyStatus.MORE),
    ],
)
def test_a_reply_that_holds_no_hot_rows(raw, status):
    data, to = np.frombuffer(raw, np.uint8), np.arange(3, dtype=np.uint32)
    for kernels in (native, reference):
        packed = np.zeros((3, 4), np.uint8)
        read = kernels.read_hot_rows(data, (0, len(data)), to, 0, packed)
        if kernels is native or len(raw) < 30:
            assert (read.status, read.answered, read.consumed) == (status, 0, 0)
        assert not packed.any()


def test_hot_rows_have_places_within_the_array():
    data, packed = np.zeros(0, np.uint8), np.zeros((3, 4), np.uint8)
    with pytest.raises(ValueError, match="a row has no place"):
        native.read_hot_rows(data, (0, 0), np.array([3], np.uint32), 0, packed)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_reply_is_received_in_whatever_pieces_it_comes(tmp_path_factory, data):
    keys = data.draw(st.lists(KEYS, unique=True, min_size=1, max_size=60))
    file = file_of(tmp_path_factory.mktemp("rows"), keys)
    layout, asked = file.header.layout, np.array(keys, np.uint64)
    values = reference.bucket_values(file.data, layout, 3)
    per_command = data.draw(st.integers(1, 8))
    raw = reply_of([values[number] for number in native.bucket_numbers(asked, layout.seed, 3)], per_command)
    cuts = sorted({0, len(raw), *data.draw(st.lists(st.integers(0, len(raw)), max_size=5))})
    pieces = [raw[a:b] for a, b in pairwise(cuts)]
    room, by_caller = data.draw(st.integers(64, 4096)), data.draw(st.booleans())
    for kernels in (native, reference):
        packed, found = np.zeros((len(asked), layout.stride), np.uint8), np.full(len(asked), UNKNOWN, np.uint8)
        buffer, begin, end, answered = np.empty(room, np.uint8), 0, 0, 0
        ours, theirs = socket.socketpair()
        with ours, theirs, ThreadPoolExecutor(1) as sender:
            sending = sender.submit(lambda to=theirs: [to.sendall(piece) for piece in pieces])
            while True:
                # Without a descriptor the caller receives, as where the bytes are encrypted.
                read = kernels.receive_buckets(
                    *(-1 if by_caller else ours.fileno(), 30.0, buffer, (begin, end), asked, np.arange(len(asked))),
                    *(per_command, answered, packed, found),
                )
                begin, end, answered = read.begin, read.end, read.answered
                assert read.error == 0
                if read.status != ReplyStatus.MORE:
                    break
                assert by_caller or 2 * (end - begin) > len(buffer)
                left = buffer[begin:end]
                buffer = np.concatenate([left, np.empty(2 * len(buffer), np.uint8)])
                begin, end = 0, len(left)
                end += ours.recv_into(buffer[end:])
            sending.result()
        assert (read.status, answered, begin) == (ReplyStatus.DONE, len(asked), end)
        rows = kernels.decode_rows(packed, found, layout.dim, layout.type)
        np.testing.assert_array_equal(rows, file.lookup(asked)[0])


@pytest.mark.parametrize("kernels", [native, reference])
@pytest.mark.parametrize(("closed", "error"), [(False, errno.ETIMEDOUT), (True, errno.ECONNRESET)])
def test_a_reply_that_does_not_come_is_an_error_in_time(kernels, closed, error):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"*2\r\n$0\r\n\r\n$12")
        if closed:
            theirs.close()
        buffer, packed, found = np.empty(64, np.uint8), np.zeros((2, 12), np.uint8), np.zeros(2, np.uint8)
        keys = np.array([1, 2], np.uint64)
        read = kernels.receive_buckets(ours.fileno(), 0.05, buffer, (0, 0), keys, np.arange(2), 100, 0, packed, found)
    assert (read.error, read.status, read.answered) == (error, ReplyStatus.MORE, 1)
    assert buffer[read.begin : read.end].tobytes() == b"$12"


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=40, deadline=None)
@given(keys=st.lists(KEYS, unique=True, max_size=80), bits=st.sampled_from([0, 3, 6]), room=st.integers(600, 20000))
def test_commands_write_every_bucket_once(tmp_path_factory, place, keys, bits, room):
    file = file_of(tmp_path_factory.mktemp("rows"), keys)
    layout = file.header.layout
    for kernels in (native, reference):
        out, bucket, row, raw = np.empty(room + 20 * len(keys), np.uint8), 0, 0, b""
        while bucket < 2**bits:
            done = kernels.encode_buckets(file.data, layout, bits, place, (bucket, row), (8, 300), out)
            assert done.commands
            raw += out[: done.bytes].tobytes()
            bucket, row = done.bucket, done.row
        assert row == len(keys)
        words = words_of(raw)
        head = [b"HSET", place.hash] if place.hash else [b"MSET"]
        assert all(command[: len(head)] == head and len(command) <= len(head) + 16 for command in words)
        told = [command[len(head) :] for command in words]
        pairs = [pair for command in told for pair in zip(command[::2], command[1::2], strict=True)]
        assert [name for name, _ in pairs] == [place.prefix + number.to_bytes(4, "little") for number in range(2**bits)]
        assert [value for _, value in pairs] == reference.bucket_values(file.data, layout, bits)


def words_of(raw):
    """Commands taken apart by the book."""
    commands, at = [], 0

    def number():
        nonlocal at
        line, _, _ = raw[at + 1 :].partition(b"\r\n")
        at += len(line) + 3
        return int(line)

    while at < len(raw):
        words = []
        for _ in range(number()):
            size = number()
            words.append(raw[at : at + size])
            at += size + 2
        commands.append(words)
    return commands


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (b"-LOADING Redis is loading\r\n", ReplyStatus.REFUSED),
        (b"*2\r\n$-1\r\n", ReplyStatus.ABSENT),
        (b"*2\r\n$5\r\nabcde\r\n", ReplyStatus.MISSHAPEN),
        (b"*2\r\n$-7\r\n", ReplyStatus.MISSHAPEN),
        (b"*2\r\n$99999999999999999\r\n", ReplyStatus.MISSHAPEN),
        (b"*2\r\n:5\r\n", ReplyStatus.MISSHAPEN),
        (b"*3\r\n$0\r\n\r\n", ReplyStatus.MISSHAPEN),
        (b"$0\r\n\r\n", ReplyStatus.MISSHAPEN),
        (b"HTTP/1.1 400 Bad Request\r\n", ReplyStatus.MISSHAPEN),
        (b"*2\r\n$" + b"0" * 60, ReplyStatus.MISSHAPEN),
        (b"*2\r\n$20", ReplyStatus.MORE),
        (b"*2", ReplyStatus.MORE),
        (b"", ReplyStatus.MORE),
    ],
)
def test_replies_that_are_none(reply, status):
    raw, keys, at = np.frombuffer(reply, np.uint8), np.array([1, 2], np.uint64), np.array([0, 1])
    packed, found = np.zeros((2, 12), np.uint8), np.zeros(2, np.uint8)
    read = native.read_buckets(raw, (0, len(raw)), keys, at, 100, 0, packed, found)
    assert (read.status, read.consumed, read.answered) == (status, 0, 0)


@settings(max_examples=100, deadline=None)
@given(raw=st.binary(max_size=200), per_command=st.integers(1, 3))
def test_any_bytes_are_survived(raw, per_command):
    data, keys, at = np.frombuffer(b"*2\r\n$" + raw, np.uint8), np.array([1, 2], np.uint64), np.array([1, 0])
    packed, found = np.zeros((2, 4), np.uint8), np.zeros(2, np.uint8)
    read = native.read_buckets(data, (0, len(data)), keys, at, per_command, 0, packed, found)
    assert 0 <= read.consumed <= len(data)


def test_the_cache_gives_back_what_it_was_given_and_stays_in_its_bounds():
    random, cache = np.random.default_rng(0), RowCache(8, 20_000)
    truth = {key: (key % 3 != 0, np.frombuffer(key.to_bytes(8, "little"), np.uint8)) for key in range(3000)}
    hits = 0
    for _ in range(300):
        keys = np.unique((random.zipf(1.3, 200) % 3000).astype(np.uint64))
        packed, found, missing = cache.get(keys)
        hits += len(keys) - len(missing)
        assert sorted(missing.tolist()) == np.flatnonzero(found == UNKNOWN).tolist()
        for place in missing:
            found[place], packed[place] = truth[int(keys[place])]
        for key, mark, row in zip(keys.tolist(), found, packed, strict=True):
            assert mark == truth[key][0]
            if mark:
                np.testing.assert_array_equal(row, truth[key][1])
        cache.put(keys, missing, packed, found)
        assert len(cache) <= cache.capacity <= 20_000 // 8
    assert hits > 5000
    assert len(RowCache(8, 0).get(np.array([1], np.uint64))[2]) == 1


def test_a_cache_larger_than_the_rows_keeps_them_all():
    cache, keys = RowCache(4, 1 << 20), np.arange(500, dtype=np.uint64)
    packed, found, missing = cache.get(keys)
    packed[:], found[:] = np.arange(2000).reshape(500, 4) % 251, 1
    cache.put(keys, missing, packed, found)
    again, marks, missing = cache.get(keys)
    assert len(missing) == 0
    assert marks.all()
    np.testing.assert_array_equal(again, packed)
