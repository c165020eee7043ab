"""From arrays to messages and back: which part of a call goes to which server, copied once, straight into place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import U32
from sparsefleet.store.partition import KeySplit, dense_cut, split_keys
from sparsefleet.store.wire import Frame, describe, layout_bytes
from sparsefleet.store.wire.coarse import EXACT, Encoding, Known, encoding_of
from sparsefleet.store.wire.frames import Bytes
from sparsefleet.store.wire.parts import DENSE, ROWS, PartSizes, count_bytes


@dataclass(frozen=True, slots=True)
class Block:
    """A dense block as a client knows it."""

    name: str
    size: int
    servers: int

    def cut(self, server: int) -> tuple[int, int]:
        return dense_cut(self.size, server, self.servers)

    def checked(self, what: str, array: F32) -> F32:
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != (self.size,):
            raise StoreError(
                f"dense block {self.name!r} has {self.size} values: {what} must be float32 of shape [{self.size}]; "
                f"got {_came(array)}"
            )
        return array


@dataclass(frozen=True, slots=True)
class DenseItem:
    block: Block
    values: F32 | None
    """Flat; None where only the answer matters."""
    encoding: Encoding = EXACT
    rest: F32 | None = None
    """What former messages could not say of it; None where the encoding says all."""

    def write(self, server: int, words: F32) -> None:
        """This server's cut of the values, into the words of a message."""
        if self.values is not None:
            cut = slice(*self.block.cut(server))
            values = self.values[cut]
            self.encoding.write(values, values if self.rest is None else self.rest[cut], words)

    def words(self, server: int) -> int:
        start, stop = self.block.cut(server)
        return 0 if self.values is None else self.encoding.words(stop - start)


@dataclass(frozen=True, slots=True)
class RowItem:
    name: str
    dim: int
    keys: U64
    values: F32 | None
    """[U, D], or None where only the answer matters."""
    split: KeySplit
    counts: U32 | None = None
    """[U], or None: once each."""

    @staticmethod
    def of(name: str, dim: int, keys: U64, values: F32 | None, servers: int, counts: U32 | None = None) -> RowItem:
        if not isinstance(keys, np.ndarray) or keys.dtype != np.uint64:
            raise StoreError(f"table {name!r}: keys must be an array of uint64; got {_kind(keys)}")
        if keys.ndim != 1:
            raise StoreError(f"table {name!r}: keys must have shape [any]; got {list(keys.shape)}")
        if values is not None:
            if not isinstance(values, np.ndarray) or values.dtype != np.float32:
                raise StoreError(f"table {name!r}: grads must be an array of float32; got {_kind(values)}")
            if values.shape != (len(keys), dim):
                raise StoreError(
                    f"table {name!r} (dim {dim}): grads must have shape [{len(keys)}, {dim}]; got {list(values.shape)}"
                )
        if counts is not None and (counts.dtype != np.uint32 or counts.shape != keys.shape):
            raise StoreError(f"table {name!r}: counts must be uint32 of shape [{len(keys)}]; got {_came(counts)}")
        return RowItem(name, dim, keys, values, split_keys(keys, servers), counts)


Item = RowItem | DenseItem


def pack(items: Sequence[Item], server: int, room: Callable[[int, int], Bytes]) -> tuple[list[list[Any]], Bytes]:
    """One server's share: the list of parts for the header, and the body, which is made where `room` says."""
    sizes: list[PartSizes] = []
    for item in items:
        if isinstance(item, DenseItem):
            sizes.append(PartSizes(DENSE, item.block.name, 0, item.words(server)))
        else:
            count = item.split.counts[server]
            floats_there = 0 if item.values is None else count * item.dim
            sizes.append(PartSizes(ROWS, item.name, count, floats_there, count_bytes(item.counts)))
    body, views = layout_bytes(sizes, lambda size: room(server, size))
    for item, (keys, floats, counts) in zip(items, views, strict=True):
        if isinstance(item, DenseItem):
            item.write(server, floats)
            continue
        places = item.split.places(server)
        _gather(item.keys, places, keys)
        if item.values is not None:
            _gather(item.values, places, floats.reshape(len(keys), item.dim))
        if counts is not None and item.counts is not None:
            counts[:] = item.counts[places]
    return describe(sizes), body


def floats_of(frame: Frame, count: int) -> F32:
    if frame.body.nbytes != 4 * count:
        raise StoreError(f"an answer of {count} floats was expected; {frame.body.nbytes} bytes came")
    return frame.body.view(np.float32)


def floats_there(items: Sequence[RowItem], server: int) -> int:
    """How many floats the rows of these keys have on one server."""
    return sum(item.split.counts[server] * item.dim for item in items)


def joined_rows(items: Sequence[RowItem], frames: Mapping[int, Frame]) -> list[F32]:
    """For each item the rows [U, D] of the servers' answers, each at its key's place.

    An answer has the rows of one item behind those of the other. Servers with no keys may be left out.
    """
    out = [np.empty((len(item.keys), item.dim), np.float32) for item in items]
    for server, frame in frames.items():
        floats, done = floats_of(frame, floats_there(items, server)), 0
        for item, rows in zip(items, out, strict=True):
            count = item.split.counts[server]
            end = done + count * item.dim
            rows[item.split.places(server)] = floats[done:end].reshape(count, item.dim)
            done = end
    return out


class Memory:
    """What one caller and the servers remember of dense blocks between two messages, where an encoding needs it."""

    def __init__(self) -> None:
        self._rests: dict[str, F32] = {}
        self._known: dict[tuple[int, str], Known] = {}
        """By server and block."""

    def rest(self, block: Block) -> F32:
        if block.name not in self._rests or len(self._rests[block.name]) != block.size:
            self._rests[block.name] = np.zeros(block.size, np.float32)
        return self._rests[block.name]

    def base(self, server: int, block: Block) -> int:
        """The message whose answer this caller last heard of the block's cut there; 0: none."""
        known = self._known.get((server, block.name))
        return 0 if known is None else known.number

    def hear(self, server: int, block: Block, encoding: Encoding, words: F32, number: int) -> F32:
        """The block's values there, of an answer that tells them whole or as a difference."""
        start, stop = block.cut(server)
        if not encoding.differences:
            values = encoding.checked(f"dense block {block.name!r}", words, stop - start)
            self._known[server, block.name] = Known(values, number)
            return values
        known = self._known[server, block.name]
        known.learn(encoding, words, number)
        return known.values


@dataclass(frozen=True, slots=True)
class WantedBlocks:
    """Dense blocks whose values come with an answer, and the arrays that they go to."""

    blocks: Sequence[tuple[Block, F32]]
    encoding: Encoding = EXACT
    memory: Memory | None = None
    """The caller's, where the encoding is not the exact one."""

    def header(self, server: int) -> dict[str, Any]:
        if not self.blocks:
            return {}
        asked: dict[str, Any] = {"fresh": [block.name for block, _ in self.blocks]}
        if self.memory is not None:
            asked["base"] = [self.memory.base(server, block) for block, _ in self.blocks]
        return asked

    def bytes_of(self, server: int) -> int:
        """At most: an encoding that tells differences tells all at first."""
        cuts = [block.cut(server) for block, _ in self.blocks]
        return 4 * sum(stop - start for start, stop in cuts)

    def fill(self, frames: Sequence[Frame]) -> None:
        for server, frame in enumerate(frames):
            names = frame.header.get("as") or [EXACT.name] * len(self.blocks)
            encodings = [encoding_of(name) for name in names]
            cuts = [block.cut(server) for block, _ in self.blocks]
            sizes = [one.words(stop - start) for one, (start, stop) in zip(encodings, cuts, strict=True)]
            words, done = floats_of(frame, sum(sizes)), 0
            for (block, out), encoding, size, (start, stop) in zip(self.blocks, encodings, sizes, cuts, strict=True):
                part, done = words[done : done + size], done + size
                if self.memory is None:
                    out[start:stop] = part
                else:
                    out[start:stop] = self.memory.hear(server, block, encoding, part, int(frame.header["seq"]))


NOTHING = WantedBlocks(())


def _gather(source: npt.NDArray[Any], places: npt.NDArray[np.int64] | slice, out: npt.NDArray[Any]) -> None:
    if isinstance(places, slice):
        out[...] = source
    else:
        # 'clip' because with 'raise' NumPy gathers into a buffer first; the places are ours and in range.
        np.take(source, places, axis=0, out=out, mode="clip")


def _kind(array: object) -> str:
    return f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__


def _came(array: object) -> str:
    return f"{array.dtype} of shape {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
