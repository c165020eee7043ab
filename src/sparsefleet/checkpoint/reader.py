"""Checkpoint: an opened checkpoint. Its manifest has been checked, its files are there in their full size.

One that is a delta has those before it opened too, down to a whole one. Whoever asks for its rows gets each once, as
if it were whole.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparsefleet.checkpoint import dense, parse, sparse
from sparsefleet.checkpoint.checksum import checksum_of, text_of
from sparsefleet.checkpoint.dense import AnyArray, DensePiece
from sparsefleet.checkpoint.draft import replaced
from sparsefleet.checkpoint.manifest import (
    FILE_NAME,
    MAX_BYTES,
    MAX_DELTAS,
    BlockInfo,
    FileEntry,
    Manifest,
    TableInfo,
)
from sparsefleet.checkpoint.storage import AnyPath, Location, locate
from sparsefleet.checkpoint.storage.base import reading
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.core.table_rows import TableRows
from sparsefleet.optim.values_only import ELSEWHERE, ValuesOnly

if TYPE_CHECKING:
    from sparsefleet.optim.base import UpdateRule
    from sparsefleet.table.spec import TableSpec

VALUES_ONLY = (
    "trainer.load(model, path, values_only=True), in a script, takes the values and starts the optimizer afresh"
)
RESUME = f"Resume with that optimizer (--optimizer); or {VALUES_ONLY}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    location: Location
    manifest: Manifest
    base: Checkpoint | None = None
    """What this one is a delta of."""

    @staticmethod
    def open(path: AnyPath, opened: Opened | None = None) -> Checkpoint:
        """Check the manifest, and that every file is there in full size. Contents are checked when read.

        opened: those of the same folder that were opened just now, by their place; this one is added.
        """
        return _open(locate(path), {} if opened is None else opened)[0]

    def layers(self) -> list[Checkpoint]:
        """The last whole checkpoint and the deltas upon it, up to this one: a row is as the last that has it says."""
        return [self] if self.base is None else [*self.base.layers(), self]

    def schema(self) -> Schema | None:
        """What its samples look like, with the order of a line where they were lines; None: it does not say."""
        saved, inputs = self.manifest.schema, self.manifest.inputs
        if saved is None:
            return None
        schema = Schema.from_dict(saved, where=f"{self.location}: schema")
        if inputs is None:
            return schema
        return Inputs.from_dict(inputs, f"{self.location}: inputs", CheckpointError).ordered(schema)

    def verify(self) -> None:
        """Read every byte, compare every checksum, row count and shape. Raises at the first difference."""
        for problem in self.problems():
            raise problem

    def problems(self) -> Iterator[CheckpointError]:
        """What `verify` finds, file by file; of a delta, in those before it too."""
        if self.base is not None:
            yield from self.base.problems()
        for entry in self.manifest.files:
            try:
                self._verify_file(entry)
            except CheckpointError as error:
                yield error

    def sparse_rows(
        self,
        table: str,
        keep: sparse.KeepKeys | None = None,
        *,
        read_state: bool = True,
        shard: int | None = None,
    ) -> Iterator[TableRows]:
        """All rows of a table, or those whose keys `keep` wants, in pieces of bounded size.

        A server of several passes its routing: `keep=lambda keys: server_of(keys) == me`. read_state=False
        leaves the optimizer's state on disk; the rows then have state of width 0, as where it was not saved.
        shard: only what that one wrote (version 2 on).
        """
        self.manifest.table(table)
        if self.base is None:
            yield from self.own_rows(table, keep, read_state=read_state, shard=shard)
            return
        newer: U64 = np.empty(0, np.uint64)
        count = 0
        for layer in reversed(self.layers()):
            if not layer.has_table(table):
                break
            mine: list[U64] = []
            for rows in layer.own_rows(table, keep, read_state=read_state, shard=shard):
                if layer.base is not None:
                    mine.append(rows.keys)
                stand = ~_among(rows.keys, newer)
                rows = rows if stand.all() else rows.select(stand)
                count += len(rows)
                if len(rows):
                    yield rows
            newer = np.unique(np.concatenate([newer, *mine]))
        if keep is None and shard is None and count != self.row_count(table):
            raise CheckpointError(
                f"{self.location}: table {table!r} has {count} rows, with those of the checkpoints that it is a delta "
                f"of; its manifest says {self.row_count(table)}"
            )

    def own_rows(
        self, table: str, keep: sparse.KeepKeys | None = None, *, read_state: bool = True, shard: int | None = None
    ) -> Iterator[TableRows]:
        """As `sparse_rows`, of a delta only the rows that it holds itself; for who goes through all `layers`."""
        info = self.manifest.table(table)
        for entry in self.manifest.files_of("sparse", table):
            if shard is None or entry.shard == shard:
                yield from self._rows_of(entry, info, keep, read_state)

    def has_table(self, table: str) -> bool:
        return any(info.name == table for info in self.manifest.tables)

    def row_count(self, table: str) -> int:
        self.manifest.table(table)
        if self.manifest.base is not None:
            return self.manifest.base.rows[table]
        return sum(entry.rows or 0 for entry in self.manifest.files_of("sparse", table))

    def dense(self, block: str | None = None) -> dict[str, F32]:
        """Parameters by name, of one block or of all."""
        names = [block] if block is not None else [info.name for info in self.manifest.blocks]
        result: dict[str, F32] = {}
        for name in names:
            info = self.manifest.block(name)
            tensors = dense.named(info.layout, self.dense_cut(name, read_state=False).values)
            twice = sorted(result.keys() & tensors.keys())
            if twice:
                raise CheckpointError(
                    f"{self.location}: several blocks have a parameter {twice[0]!r}: ask for one block"
                )
            result.update(tensors)
        return result

    def dense_cut(self, block: str, start: int = 0, stop: int | None = None, *, read_state: bool = True) -> DensePiece:
        """The range [start, stop) of a block, whatever ranges it was written in; by default all of it."""
        info = self.manifest.block(block)
        end = info.size if stop is None else stop
        return dense.read_piece(self.location, self.manifest.files_of("dense", block), info, start, end, read_state)

    def buffers(self) -> dict[str, AnyArray]:
        return dense.read_buffers(self.location, self.manifest.files_of("buffers"))

    def check_table(self, spec: TableSpec, *, reset_optimizer: bool = False) -> TableInfo:
        """The saved table if it fits `spec`, else an error that says what differs. A learning rate may."""
        info = self.manifest.table(spec.name)
        what = f"{self.location}: table {spec.name!r}"
        if info.dim != spec.dim:
            raise CheckpointError(f"{what} was saved with rows of {info.dim} values; the model's have {spec.dim}")
        if not reset_optimizer:
            _check_rule(what, info, spec.rule, spec.rule.state_width(spec.dim))
        return info

    def check_block(
        self,
        name: str,
        layout: Iterable[tuple[str, Iterable[int]]],
        rule: UpdateRule,
        *,
        reset_optimizer: bool = False,
    ) -> BlockInfo:
        """The saved dense block that fits these parameters, or an error that says what differs."""
        info = self.manifest.block(name)
        what = f"{self.location}: dense block {name!r}"
        saved = dict(info.layout)
        wanted = {parameter: tuple(shape) for parameter, shape in layout}
        for parameter in [*wanted, *saved]:
            if parameter not in saved:
                raise CheckpointError(f"{what} has no parameter {parameter!r}; the model has")
            if parameter not in wanted:
                raise CheckpointError(f"{what} has a parameter {parameter!r}; the model has none")
            if saved[parameter] != wanted[parameter]:
                raise CheckpointError(
                    f"{what}: parameter {parameter!r} was saved with shape {list(saved[parameter])}; "
                    f"the model's has {list(wanted[parameter])}"
                )
        if list(saved) != list(wanted):
            raise CheckpointError(f"{what}: the model has the same parameters in another order")
        if not reset_optimizer:
            dense_rule = rule.for_dense()
            _check_rule(what, info, dense_rule, dense_rule.state_width(1))
        return info

    def _rows_of(
        self, entry: FileEntry, table: TableInfo, keep: sparse.KeepKeys | None, read_state: bool
    ) -> Iterator[TableRows]:
        has_touched = self.manifest.version > 1
        return sparse.read_sparse_file(self.location / entry.path, entry, table, keep, read_state, has_touched)

    def _verify_file(self, entry: FileEntry) -> None:
        location = self.location / entry.path
        _check_size(self.location, entry)
        found = checksum_of(location)
        if found != entry.checksum:
            raise CheckpointError(f"{location}: damaged: its checksum is {found}; the manifest says {entry.checksum}")
        if entry.kind == "sparse":
            for _ in self._rows_of(entry, self.manifest.table(str(entry.of)), None, True):
                pass
        elif entry.kind == "dense":
            info = self.manifest.block(str(entry.of))
            dense.read_piece(self.location, [entry], info, entry.start or 0, entry.stop or 0)
        else:
            dense.read_buffers(self.location, [entry])


Opened = dict[str, tuple[Checkpoint, str]]
"""Checkpoints, with the checksums of their manifests."""


def _open(location: Location, opened: Opened, deltas: int = 0) -> tuple[Checkpoint, str]:
    """The checkpoint, and the checksum of its manifest."""
    location = replaced(location) or location
    if str(location) in opened:
        return opened[str(location)]
    data = _manifest_bytes(location)
    manifest = parse.manifest(data, str(location / FILE_NAME))
    for entry in manifest.files:
        _check_size(location, entry)
    base = None if manifest.base is None else _open_base(location, manifest, opened, deltas + 1)
    opened[str(location)] = Checkpoint(location, manifest, base), text_of(zlib.crc32(data))
    return opened[str(location)]


def _open_base(location: Location, manifest: Manifest, opened: Opened, deltas: int) -> Checkpoint:
    assert manifest.base is not None
    name = manifest.base.name
    if deltas > MAX_DELTAS:
        raise CheckpointError(f"{location}: more than {MAX_DELTAS} deltas stand on each other")
    try:
        base, checksum = _open(location.parent / name, opened, deltas)
    except CheckpointError as error:
        raise CheckpointError(
            f"{location} is a delta of {name}, which cannot be opened: {error}. Take a checkpoint before that one"
        ) from error
    what = f"{location} is a delta of {name}, but not of the one that is there"
    if checksum != manifest.base.checksum:
        raise CheckpointError(f"{what}: its manifest has the checksum {checksum}, not {manifest.base.checksum}")
    if base.manifest.partition != manifest.partition:
        raise CheckpointError(f"{what}: its rows are spread over servers in another way")
    for table in base.manifest.tables:
        here = manifest.table(table.name)
        if (here.dim, here.state_width) != (table.dim, table.state_width):
            raise CheckpointError(f"{what}: rows of its table {table.name!r} have another width")
    return base


def _among(keys: U64, known: U64) -> npt.NDArray[np.bool_]:
    """Which keys are in `known`, which is in order."""
    if not len(known):
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.asarray(known[places] == keys)


def _manifest_bytes(location: Location) -> bytes:
    where = location / FILE_NAME
    with reading(where):
        size = where.size()
        if size is None:
            there = location.list()
            raise CheckpointError(
                f"no checkpoint at {location}: "
                + (f"it holds no {FILE_NAME}{_hint(there)}" if there else "there is no such directory, or it is empty")
            )
        if size > MAX_BYTES:
            raise CheckpointError(f"{where}: {size} bytes; a manifest has at most {MAX_BYTES}")
        with where.open_input() as source:
            return bytes(source.read(MAX_BYTES + 1))


def _hint(entries: Iterable[object]) -> str:
    steps = [entry for entry in entries if re.fullmatch(r"step-\d+", getattr(entry, "name", ""))]
    return f"; it is a folder of {len(steps)} checkpoints: open one of them" if steps else ""


def _check_size(folder: Location, entry: FileEntry) -> None:
    location = folder / entry.path
    with reading(location):
        size = location.size()
        if size is None:
            raise CheckpointError(f"{location}: the file is missing; the manifest lists it with {entry.bytes} bytes")
        if folder.storage.outside(location.path, folder.path):
            raise CheckpointError(f"{location}: it leads out of the checkpoint's directory")
        if size != entry.bytes:
            raise CheckpointError(f"{location}: {size} bytes; the manifest says {entry.bytes}: the file is damaged")


def _check_rule(what: str, info: TableInfo | BlockInfo, rule: UpdateRule, width: int) -> None:
    saved = info.rule["name"]
    if saved != rule.name:
        raise CheckpointError(f"{what} was saved with optimizer {saved}; the model's is {rule.name}. {RESUME}")
    if info.state_width == width or isinstance(rule, ValuesOnly):  # trainers keep the state, and begin it afresh
        return
    if info.rule.items() >= ELSEWHERE.items():
        raise CheckpointError(
            f"{what} is of a job in mode geo, whose trainers keep {saved}'s state themselves: it holds none. Resume in "
            f"mode geo (--mode geo), or {VALUES_ONLY}"
        )
    if info.state_width == 0:
        raise CheckpointError(
            f"{what} was saved without its optimizer's state: for scoring (sparsefleet infer), not to be resumed. "
            f"But {VALUES_ONLY}"
        )
    raise CheckpointError(
        f"{what} was saved with {info.state_width} floats of {saved} state; the model's rule has {width}. {RESUME}"
    )
