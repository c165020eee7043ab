"""Parts: the tables and dense blocks that one message is about.

The header lists them as `[kind, name, keys, floats]`; the body holds the keys of all parts (uint64), then the floats
of all parts (float32), in that order. So one message can carry a whole step: every table and the dense block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, U64
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

    def rows(self, dim: int) -> F32:
        """The floats as [U, D]."""
        if len(self.floats) != len(self.keys) * dim:
            raise WireError(
                f"table {self.name!r} has rows of {dim} values: {len(self.keys)} keys need {len(self.keys) * dim} "
                f"floats; got {len(self.floats)}"
            )
        return self.floats.reshape(len(self.keys), dim)


Parts = list[Part]
PartSizes = tuple[str, str, int, int]
"""kind, name, keys, floats."""


def describe(sizes: Sequence[PartSizes]) -> list[list[Any]]:
    return [list(size) for size in sizes]


def new_bytes(size: int) -> Bytes:
    return np.empty(size, np.uint8)


def layout_bytes(
    sizes: Sequence[PartSizes], room: Callable[[int], Bytes] = new_bytes
) -> tuple[Bytes, list[tuple[U64, F32]]]:
    """A body to fill: the bytes, and for each part the views of its keys and floats."""
    keys, floats = sum(size[2] for size in sizes), sum(size[3] for size in sizes)
    body = room(8 * keys + 4 * floats)
    return body, list(_views(body, sizes, keys))


def read_parts(header: dict[str, Any], body: Bytes) -> Parts:
    """The parts that arrived. Sizes must add up to the body exactly."""
    listed = header.get("parts")
    if not isinstance(listed, list) or len(listed) > MAX_PARTS:
        raise WireError(f"a message lists up to {MAX_PARTS} parts; got {_short(listed)}")
    sizes: list[PartSizes] = []
    for item in listed:
        if not (isinstance(item, list) and len(item) == 4 and item[0] in (ROWS, DENSE) and isinstance(item[1], str)):
            raise WireError(f"a part is [rows or dense, name, keys, floats]; got {_short(item)}")
        if not all(type(count) is int and count >= 0 for count in item[2:]):
            raise WireError(f"part {item[1]!r}: counts of keys and floats must be 0 or above; got {_short(item[2:])}")
        if item[0] == DENSE and item[2]:
            raise WireError(f"dense block {item[1]!r} has no keys; got {item[2]}")
        sizes.append((item[0], item[1], item[2], item[3]))
    keys, floats = sum(size[2] for size in sizes), sum(size[3] for size in sizes)
    if 8 * keys + 4 * floats != len(body):
        raise WireError(f"{keys} keys and {floats} floats are {8 * keys + 4 * floats} bytes; {len(body)} came")
    views = _views(body, sizes, keys)
    return [Part(kind, name, *view) for (kind, name, _, _), view in zip(sizes, views, strict=True)]


def _views(body: Bytes, sizes: Sequence[PartSizes], keys: int) -> Iterator[tuple[U64, F32]]:
    all_keys, all_floats = body[: 8 * keys].view(np.uint64), body[8 * keys :].view(np.float32)
    key, number = 0, 0
    for _, _, key_count, float_count in sizes:
        yield all_keys[key : key + key_count], all_floats[number : number + float_count]
        key, number = key + key_count, number + float_count


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
