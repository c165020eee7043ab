"""Parts: the tables and dense blocks that one message is about.

The header lists them as `[kind, name, keys, floats]`, or `[kind, name, keys, floats, bytes]` where a part says how
often its keys occur, in so many bytes a key (2 or 4). The body holds the keys of all parts (uint64), then the floats of
all parts (float32), then the counts of those that have some, each part's filled up to a multiple of 4 bytes. So one
message can carry a whole step: every table and the dense block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.keyed_rows import U32
from sparsefleet.store.wire.frames import Bytes, WireError

ROWS, DENSE = "rows", "dense"
MAX_PARTS = 4096


@dataclass(frozen=True, slots=True)
class Part:
    kind: str
    """ROWS: a sparse table; DENSE: this server's cut of a dense block."""
    name: str
    keys: U64
    """Empty for a dense block."""
    floats: F32
    """Flat."""
    counts: U32 | None = None
    """Of gradients: how often each key occurs in the samples that they are of; None: once each."""

    def rows(self, dim: int) -> F32:
        """The floats as [U, D]."""
        if len(self.floats) != len(self.keys) * dim:
            raise WireError(
                f"table {self.name!r} has rows of {dim} values: {len(self.keys)} keys need {len(self.keys) * dim} "
                f"floats; got {len(self.floats)}"
            )
        return self.floats.reshape(len(self.keys), dim)


Parts = list[Part]


class PartSizes(NamedTuple):
    kind: str
    name: str
    keys: int
    floats: int
    count_bytes: int = 0
    """Of a key's count; 0: there are none."""

    @property
    def counts_room(self) -> int:
        return -(-self.keys * self.count_bytes // 4) * 4


class PartViews(NamedTuple):
    keys: U64
    floats: F32
    counts: npt.NDArray[Any] | None
    """uint16 or uint32."""


def count_bytes(counts: U32 | None) -> int:
    """How many bytes a count needs on its way; 0 where nothing needs to be said."""
    if counts is None or not len(counts):
        return 0
    most = counts.max()
    if most > 0xFFFF:
        return 4
    return 0 if most == 1 and counts.min() == 1 else 2


def describe(sizes: Sequence[PartSizes]) -> list[list[Any]]:
    return [list(size if size.count_bytes else size[:4]) for size in sizes]


def new_bytes(size: int) -> Bytes:
    return np.empty(size, np.uint8)


def layout_bytes(sizes: Sequence[PartSizes], room: Callable[[int], Bytes] = new_bytes) -> tuple[Bytes, list[PartViews]]:
    """A body to fill: the bytes, and for each part the views of its keys, floats and counts."""
    body = room(_body_bytes(sizes))
    return body, list(_views(body, sizes))


def read_parts(header: dict[str, Any], body: Bytes) -> Parts:
    """The parts that arrived. Sizes must add up to the body exactly."""
    listed = header.get("parts")
    if not isinstance(listed, list) or len(listed) > MAX_PARTS:
        raise WireError(f"a message lists up to {MAX_PARTS} parts; got {_short(listed)}")
    sizes: list[PartSizes] = []
    for item in listed:
        known = isinstance(item, list) and len(item) in (4, 5) and item[0] in (ROWS, DENSE)
        if not known or not isinstance(item[1], str):
            raise WireError(f"a part is [rows or dense, name, keys, floats, bytes of a count]; got {_short(item)}")
        if not all(type(count) is int and count >= 0 for count in item[2:]):
            raise WireError(f"part {item[1]!r}: counts of keys and floats must be 0 or above; got {_short(item[2:])}")
        if item[0] == DENSE and item[2]:
            raise WireError(f"dense block {item[1]!r} has no keys; got {item[2]}")
        size = PartSizes(*item)
        if size.count_bytes not in (0, 2, 4):
            raise WireError(f"part {size.name!r}: a key's count has 2 or 4 bytes; got {size.count_bytes}")
        sizes.append(size)
    if _body_bytes(sizes) != len(body):
        keys, floats = sum(size.keys for size in sizes), sum(size.floats for size in sizes)
        raise WireError(
            f"{keys} keys and {floats} floats, with their counts, are {_body_bytes(sizes)} bytes; {len(body)} came"
        )
    return [
        Part(size.kind, size.name, keys, floats, None if counts is None else counts.astype(np.uint32))
        for size, (keys, floats, counts) in zip(sizes, _views(body, sizes), strict=True)
    ]


def _body_bytes(sizes: Sequence[PartSizes]) -> int:
    return sum(8 * size.keys + 4 * size.floats + size.counts_room for size in sizes)


def _views(body: Bytes, sizes: Sequence[PartSizes]) -> Iterator[PartViews]:
    key, number = 0, 8 * sum(size.keys for size in sizes)
    count = number + 4 * sum(size.floats for size in sizes)
    for size in sizes:
        counts = None
        if size.count_bytes:
            counts = body[count : count + size.keys * size.count_bytes].view(f"u{size.count_bytes}")
        yield PartViews(
            body[key : key + 8 * size.keys].view(np.uint64),
            body[number : number + 4 * size.floats].view(np.float32),
            counts,
        )
        key, number, count = key + 8 * size.keys, number + 4 * size.floats, count + size.counts_room


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
