"""A pass over units that are known beforehand: files, byte ranges of files, ranges of samples in memory.

A position holds what identifies the input (which must be the same when reading goes on), the units, and for each
unit that was begun how many samples are consumed, the byte offset, and whether it is done. A resumed pass leaves out
finished units and reads begun ones from their mark on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.data import files
from sparsefleet.data.formats.base import BadSamples, Chunk, Unit
from sparsefleet.data.passes import Claim, Pass, Position, new_position

ReadUnit = Callable[[Unit, BadSamples, Mark | None], Iterator[Chunk]]


class UnitPass(Pass):
    def __init__(
        self,
        kind: str,
        identity: Mapping[str, Any],
        units: Sequence[Unit],
        read: ReadUnit,
        *,
        lengths: Sequence[int | None],
        sought: Mapping[str, Any],
        nothing: Callable[[], str],
    ) -> None:
        """`lengths`: bytes (kind 'files') or samples (kind 'memory') per unit, for the share consumed."""
        super().__init__(sought)
        self._kind, self._identity, self._read = kind, dict(identity), read
        self._units, self._lengths, self._nothing = tuple(units), tuple(lengths), nothing
        self._resume = marks_of(sought, len(self._units))
        self._marks = dict(self._resume)
        self._open_units = len(self._units) - sum(mark.done for mark in self._marks.values())
        self._next = 0

    def claim(self, stopped: Callable[[], bool]) -> Claim | None:
        with self._lock:
            while self._next < len(self._units):
                index = self._next
                self._next += 1
                resume = self._resume.get(index)
                if resume is not None and resume.done:
                    continue
                return Claim(index, partial(self._open, index), resume)
        return None

    def _open(self, index: int, bad_samples: BadSamples) -> Iterator[Chunk]:
        return self._read(self._units[index], bad_samples, self._resume.get(index))

    def _note(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            self._advance(mark)

    def no_samples_in(self, mark: Mark) -> None:
        with self._lock:
            self._advance(mark)

    def _advance(self, mark: Mark) -> None:
        before = self._marks.get(mark.unit)
        if before is not None and (before.done or before.samples > mark.samples):
            return
        self._marks[mark.unit] = mark
        self._open_units -= mark.done

    def _position(self) -> Position:
        if not self._open_units:
            return {}
        progress = [[m.unit, m.samples, m.offset, m.done] for _, m in sorted(self._marks.items())]
        return new_position(self._kind, **self._input(), progress=progress)

    def _input(self) -> dict[str, Any]:
        """What a position says besides how far it is."""
        return {
            **self._identity,
            **_folder_of(file for file, *_ in self._identity.get("files", ())),
            "units": [[unit.file, unit.start, unit.stop] for unit in self._units],
        }

    def share(self) -> float:
        with self._lock:
            marks = dict(self._marks)
        if len(marks) == len(self._units) and all(mark.done for mark in marks.values()):
            return 1.0
        total = consumed = 0.0
        weighted = None not in self._lengths
        for index, length in enumerate(self._lengths):
            # Without sizes (remote files) every unit counts the same, and counts when it is done.
            weight = float(length or 0) if weighted else 1.0
            total += weight
            if (mark := marks.get(index)) is not None:
                consumed += weight if mark.done else min(weight, self._begun(index, mark)) if weighted else 0.0
        return consumed / total if total else 0.0

    def _begun(self, index: int, mark: Mark) -> float:
        if self._kind == "memory":
            return float(mark.samples)
        return float(max(0, mark.offset - self._units[index].start)) if mark.offset >= 0 else 0.0

    def nothing(self) -> str:
        return self._nothing()


def marks_of(position: Mapping[str, Any], units: int) -> dict[int, Mark]:
    """The progress part of a position, checked."""
    marks: dict[int, Mark] = {}
    for entry in position.get("progress", ()):
        try:
            unit, samples, offset, done = entry
        except (TypeError, ValueError):
            raise ConfigError(f"reader position: progress {entry!r} is not [unit, rows, offset, done]") from None
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (unit, samples, offset))
        if not whole or not isinstance(done, bool) or not 0 <= unit < units or samples < 0 or offset < -1:
            raise ConfigError(f"reader position: progress {entry!r} makes no sense for {units} units")
        marks[unit] = Mark(unit, samples, offset, done)
    return marks


def units_of(position: Mapping[str, Any]) -> list[Unit]:
    """The units part of a position, checked."""
    units = []
    for entry in position.get("units", ()):
        match entry:
            case [str(file), int(start), int() | None as stop] if start >= 0 and (stop is None or start <= stop):
                units.append(Unit(file, start, stop))
            case _:
                raise ConfigError(f"reader position: unit {entry!r} is not [file, start, stop]")
    if not units:
        raise ConfigError("reader position: it has no units")
    return units


def file_size(file: str) -> int | None:
    """Bytes, or None where the file is not there: reading it will say so."""
    try:
        return files.file_size(file) if is_uri(file) else os.stat(file).st_size
    except (OSError, ValueError, DataError):
        return None


def files_with_sizes(names: Sequence[str]) -> list[list[Any]]:
    return [[file, file_size(file)] for file in names]


_ANEW = "resume a checkpoint of an epoch's end, or none (a reader that a script sets: reader.seek({}))"


def check_same_files(position: Mapping[str, Any], present: Sequence[Sequence[Any]]) -> None:
    """Refuse a position of other files than the reader's: its samples would be skipped in the wrong places."""
    stored = position.get("files")
    if not isinstance(stored, list) or not all(isinstance(f, list | tuple) and len(f) == 2 for f in stored):
        raise ConfigError("reader position: its list of files is missing or damaged")
    before, now = [file for file, _ in stored], [file for file, _ in present]
    if before != now:
        gone, new = [f for f in before if f not in set(now)], [f for f in now if f not in set(before)]
        parts = [f"{len(before)} files then, {len(now)} now"]
        parts += [f"missing now: {_some(gone)}"] if gone else []
        parts += [f"new: {_some(new)}"] if new else []
        parts += ["the same files in another order"] if not gone and not new else []
        raise ConfigError(
            f"the position belongs to another list of files ({'; '.join(parts)}); "
            f"give the files it was taken with, or begin the epoch anew: {_ANEW}"
        )
    changed = [
        f"{file} had {then} bytes, has {size}"
        for (file, then), (_, size) in zip(stored, present, strict=True)
        if then is not None and then != size
    ]
    if changed:
        raise ConfigError(
            f"files have changed since the position was taken ({_some(changed)}); restore them, "
            f"or begin the epoch anew: {_ANEW}"
        )
    known = set(now)
    strange = [unit.file for unit in units_of(position) if unit.file and unit.file not in known]
    if strange:
        raise ConfigError(f"reader position: it has units of files that are not in its list: {_some(strange)}")


def named_as_here(position: Mapping[str, Any], here: Iterable[str]) -> dict[str, Any]:
    """The position, with files called as the reader calls them: `data/a`, `./data/a` and `/home/me/data/a` may be one.

    Names are compared as places. What has no counterpart here keeps its name; `check_same_files` refuses it.
    """
    stored = position.get("files")
    if not isinstance(stored, list) or not all(isinstance(f, list | tuple) and len(f) == 2 for f in stored):
        return dict(position)  # damaged: the check says so
    folder = position.get("folder")
    there = folder if isinstance(folder, str) else "."
    names = {place: name for name in here for place in _places(name, ".")}
    known = set(here)

    def now(file: Any) -> Any:
        if not isinstance(file, str) or not file or (file in known and not _moved(file, there)):
            return file
        return next((names[place] for place in _places(file, there) if place in names), _shown(file, there))

    units = position.get("units")
    renamed = {**position, "files": [[now(file), size] for file, size in stored]}
    renamed.pop("folder", None)
    renamed |= _folder_of(file for file, _ in renamed["files"] if isinstance(file, str))
    if isinstance(units, list):
        renamed["units"] = [[now(unit[0]), *unit[1:]] if isinstance(unit, list) and unit else unit for unit in units]
    return renamed


def _places(name: str, folder: str) -> tuple[str, ...]:
    """What a file may be known by: its path from the root, with and without links followed; a URI as it is."""
    if is_uri(name):
        return (name,)
    path = os.path.abspath(os.path.join(folder, name))
    return path, os.path.realpath(path)


def _moved(name: str, folder: str) -> bool:
    """A name that means another place when it is seen from here."""
    return not is_uri(name) and not os.path.isabs(name) and os.path.abspath(folder) != os.path.abspath(".")


def _shown(name: str, folder: str) -> str:
    """For a file that is not among the reader's: a relative name would mean another place here."""
    return os.path.abspath(os.path.join(folder, name)) if _moved(name, folder) else name


def _folder_of(names: Iterable[str]) -> dict[str, str]:
    """Where relative names are to be read from; nothing where there are none."""
    relative = any(name and not is_uri(name) and not os.path.isabs(name) for name in names)
    return {"folder": os.getcwd()} if relative else {}


def _some(things: Sequence[str]) -> str:
    shown = ", ".join(things[:3])
    return shown if len(things) <= 3 else f"{shown} and {len(things) - 3} more"
