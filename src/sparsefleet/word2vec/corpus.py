"""Text files: are they text, and who reads which bytes of them? Words may be cut apart between any two of them.

A unit holds the words whose first byte lies in its range, so that text of one long line can be shared out too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import numpy as np

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.files import check_file, file_size, is_gzip, list_files
from sparsefleet.data.formats.base import Head, Unit
from sparsefleet.data.formats.source import GzipSource, PlainSource
from sparsefleet.data.split import cut_unit, parse_unit, unit_name
from sparsefleet.kernels.words import U8

BLOCK_BYTES = 1 << 16
LEAST_PIECE = 1 << 16
"""Bytes below which a piece of a file is not cut further."""
_SPACE = re.compile(rb"[ \t\n\v\f\r]")

Path = str | os.PathLike[str]


def text_files(paths: Path | Sequence[Path]) -> list[str]:
    """The files behind files, folders and patterns, each checked to be text."""
    files = list_files(paths)
    twice = sorted({file for file in files if files.count(file) > 1})
    if twice:
        raise ConfigError(f"files are listed twice, so their words would be too: {', '.join(twice[:3])}")
    for file in files:
        check_text(parse_unit(file).file)
    return files


def check_text(file: str) -> None:
    """Refuse a file that is empty or binary."""
    head = Head.of(file)
    if not head.data.strip():
        if not head.data or file_size(file) <= len(head.data):
            raise DataError(f"{file}: there are no words in it; remove it from the list, or write it again")
        return
    if not head.is_text or b"\0" in head.data:
        raise DataError(f"{file}: this is not text, but binary data; give plain text (UTF-8), or such text as gzip")


def share_text(files: Sequence[str], worker: int, workers: int) -> list[str]:
    """One worker's share: its part of the bytes of every plain file, and some of the gzip files, which stay whole."""
    if workers == 1:
        return list(files)
    shares: list[list[Unit]] = [[] for _ in range(workers)]
    packed = []
    for file in files:
        if is_gzip(file):
            packed.append((check_file(file), file))
        else:
            for share, unit in zip(shares, cut_unit(Unit(file, 0, check_file(file)), workers), strict=False):
                share.append(unit)
    sizes = [0] * workers
    for size, file in sorted(packed, reverse=True):
        least = sizes.index(min(sizes))
        sizes[least] += size
        shares[least].append(Unit(file))
    if not all(shares):
        raise ConfigError(
            f"{len(files)} file(s), of which {len(packed)} are gzip and cannot be cut, are not enough text for "
            f"{workers} trainers: unpack them, or start fewer trainers"
        )
    return [unit_name(unit) for unit in shares[worker]]


def plan(names: Sequence[str], pieces: int) -> list[Unit]:
    """Units that cover all words of a share once; more than one of a plain file where `pieces` asks for them."""
    units: list[Unit] = []
    for name in names:
        unit = parse_unit(name)
        if pieces > 1 and not is_gzip(unit.file):
            size = check_file(unit.file)
            whole = Unit(unit.file, unit.start, size if unit.stop is None else min(unit.stop, size))
            assert whole.stop is not None
            units += cut_unit(whole, max(1, min(pieces, (whole.stop - whole.start) // LEAST_PIECE)))
        else:
            units.append(unit)
    return units


def blocks(unit: Unit, offset: int | None = None) -> Iterator[tuple[U8, int]]:
    """The bytes of the unit's words: blocks, one behind the other, each with where it begins in the text.

    offset: go on from there, behind a word; gzip files are always read from their beginning.
    """
    if is_gzip(unit.file):
        yield from _packed_blocks(unit.file)
        return
    size = check_file(unit.file)
    stop = size if unit.stop is None else min(unit.stop, size)
    at = unit.start if offset is None else offset
    begun = offset is None and unit.start > 0  # a word that the unit before has may go on here
    source = PlainSource(unit.file, at - begun, unit.start)
    inside = not begun
    try:
        ended = at >= stop and not begun
        buffer = bytearray(BLOCK_BYTES)
        while not ended:
            first = source.offset
            count = source.readinto(memoryview(buffer))
            if not count:
                return
            start = 0
            if not inside:
                space = _SPACE.search(buffer, 0, count)
                if space is None:
                    if first + count >= stop:
                        return
                    continue
                inside, start = True, space.start()
                if first + start >= stop:
                    return
            end = count
            if first + count > stop:
                # A word that begins before `stop` belongs here as a whole.
                last = max(stop - 1 - first, 0)
                space = _SPACE.search(buffer, last, count)
                if space is not None:
                    end, ended = space.start(), True
            elif first + count == stop and _SPACE.match(buffer, count - 1):
                ended = True
            if end > start:
                yield np.frombuffer(bytes(buffer[start:end]), np.uint8), first + start
    finally:
        source.close()


def _packed_blocks(file: str) -> Iterator[tuple[U8, int]]:
    source = GzipSource(file)
    try:
        buffer = bytearray(BLOCK_BYTES)
        while True:
            first, count, view = source.offset, 0, memoryview(buffer)
            while count < BLOCK_BYTES and (read := source.readinto(view[count:])):
                count += read
            if not count:
                return
            yield np.frombuffer(bytes(buffer[:count]), np.uint8), first
    finally:
        source.close()
