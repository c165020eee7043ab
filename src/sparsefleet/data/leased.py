"""LeasedDataset: files that all trainers of a job read together. Each trainer is given all of them.

```
reader = open_reader(list_files("data/train"), schema, leased=True)      # the same in every trainer
trainer.fit(model, reader)
```
Nobody's share is fixed beforehand: `fit` asks the job's servers for one piece after the other (`core/leases.py`). In
one process by itself, and wherever nobody lends, it is a QueueDataset.

What was consumed is known to whoever lends, not here: a batch's marks go to the servers with the step that it makes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.leases import Lender, Progress, to_progress
from sparsefleet.data.file_reader import unit_lengths
from sparsefleet.data.formats.base import Unit
from sparsefleet.data.passes import Claim, Groups, Pass, Position, new_position
from sparsefleet.data.queue_dataset import QueueDataset
from sparsefleet.data.readahead import Stream, Together
from sparsefleet.data.split import parse_unit
from sparsefleet.data.units import UnitPass, marks_of, units_of

PIECE_BYTES = 4 << 20
"""Of a file that can be cut: some ten thousand samples of Criteo's."""
LEAST_PIECES = 64
"""Small data is cut into so many all the same, where it has as many bytes."""


class LeasedDataset(QueueDataset):
    """See above. A position is that of a QueueDataset over all files, and holds what all trainers have consumed."""

    _lender: Lender | None = None
    _leased: LeasedPass | None = None

    def lend_by(self, lender: Lender | None) -> None:
        """The next epochs read what this one hands out; None: all files."""
        if lender is not None and self.drop_last:
            raise ConfigError("drop_last=True does not go with leased=True: the samples dropped would be nobody's")
        self._lender, self._leased = lender, None

    def _start(self, threads: int, sought: Mapping[str, Any]) -> Pass:
        lender = self._lender
        if lender is None:
            return super()._start(threads, sought)
        if self._leased is None:
            self._leased = self._planned(sought, lender)
            self._leased.open()
        else:  # another lap
            self._leased = self._leased.again()
        return self._leased

    def _planned(self, sought: Mapping[str, Any], lender: Lender) -> LeasedPass:
        if sought:
            self._check(sought)  # files may have changed since seek
            files, units = self._sized_files(), units_of(sought)
        else:
            files, units = self._pieces()
        return LeasedPass({"files": files}, units, self.format.read, sought, lender, self._nothing)

    def _stream(self, groups: Groups, index: int, started: Pass, together: Together) -> Stream:
        # Each by itself: a thread that trained on another's piece could tell of a batch before an earlier one is in.
        return super()._stream(groups, index, started, together if self._lender is None else Together())

    def position_at(self, progress: Progress, lender: Lender) -> Position:
        """The position of a pass that is under way, from what the lender says of its pieces."""
        return (self._leased or self._planned(self._sought, lender)).position_at(progress)

    def progress(self) -> float | None:
        return super().progress() if self._lender is None else self._lender.share()

    def _pieces(self) -> tuple[list[list[Any]], list[Unit]]:
        """The files with their sizes, and the pieces that trainers take: the same in every process."""
        files = self._sized_files()
        if any(parse_unit(name).file != name for name in self.files):
            raise ConfigError("leased=True shares files out by itself: give every trainer all of them, uncut")
        known = [size for _, size in files if size is not None]
        piece = max(1, min(PIECE_BYTES, sum(known) // LEAST_PIECES))
        units: list[Unit] = []
        for file, size in files:
            units += self.format.plan([file], 1 if size is None else max(1, -(-size // piece)))
        return files, units


class LeasedPass(UnitPass):
    """Units come from the lender. It notes nothing by itself but what no step can tell."""

    def __init__(
        self,
        identity: Mapping[str, Any],
        units: Sequence[Unit],
        read: Any,
        sought: Mapping[str, Any],
        lender: Lender,
        nothing: Callable[[], str],
    ) -> None:
        lengths = unit_lengths(identity["files"], units)
        super().__init__("files", identity, units, read, lengths=lengths, sought=sought, nothing=nothing)
        self._lender = lender
        self._samples_seen = True  # others may have them all
        self._ended = False

    def open(self) -> None:
        marks = marks_of(self._sought, len(self._units))
        plan = digest(self._units, self._identity["files"], marks)
        self._lender.open(plan, len(self._units), marks, partial(self.position_at, to_progress(marks.values())))

    def again(self) -> LeasedPass:
        return LeasedPass(self._identity, self._units, self._read, self._sought, self._lender, self._nothing)

    def claim(self, stopped: Callable[[], bool]) -> Claim | None:
        if stopped() or self._ended:
            return None
        lease = self._lender.take()
        if lease is None:
            self._ended = True
            return None
        piece, mark = lease.piece, lease.mark
        return Claim(piece, partial(self._open_at, piece, mark), mark)

    def _open_at(self, piece: int, mark: Mark | None, bad_samples: Any) -> Any:
        return self._read(self._units[piece], bad_samples, mark)

    def no_samples_in(self, mark: Mark) -> None:
        self._lender.note([mark])

    def _position(self) -> Position:
        raise ConfigError("where leased data stands, whoever lends it knows: position_at(progress)")

    def position(self) -> Position:
        return dict(self._sought)

    def position_at(self, progress: Progress) -> Position:
        return new_position("files", **self._input(), progress=progress)

    def share(self) -> float:
        return self._lender.share()


def digest(units: Sequence[Unit], files: Sequence[Sequence[Any]], marks: Mapping[int, Mark]) -> str:
    """The same for all trainers that read the same files in the same pieces from the same place on."""
    said = json.dumps([[[u.file, u.start, u.stop] for u in units], list(files), to_progress(marks.values())])
    return hashlib.sha256(said.encode()).hexdigest()[:32]
