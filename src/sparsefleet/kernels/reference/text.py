"""Hashing and parsing of samples in plain Python: the readable twin of `kernels/text.py`."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from sparsefleet.core.batch import I64, U64
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.kernels.text_types import MAX_LINE, U8, Block, Columns, Parsed, Reason, SlotEntry, SlotKind

MASK = 2**64 - 1

DECIMAL = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
WHOLE = re.compile(rb"\d+", re.ASCII)
WORD = re.compile(rb"[^ ]+")


def feature_key(value: bytes, prefix: bytes, seed: int, dim: int) -> int:
    """The key of one raw value: XXH64(prefix + value), folded modulo `dim` unless that is 0."""
    key = xxh64(prefix + value, seed)
    return key % dim if dim else key


def hash_strings(data: U8, offsets: I64, prefix: bytes, seed: int, dim: int) -> U64:
    """Keys of the values data[offsets[i] : offsets[i+1]], as Arrow lays out strings."""
    raw = data.tobytes()
    values = (raw[begin:end] for begin, end in pairwise(offsets.tolist()))
    return np.array([feature_key(value, prefix, seed, dim) for value in values], np.uint64)


def skip_lines(data: U8, begin: int, size: int, lines: int) -> tuple[int, int]:
    """Move over up to `lines` line feeds in data[begin:size]: how many there were, where they end."""
    raw, seen = data[:size].tobytes(), 0
    while seen < lines and (feed := raw.find(b"\n", begin)) >= 0:
        begin, seen = feed + 1, seen + 1
    return seen, begin


class Refused(Exception):
    """A sample that does not parse; `begin` and `end` count from its line's first byte."""

    def __init__(self, reason: Reason, column: int, begin: int, end: int, found: int = 0) -> None:
        super().__init__(reason.text)
        self.reason, self.column, self.begin, self.end, self.found = reason, column, begin, end, found


class RoomLacks(Exception):
    """The row's keys do not fit into what is left of `keys`."""


def parse_decimal(text: bytes) -> float | None:
    """A finite decimal number, or None. Numbers too small for a double are refused like those too large."""
    if not DECIMAL.fullmatch(text):
        return None
    value = float(text)
    lost = value == 0 and any(c in b"123456789" for c in re.split(rb"[eE]", text)[0])
    return None if math.isinf(value) or lost else value


def check_bytes(line: bytes, separator: bytes) -> None:
    """Refuse NUL and invalid UTF-8."""
    reason, at = Reason.NUL, line.find(b"\0")
    if at < 0:
        try:
            line.decode()
        except UnicodeDecodeError as error:
            reason, at = Reason.UTF8, error.start
    if at < 0:
        return
    begin = line.rfind(separator, 0, at) + 1
    end = line.find(separator, at)
    before = line[:begin]
    column = before.count(b"\t") + 1 if separator == b"\t" else len(WORD.findall(before)) + 1
    raise Refused(reason, column, begin, end if end >= 0 else len(line))


class LineParser(ABC):
    """The loop over lines that every text format shares."""

    def __init__(self, max_line: int) -> None:
        self.max_line = max_line

    @abstractmethod
    def sample(self, line: bytes, out: Columns) -> None:
        """Put one line into sample `out.filled`, or raise."""

    def parse(self, block: Block, out: Columns) -> Parsed:
        data, at, lines, is_open, full = block.data[: block.size].tobytes(), block.begin, 0, False, False
        error: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
        if block.open:
            feed = data.find(b"\n", at)
            at = feed + 1 if feed >= 0 else block.size
            is_open = feed < 0 and not block.final
        while at < min(block.size, block.stop) and out.filled < len(out.labels):
            feed = data.find(b"\n", at)
            line = data[at : feed if feed >= 0 else block.size]
            overlong = len(line) > self.max_line
            if feed < 0 and not overlong and not block.final:
                break
            next_line = feed + 1 if feed >= 0 else block.size
            try:
                if overlong:
                    raise Refused(Reason.LONG_LINE, 1, 0, self.max_line)
                line = line.removesuffix(b"\r")
                if not line:
                    raise Refused(Reason.EMPTY_LINE, 1, 0, 0)
                self.sample(line, out)
                out.lines[out.filled] = block.line_base + lines + 1
                out.ends[out.filled] = block.byte_base + next_line
                out.filled += 1
            except RoomLacks:
                full = True
                break
            except Refused as bad:
                if not block.skip:
                    error = (bad.reason, bad.column, at, at + bad.begin, at + bad.end, bad.found)
                    break
                out.counts[bad.reason] += 1
                is_open = overlong and feed < 0 and not block.final
            lines += 1
            at = next_line
        return Parsed(out.filled, at, lines, is_open, full, *error)


class CriteoParser(LineParser):
    """label, n numbers, S categories, tab separated."""

    def __init__(
        self,
        minimum: Sequence[float],
        diff: Sequence[float],
        prefixes: Sequence[bytes],
        seed: int,
        dim: int,
        labelled: bool = True,
        max_line: int = MAX_LINE,
    ) -> None:
        super().__init__(max_line)
        self.minimum, self.diff, self.prefixes = list(minimum), list(diff), list(prefixes)
        self.seed, self.dim, self.labelled = seed, dim, labelled

    def sample(self, line: bytes, out: Columns) -> None:
        check_bytes(line, b"\t")
        fields = line.split(b"\t")
        expected = self.labelled + len(self.minimum) + len(self.prefixes)
        if len(fields) != expected:
            raise Refused(Reason.FIELD_COUNT, min(len(fields), expected) + 1, 0, len(line), len(fields))

        def refuse(reason: Reason, index: int) -> Refused:
            begin = sum(len(field) + 1 for field in fields[:index])
            return Refused(reason, index + 1, begin, begin + len(fields[index]))

        sample = out.filled
        out.labels[sample] = np.nan
        if self.labelled:
            if fields[0] not in (b"0", b"1"):
                raise refuse(Reason.LABEL, 0)
            out.labels[sample] = float(fields[0])
        first = int(self.labelled)
        numbers: list[float] = []
        for index, low in enumerate(self.minimum):
            text = fields[first + index]
            value = parse_decimal(text) if text else low
            if value is None:
                raise refuse(Reason.NUMBER, first + index)
            numbers.append(value)
        for index, value in enumerate(numbers):
            with np.errstate(over="ignore"):
                normalised = np.float32((value - self.minimum[index]) / self.diff[index])
            if not np.isfinite(normalised):
                raise refuse(Reason.RANGE, first + index)
            out.dense[sample, index] = normalised
        if out.numbers is not None:
            raw = fields[first : first + len(self.minimum)]
            out.numbers[sample] = [value if text else np.nan for text, value in zip(raw, numbers, strict=True)]
        first += len(self.minimum)
        for index, prefix in enumerate(self.prefixes):
            key = feature_key(fields[first + index], prefix, self.seed, self.dim)
            out.keys[sample * len(self.prefixes) + index] = key


class MultiSlotParser(LineParser):
    """Slots in the order of `layout`, each `n v1 … vn`, space separated."""

    def __init__(self, layout: Sequence[SlotEntry], dense: int, slots: int, dim: int, max_line: int = MAX_LINE) -> None:
        super().__init__(max_line)
        self.layout, self.slots, self.dim = list(layout), slots, dim

    def sample(self, line: bytes, out: Columns) -> None:
        assert out.offsets is not None
        check_bytes(line, b" ")
        words, at = list(WORD.finditer(line)), 0

        def next_word() -> bytes:
            nonlocal at
            if at == len(words):
                raise Refused(Reason.MISSING_VALUES, at + 1, 0, len(line), at)
            at += 1
            return words[at - 1].group()

        def refuse(reason: Reason, found: int = 0) -> Refused:
            return Refused(reason, at, *words[at - 1].span(), found)

        sample = out.filled
        bags: list[list[int]] = [[] for _ in range(self.slots)]
        out.labels[sample] = np.nan
        for kind, index, width in self.layout:
            word = next_word()
            if not WHOLE.fullmatch(word) or int(word) > MASK:
                raise refuse(Reason.NUMBER)
            count = int(word)
            if count == 0:
                raise refuse(Reason.EMPTY_SLOT)
            if kind != SlotKind.SPARSE and count != width:
                # The native kernel keeps the count as 64 signed bits.
                raise refuse(Reason.WIDTH, count - 2**64 if count >= 2**63 else count)
            for position in range(count):
                word = next_word()
                if kind == SlotKind.SPARSE:
                    bags[index].append(self.key(word, refuse))
                    continue
                value = parse_decimal(word)
                if value is None:
                    raise refuse(Reason.NUMBER if kind == SlotKind.DENSE else Reason.LABEL)
                if kind == SlotKind.DENSE:
                    with np.errstate(over="ignore"):
                        number = np.float32(value)
                    if np.isinf(number):
                        raise refuse(Reason.RANGE)
                    out.dense[sample, index + position] = number
                else:
                    if value not in (0, 1):
                        raise refuse(Reason.LABEL)
                    out.labels[sample] = value
        if at < len(words):
            at += 1
            raise refuse(Reason.SURPLUS_VALUES)

        end = int(out.offsets[sample * self.slots])
        if end + sum(map(len, bags)) > len(out.keys):
            raise RoomLacks
        for slot, bag in enumerate(bags):
            out.keys[end : end + len(bag)] = bag
            end += len(bag)
            out.offsets[sample * self.slots + slot + 1] = end

    def key(self, word: bytes, refuse: Callable[[Reason], Refused]) -> int:
        digits = word.removeprefix(b"-")
        if not WHOLE.fullmatch(digits):
            raise refuse(Reason.KEY)
        if digits != word:
            raise refuse(Reason.NEGATIVE_KEY)
        if int(digits) > MASK:
            raise refuse(Reason.KEY_OVERFLOW)
        return int(digits) % self.dim if self.dim else int(digits)
