"""The first lines of MultiSlot files as raw columns, for `data inspect`.

A line has no names and does not say what a slot is: slots are called by their number in the line, slot1, slot2, …, and
what they hold is told from their values. A slot with values that are no keys (fractions, negative numbers) is dense; it
has equally many values in every line, and each becomes a column (slot2_1, slot2_2, …) where there are several. Every
other slot holds feature keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sparsefleet.core.errors import DataError
from sparsefleet.data.formats.base import HEAD_BYTES, Head
from sparsefleet.data.formats.records import open_text
from sparsefleet.datasets.raw_table import RawTable, is_number

NAME = "multislot"
WHOLE = re.compile(r"[0-9]{1,20}")
LOOKED_AT = 20
"""Lines that decide whether a file is MultiSlot."""

Bags = list[list[str]]
"""The values of each slot of a line."""


def is_multislot(head: Head) -> bool:
    """Whether the first lines are `n v1 … vn` for each slot, with equally many slots: two at least."""
    if not head.is_text:
        return False
    lines = head.data.decode(errors="replace").splitlines()
    if len(head.data) >= HEAD_BYTES:
        lines = lines[:-1]  # the last one may be cut
    found = [slots_of(line) for line in lines[:LOOKED_AT]]
    widths = {len(bags) if bags is not None else 0 for bags in found}
    return len(widths) == 1 and widths.pop() >= 2


def slots_of(line: str) -> Bags | None:
    """The slots of a line; None where it is no MultiSlot."""
    if "\t" in line or "," in line:
        return None
    words, at = [word for word in line.rstrip("\r\n").split(" ") if word], 0
    bags: Bags = []
    while at < len(words):
        count = int(words[at]) if WHOLE.fullmatch(words[at]) else 0
        bag = words[at + 1 : at + 1 + count]
        if not count or len(bag) < count or not all(map(is_number, bag)):
            return None
        bags.append(bag)
        at += 1 + count
    return bags or None


def is_key(text: str) -> bool:
    return WHOLE.fullmatch(text) is not None and int(text) < 2**64


def multislot_table(files: Sequence[str], most: int) -> RawTable:
    samples: list[Bags] = []
    whole, bad = True, 0
    share = -(-most // len(files))
    for file in files:
        for taken, bags in enumerate(_lines(file)):
            if taken == share or len(samples) == most:
                whole = False
                break
            if bags is None or (samples and len(bags) != len(samples[0])):
                bad += 1
            else:
                samples.append(bags)
    if not samples:
        told = f"; {bad} lines are none of 'n v1 … vn' for each slot" if bad else ""
        raise DataError(f"{files[0]}: there are no rows to look at{told}")
    columns: dict[str, list[Any]] = {}
    for place in range(len(samples[0])):
        columns.update(_columns(f"slot{place + 1}", [bags[place] for bags in samples], files[0]))
    names = tuple(f"slot{place + 1}" for place in range(len(samples[0])))
    return RawTable(NAME, columns, len(samples), whole, None, bad, names)


def _lines(file: str) -> Iterator[Bags | None]:
    with open_text(file) as text:
        for line in text:
            yield slots_of(line)


def _columns(name: str, bags: list[list[str]], file: str) -> dict[str, list[Any]]:
    """A slot's columns: one, or one for each value where it is dense and has several."""
    widths = {len(bag) for bag in bags}
    if all(is_key(value) for bag in bags for value in bag):
        return {name: [bag[0] for bag in bags] if widths == {1} else bags}
    if len(widths) > 1:
        strange = next(value for bag in bags for value in bag if not is_key(value))
        raise DataError(
            f"{file}: {name} holds {strange!r:.40}, which is no feature key, and {min(widths)} to {max(widths)} values "
            "in a line: a slot of numbers has equally many in all"
        )
    if widths == {1}:
        return {name: [bag[0] for bag in bags]}
    return {f"{name}_{index + 1}": [bag[index] for bag in bags] for index in range(widths.pop())}
