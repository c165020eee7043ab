"""Plain twins of `serving.kernels.redis_rows`."""

from __future__ import annotations

import errno
import os
import select
import time

import numpy as np

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.export.kernels.bundle_rows import U8, RowsLayout, RowType
from sparsefleet.export.kernels.reference.bundle_rows import places
from sparsefleet.serving.kernels.redis_rows import (
    NOT_WANTED,
    U32,
    BucketPlace,
    BucketsRead,
    BucketsReceived,
    BucketsWritten,
    ReplyStatus,
)


def bucket_numbers(keys: U64, seed: int, bits: int) -> U32:
    if not bits:
        return np.zeros(len(keys), np.uint32)
    return (places(keys, seed) >> np.uint64(64 - bits)).astype(np.uint32)


def bucket_values(data: U8, layout: RowsLayout, bits: int) -> list[bytes]:
    """What each bucket holds."""
    keys = data[layout.keys :][: 8 * layout.rows].view("<u8")
    rows = data[layout.values :][: layout.stride * layout.rows].reshape(layout.rows, layout.stride)
    numbers = bucket_numbers(keys, layout.seed, bits)
    return [keys[numbers == bucket].tobytes() + rows[numbers == bucket].tobytes() for bucket in range(2**bits)]


def encode_buckets(
    data: U8,
    layout: RowsLayout,
    bits: int,
    place: BucketPlace,
    start: tuple[int, int],
    limits: tuple[int, int],
    out: U8,
) -> BucketsWritten:
    """The same strings; a command's size is that of its names and values, where the native one rounds up."""
    values = bucket_values(data, layout, bits)
    bucket, row = start
    written = commands = 0
    while bucket < len(values):
        head = [b"HSET", place.hash] if place.hash else [b"MSET"]
        words: list[bytes] = []
        size = rows = 0
        for number in range(bucket, min(bucket + limits[0], len(values))):
            size += len(values[number])
            if words and size > limits[1]:
                break
            words += [place.prefix + number.to_bytes(4, "little"), values[number]]
            rows += len(values[number]) // (8 + layout.stride)
        command = resp([*head, *words])
        if written + len(command) > len(out):
            break
        out[written : written + len(command)] = np.frombuffer(command, np.uint8)
        written, commands, bucket, row = written + len(command), commands + 1, bucket + len(words) // 2, row + rows
    return BucketsWritten(written, commands, bucket, row)


def encode_names(verb: bytes, place: BucketPlace, buckets: U32, per_command: int) -> U8:
    head = [verb, place.hash] if place.hash else [verb]
    names = [place.prefix + int(bucket).to_bytes(4, "little") for bucket in buckets]
    commands = [resp([*head, *names[at : at + per_command]]) for at in range(0, len(names), per_command)]
    return np.frombuffer(b"".join(commands), np.uint8)


def resp(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def read_buckets(
    data: U8, span: tuple[int, int], keys: U64, at: I64, per_command: int, answered: int, packed: U8, found: U8
) -> BucketsRead:
    raw, stride, consumed = data[span[0] : span[1]].tobytes(), packed.shape[1], 0
    while answered < len(at):
        place = consumed
        if answered % per_command == 0:
            line, separator, _ = raw[place:].partition(b"\r\n")
            if line[:1] not in (b"*", b"-", b""):
                return BucketsRead(consumed, answered, ReplyStatus.MISSHAPEN)
            if line[:1] == b"-":
                return BucketsRead(consumed, answered, ReplyStatus.REFUSED)
            if not separator:
                return BucketsRead(consumed, answered, ReplyStatus.MORE)
            if line != b"*%d" % min(per_command, len(at) - answered):
                return BucketsRead(consumed, answered, ReplyStatus.MISSHAPEN)
            place += len(line) + 2
        line, separator, rest = raw[place:].partition(b"\r\n")
        if line[:1] == b"-" and place == consumed:
            return BucketsRead(consumed, answered, ReplyStatus.REFUSED)
        if line[:1] not in (b"$", b""):
            return BucketsRead(consumed, answered, ReplyStatus.MISSHAPEN)
        if not separator:
            return BucketsRead(consumed, answered, ReplyStatus.MORE)
        if line == b"$-1":
            return BucketsRead(consumed, answered, ReplyStatus.ABSENT)
        if not line[1:].isdigit() or int(line[1:]) % (8 + stride):
            return BucketsRead(consumed, answered, ReplyStatus.MISSHAPEN)
        size = int(line[1:])
        if len(rest) < size + 2:
            return BucketsRead(consumed, answered, ReplyStatus.MORE)
        rows = size // (8 + stride)
        held = np.frombuffer(rest[: 8 * rows], "<u8").tolist()
        key = int(keys[at[answered]])
        found[at[answered]] = key in held
        if key in held:
            row = 8 * rows + held.index(key) * stride
            packed[at[answered]] = np.frombuffer(rest[row : row + stride], np.uint8)
        consumed = place + len(line) + 2 + size + 2
        answered += 1
    return BucketsRead(consumed, answered, ReplyStatus.DONE)


def hot_value_rows(stride: int) -> int:
    return max(1, (32 << 10) // stride)


def read_hot_rows(data: U8, span: tuple[int, int], to: U32, answered: int, packed: U8) -> BucketsRead:
    raw, stride, consumed = data[span[0] : span[1]].tobytes(), packed.shape[1], 0
    each = hot_value_rows(stride)
    values = -(-len(to) // each)
    while answered < values:
        place = consumed
        if answered == 0:
            line, separator, _ = raw[place:].partition(b"\r\n")
            if line[:1] not in (b"*", b""):
                status = ReplyStatus.REFUSED if line[:1] == b"-" else ReplyStatus.MISSHAPEN
                return BucketsRead(consumed, answered, status)
            if not separator:
                return BucketsRead(consumed, answered, ReplyStatus.MORE)
            if line != b"*%d" % values:
                return BucketsRead(consumed, answered, ReplyStatus.MISSHAPEN)
            place += len(line) + 2
        line, separator, rest = raw[place:].partition(b"\r\n")
        if line[:1] not in (b"$", b""):
            return BucketsRead(consumed, answered, ReplyStatus.MISSHAPEN)
        if not separator:
            return BucketsRead(consumed, answered, ReplyStatus.MORE)
        count = min(each, len(to) - answered * each)
        if line != b"$%d" % (count * stride):
            status = ReplyStatus.ABSENT if line == b"$-1" else ReplyStatus.MISSHAPEN
            return BucketsRead(consumed, answered, status)
        if len(rest) < count * stride + 2:
            return BucketsRead(consumed, answered, ReplyStatus.MORE)
        rows = np.frombuffer(rest[: count * stride], np.uint8).reshape(count, stride)
        for row, at in zip(rows, to[answered * each :].tolist(), strict=False):
            if at != NOT_WANTED:
                packed[at] = row
        consumed = place + len(line) + 2 + count * stride + 2
        answered += 1
    return BucketsRead(consumed, answered, ReplyStatus.DONE)


def receive_buckets(
    descriptor: int,
    seconds: float,
    data: U8,
    span: tuple[int, int],
    keys: U64,
    at: I64,
    per_command: int,
    answered: int,
    packed: U8,
    found: U8,
) -> BucketsReceived:
    begin, end = span
    deadline = time.monotonic() + seconds
    while True:
        read = read_buckets(data, (begin, end), keys, at, per_command, answered, packed, found)
        begin, answered = begin + read.consumed, read.answered
        if read.status != ReplyStatus.MORE or descriptor < 0:
            return BucketsReceived(begin, end, answered, read.status, 0)
        if end == len(data) or begin == end:
            if 2 * (end - begin) > len(data):
                return BucketsReceived(begin, end, answered, read.status, 0)
            data[: end - begin] = data[begin:end].copy()
            begin, end = 0, end - begin
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return BucketsReceived(begin, end, answered, read.status, errno.ETIMEDOUT)
        piece = os.read(descriptor, len(data) - end)
        if not piece:
            return BucketsReceived(begin, end, answered, read.status, errno.ECONNRESET)
        data[end : end + len(piece)] = np.frombuffer(piece, np.uint8)
        end += len(piece)


def decode_rows(packed: U8, found: U8, dim: int, dtype: int) -> F32:
    out = np.zeros((len(packed), dim), np.float32)
    for index in np.flatnonzero(found):
        raw = packed[index].copy()
        if dtype == RowType.FLOAT32:
            out[index] = raw[: 4 * dim].view("<f4")
        elif dtype == RowType.FLOAT16:
            out[index] = raw[: 2 * dim].view("<f2").astype(np.float32)
        else:
            out[index] = raw[:4].view("<f4")[0] * raw[4 : 4 + dim].view(np.int8).astype(np.float32)
    return out
