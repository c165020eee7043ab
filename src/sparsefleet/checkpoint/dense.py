"""Dense blocks as safetensors files: each holds a flat range of its block, parameter by parameter.

Legend: n values of a block, m values of a piece of it, k floats of state per value.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from sparsefleet.checkpoint.checksum import SummedOutput, text_of
from sparsefleet.checkpoint.manifest import BlockInfo, FileEntry, Layout
from sparsefleet.checkpoint.parse import name_problem
from sparsefleet.checkpoint.storage import AnyPath, Location, locate
from sparsefleet.checkpoint.storage.base import reading, writing
from sparsefleet.core.batch import F32
from sparsefleet.core.errors import CheckpointError

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class DensePiece:
    """The range [start, start + m) of a block: what one server holds, or all of it."""

    block: str
    start: int
    values: F32
    """[m]"""
    state: F32
    """[k * m]: the first float of state of every value, then the second, …; empty where there is none."""

    def __post_init__(self) -> None:
        for name, array in (("values", self.values), ("state", self.state)):
            if array.dtype != np.float32 or array.ndim != 1:
                raise CheckpointError(
                    f"dense block {self.block!r}: {name} must be flat float32; got {array.dtype} {array.shape}"
                )
        if len(self.state) % max(1, len(self.values)) or (len(self.state) and not len(self.values)):
            raise CheckpointError(
                f"dense block {self.block!r}: {len(self.state)} floats of state do not go evenly "
                f"on {len(self.values)} values"
            )

    @property
    def stop(self) -> int:
        return self.start + len(self.values)

    @property
    def state_width(self) -> int:
        return len(self.state) // max(1, len(self.values))


def write_dense(directory: AnyPath, shard: int, pieces: Iterable[tuple[DensePiece, Layout]]) -> list[FileEntry]:
    """Write one server's pieces into a draft's directory, each with the layout of its whole block."""
    folder, entries = locate(directory), list[FileEntry]()
    for piece, layout in pieces:
        problem = name_problem(piece.block)
        if problem:
            raise CheckpointError(f"dense block {piece.block!r}: {problem}")
        size = sum(math.prod(shape) for _, shape in layout)
        if not 0 <= piece.start <= piece.stop <= size:
            raise CheckpointError(
                f"dense block {piece.block!r}: the piece {piece.start} to {piece.stop} is not within "
                f"its layout's {size} values"
            )
        tensors: dict[str, AnyArray] = {}
        state = piece.state.reshape(piece.state_width, len(piece.values))
        for part in _parts(layout, piece.start, piece.stop):
            tensors[f"values/{part.name}"] = piece.values[part.here].reshape(part.shape)
            for index in range(piece.state_width):
                tensors[f"state/{index}/{part.name}"] = state[index, part.here].reshape(part.shape)
        path = f"dense/{piece.block}-{shard:05d}.safetensors"
        length, checksum = _write(folder / path, tensors)
        entries.append(FileEntry(path, length, checksum, "dense", of=piece.block, start=piece.start, stop=piece.stop))
    return entries


def write_buffers(directory: AnyPath, buffers: Mapping[str, AnyArray]) -> list[FileEntry]:
    """Write what the model keeps besides its parameters; no file where there is nothing."""
    if not buffers:
        return []
    path = "buffers.safetensors"
    size, checksum = _write(locate(directory) / path, {f"buffers/{name}": array for name, array in buffers.items()})
    return [FileEntry(path, size, checksum, "buffers")]


def read_piece(
    folder: Location,
    entries: Iterable[FileEntry],
    block: BlockInfo,
    start: int,
    stop: int,
    read_state: bool = True,
) -> DensePiece:
    """Any cut of a block, from whatever pieces it was written in."""
    if not 0 <= start <= stop <= block.size:
        raise CheckpointError(
            f"dense block {block.name!r} has {block.size} values; there is no range {start} to {stop}"
        )
    width = block.state_width if read_state else 0
    values, state = np.empty(stop - start, np.float32), np.empty((width, stop - start), np.float32)
    for entry in entries:
        first, last = entry.start or 0, entry.stop or 0
        if max(first, start) >= min(last, stop):
            continue
        tensors = _read(folder / entry.path, entry)
        parts = list(_parts(block.layout, first, last))
        _check_tensors(folder / entry.path, tensors, parts, block.state_width)
        for part in parts:
            low, high = max(first + part.here.start, start), min(first + part.here.stop, stop)
            if low >= high:
                continue
            there = slice(low - start, high - start)
            inside = slice(low - first - part.here.start, high - first - part.here.start)
            values[there] = tensors[f"values/{part.name}"].reshape(-1)[inside]
            for index in range(width):
                state[index, there] = tensors[f"state/{index}/{part.name}"].reshape(-1)[inside]
    return DensePiece(block.name, start, values, state.reshape(-1))


def read_buffers(folder: Location, entries: Iterable[FileEntry]) -> dict[str, AnyArray]:
    buffers: dict[str, AnyArray] = {}
    for entry in entries:
        for name, array in _read(folder / entry.path, entry).items():
            prefix, _, rest = name.partition("/")
            if prefix != "buffers" or rest in buffers:
                raise CheckpointError(f"{folder / entry.path}: tensor {name!r} is not a buffer's")
            buffers[rest] = array
    return buffers


def named(layout: Layout, flat: F32) -> dict[str, F32]:
    """A block's parameters by name, as views of its flat values."""
    result, start = dict[str, F32](), 0
    for name, shape in layout:
        size = math.prod(shape)
        result[name] = flat[start : start + size].reshape(shape)
        start += size
    return result


@dataclass(frozen=True, slots=True)
class _Part:
    """What of one parameter lies in a piece."""

    name: str
    """The parameter's own where all of it is there, else with the range it has: `fc.weight[0:5000]`."""
    shape: tuple[int, ...]
    here: slice
    """Where it stands in the piece."""


def _parts(layout: Layout, start: int, stop: int) -> Iterator[_Part]:
    begin = 0
    for name, shape in layout:
        end = begin + math.prod(shape)
        low, high = max(begin, start), min(end, stop)
        if low < high:
            whole = (low, high) == (begin, end)
            yield _Part(
                name if whole else f"{name}[{low - begin}:{high - begin}]",
                shape if whole else (high - low,),
                slice(low - start, high - start),
            )
        begin = end


def _write(location: Location, tensors: dict[str, AnyArray]) -> tuple[int, str]:
    try:
        # safetensors writes memory as it lies, strides or not: what it gets must be contiguous.
        # (Not np.ascontiguousarray, which makes a vector of a scalar.)
        data = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in tensors.items()})
    except (KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{location}: a tensor that safetensors cannot hold: {error}") from error
    with writing(location), SummedOutput(location) as output:
        output.write(data)
    return output.bytes, output.checksum


def _read(location: Location, entry: FileEntry) -> dict[str, AnyArray]:
    """All tensors of a file; its checksum is compared, for the bytes are in hand anyway."""
    with reading(location), location.open_input() as source:
        if source.size() != entry.bytes:
            raise CheckpointError(f"{location}: {source.size()} bytes; the manifest says {entry.bytes}")
        data = source.read(entry.bytes)
    found = text_of(zlib.crc32(data))
    if found != entry.checksum:
        raise CheckpointError(f"{location}: damaged: its checksum is {found}; the manifest says {entry.checksum}")
    try:
        return dict(safetensors.numpy.load(data))
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, MemoryError) as error:
        raise CheckpointError(f"{location}: damaged or unreadable safetensors file: {error}") from error


def _check_tensors(location: Location, tensors: Mapping[str, AnyArray], parts: list[_Part], width: int) -> None:
    wanted = {f"values/{part.name}": part.shape for part in parts}
    wanted.update({f"state/{index}/{part.name}": part.shape for part in parts for index in range(width)})
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors:
            raise CheckpointError(f"{location}: tensor {name!r} is missing")
        if name not in wanted:
            raise CheckpointError(f"{location}: tensor {name!r} is not in the manifest's layout")
        array = tensors[name]
        if array.shape != wanted[name] or array.dtype != np.float32:
            raise CheckpointError(
                f"{location}: tensor {name!r} is {array.dtype} {array.shape}; "
                f"the manifest's layout says float32 {wanted[name]}"
            )
