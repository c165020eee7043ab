"""Leases: which trainer of a job reads which piece of the data, and how far it is. Pure logic: no sockets, no files.

A piece is a unit of the data's plan (a byte range, row groups, a file that cannot be cut), known by its number in it.

    open     nobody has it; it may have been begun, and is then read on from its mark
    held     a trainer has taken it; its mark says how many of its samples are in the model
    done     all of its samples are

Server 0 of a job holds the leases (`server/leases.py`). Trainers take pieces as they need them, so that a slow one
takes fewer, and every step that is applied says how far its pieces are. So a lost trainer's pieces can be handed to
others from where they stand in the model, and a checkpoint that was cut within an epoch can be resumed by any number of
trainers.

Legend: a `holder` is one life of a trainer; its `number` is the trainer's, which another life of it has too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import ConfigError

Progress = list[list[Any]]
"""Marks as plain data: [piece, samples, offset, done], by piece."""


MOST_AT_ONCE = 4
"""Pieces that a trainer takes in one message while many are open. More would save little, and who joins is to find
some."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A piece that the asking trainer has from now on."""

    piece: int
    mark: Mark | None = None
    """Where to read on; None: from the beginning."""


class Leases:
    """One pass over the pieces. Not locked: whoever shares it does that."""

    def __init__(self, pieces: int, marks: Mapping[int, Mark] | None = None, *, fixed: bool = False) -> None:
        """marks: how far pieces are that were begun before. fixed: hand pieces out in an order that does not depend on
        who asks first (`deal`)."""
        if pieces < 0:
            raise ConfigError(f"pieces={pieces} must be 0 or above")
        self.pieces, self.fixed = pieces, fixed
        self.marks: dict[int, Mark] = dict(marks or {})
        """By piece that was begun, how far it is."""
        self.left = pieces - sum(mark.done for mark in self.marks.values())
        """Pieces that are not done."""
        self.samples = sum(mark.samples for mark in self.marks.values())
        """Samples that are in the model, skipped ones included."""
        self._holders: dict[int, str] = {}
        self._crew: tuple[int, ...] = (0,)
        self._next: dict[int, int] = {}
        """By place in the crew (in free order there is one), where to look for the next open piece."""

    def deal(self, crew: Iterable[int]) -> None:
        """Say who is there. In fixed order, piece p is for the trainer at place p % n: a crew that does not change
        reads the same pieces in the same order each time, also after a resume."""
        self._crew = tuple(sorted(crew)) or (0,)
        self._next.clear()

    def take(self, holder: str, number: int) -> Lease | None:
        """The next piece for this trainer; None: there is none, though one may be handed back later."""
        if self.fixed and number not in self._crew:
            return None
        place, step = (self._crew.index(number), len(self._crew)) if self.fixed else (0, 1)
        piece = self._next.get(place, place)
        while piece < self.pieces and not self._is_open(piece):
            piece += step
        self._next[place] = piece
        if piece >= self.pieces:
            return None
        self._holders[piece] = holder
        return Lease(piece, self.marks.get(piece))

    def take_some(self, holder: str, number: int) -> list[Lease]:
        """The next pieces for this trainer, to be read in this order; [] where `take` has none. Several while many are
        open, one by one towards the end, so that all trainers come to it at about the same time."""
        wanted = max(1, min(MOST_AT_ONCE, self.untaken // (4 * len(self._crew))))
        taken: list[Lease] = []
        while len(taken) < wanted and (lease := self.take(holder, number)) is not None:
            taken.append(lease)
        return taken

    def _is_open(self, piece: int) -> bool:
        return piece not in self._holders and not self.is_done(piece)

    def note(self, holder: str, marks: Iterable[Mark]) -> None:
        """A step of this trainer is in the model: its pieces are so far. What it does not hold is not its to say."""
        for mark in marks:
            before = self.marks.get(mark.unit)
            samples = 0 if before is None else before.samples
            if self._holders.get(mark.unit) != holder or samples > mark.samples:
                continue
            self.marks[mark.unit] = mark
            self.samples += mark.samples - samples
            if mark.done:
                del self._holders[mark.unit]
                self.left -= 1

    def hand_back(self, holder: str | None = None) -> list[int]:
        """What this trainer holds, or (None) what anybody does, is open again, from where it stands."""
        back = [piece for piece, one in self._holders.items() if holder is None or one == holder]
        for piece in back:
            del self._holders[piece]
        if back:
            self._next.clear()
        return sorted(back)

    def held_by(self, holder: str) -> list[int]:
        """In the order that it took them, which is that of reading: one that was handed back may have come late."""
        return [piece for piece, one in self._holders.items() if one == holder]

    def is_done(self, piece: int) -> bool:
        mark = self.marks.get(piece)
        return mark is not None and mark.done

    @property
    def untaken(self) -> int:
        """Pieces that are neither done nor held."""
        return self.left - len(self._holders)

    def progress(self) -> Progress:
        return to_progress(self.marks.values())


class Lender(Protocol):
    """Where one trainer's reader gets its pieces from, for one pass over the data."""

    def open(
        self, plan: str, pieces: int, marks: Mapping[int, Mark], position: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Begin the pass, or take part in it: all trainers say the same. `plan` is a digest of what is read; `position`
        tells all of it, for trainers that come later."""
        ...

    def take(self) -> Lease | None:
        """The next piece; None: there is none for this trainer any more."""
        ...

    def note(self, marks: Sequence[Mark]) -> None:
        """So far this trainer's pieces are, without a step that could say so: they had no samples."""
        ...

    def share(self) -> float:
        """Share of the pieces, 0 to 1, that somebody has taken, as far as this trainer knows."""
        ...


def to_progress(marks: Iterable[Mark]) -> Progress:
    return [[m.unit, m.samples, m.offset, m.done] for m in sorted(marks, key=lambda mark: mark.unit)]
