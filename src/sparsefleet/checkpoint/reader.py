"""Checkpoint: an opened checkpoint. Its manifest has been checked, its files are there in their full size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsefleet.checkpoint import dense, parse, sparse
from sparsefleet.checkpoint.checksum import checksum_of
from sparsefleet.checkpoint.dense import AnyArray, DensePiece
from sparsefleet.checkpoint.draft import replaced
from sparsefleet.checkpoint.manifest import FILE_NAME, MAX_BYTES, BlockInfo, FileEntry, Manifest, TableInfo
from sparsefleet.checkpoint.storage import AnyPath, Location, locate
from sparsefleet.checkpoint.storage.base import reading
from sparsefleet.core.batch import F32
from sparsefleet.core.errors import CheckpointError
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

    @staticmethod
    def open(path: AnyPath) -> Checkpoint:
        """Check the manifest, and that every file is there in full size. Contents are checked when read."""
        location = locate(path)
        location = replaced(location) or location
        manifest = parse.manifest(_manifest_bytes(location), str(location / FILE_NAME))
        for entry in manifest.files:
            _check_size(location, entry)
        return Checkpoint(location, manifest)

    def verify(self) -> None:
        """Read every byte, compare every checksum, row count and shape. Raises at the first difference."""
        for problem in self.problems():
            raise problem

    def problems(self) -> Iterator[CheckpointError]:
        """What `verify` finds, file by file."""
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
        info = self.manifest.table(table)
        for entry in self.manifest.files_of("sparse", table):
            if shard is None or entry.shard == shard:
                yield from self._rows_of(entry, info, keep, read_state)

    def row_count(self, table: str) -> int:
        self.manifest.table(table)
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
