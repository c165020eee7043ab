"""Which worker reads what: files shared out without overlap, evenly by bytes, the same answer in every process.

Whole files where that is even: the largest first, each to the worker with the fewest bytes so far. Where it would leave
a worker idle, or shares further than `TOLERANCE` from their mean, files are cut into byte ranges; those that cannot be
cut stay whole, and the others fill up what these leave uneven. A range travels as a name, `part-0#bytes=1000:2000`
(start included, stop not, as in a slice), so a share is a list of names either way; `parse_unit` reads them back.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.data.files import check_file, empty_file, expanded, open_file
from sparsefleet.data.formats.base import HEAD_BYTES, Head, Unit

Path = str | os.PathLike[str]

TOLERANCE = 0.1
"""How far a share of whole files may be from the mean of all shares, as a part of it."""

_RANGE = re.compile(r"^(?P<file>.+)#bytes=(?P<start>\d+):(?P<stop>\d*)$", re.DOTALL)

_PACKED_NAMES = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_PACKED_BYTES = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")


def split_files(files: Sequence[Path], worker_index: int, worker_num: int, *, cuttable: bool = True) -> list[str]:
    """This worker's share, as names in the order of `files`: whole files, or `file#bytes=start:stop` ranges.

    A folder or a pattern among `files` stands for its files. All workers must give the same files in the same order.
    """
    return [unit_name(unit) for unit in split_units(files, worker_index, worker_num, cuttable=cuttable)]


def split_units(files: Sequence[Path], worker_index: int, worker_num: int, *, cuttable: bool = True) -> list[Unit]:
    """This worker's share, as units. `cuttable=False`: the format reads files whole only (a pipe_command, say)."""
    # Every worker looks at every share: all of them refuse alike, and none waits for one that has given up.
    names = _names(files)
    if worker_num < 1:
        raise ConfigError(f"worker_num={worker_num} must be at least 1")
    if not 0 <= worker_index < worker_num:
        raise ConfigError(f"worker_index={worker_index} with {worker_num} workers; allowed is 0 to {worker_num - 1}")
    if worker_num == 1:
        return [Unit(name) for name in names]
    return _shares(names, worker_num, cuttable)[worker_index]


def ordered_shares(files: Sequence[Path], worker_num: int, *, cuttable: bool = True) -> list[list[str]]:
    """Everyone's share, one behind the other in the order of the samples: worker 0's come before worker 1's, and so on.

    Cut evenly by bytes where all files can be cut, else between files.
    """
    names = _names(files)
    if worker_num < 1:
        raise ConfigError(f"worker_num={worker_num} must be at least 1")
    if any(_whole_reason(name, cuttable) for name in names):
        if len(names) < worker_num:
            for name in names:
                _check_cuttable(name, len(names), worker_num, cuttable)
        return _runs_of_files(names, worker_num)
    shares = _filled(names, _weights(names), [[] for _ in range(worker_num)])
    if not _all_have_samples(shares):
        raise _too_few_samples(names, worker_num)
    return [[unit_name(unit) for unit in share] for share in shares]


def unit_name(unit: Unit) -> str:
    """The unit as a name: the file's own where it is whole."""
    if unit.start == 0 and unit.stop is None:
        return unit.file
    return f"{unit.file}#bytes={unit.start}:{'' if unit.stop is None else unit.stop}"


def parse_unit(name: Path) -> Unit:
    """The inverse of `unit_name`; a plain file name is the whole file."""
    text = os.fspath(name)
    match = _RANGE.match(text)
    if match is None:
        return Unit(text)
    start, stop = int(match["start"]), int(match["stop"]) if match["stop"] else None
    if stop is not None and stop < start:
        raise ConfigError(f"{text!r} is not a byte range: it stops before it starts; write file#bytes=start:stop")
    return Unit(match["file"], start, stop)


def plan_units(names: Sequence[str], pieces: int, plan: Callable[[Sequence[str], int], list[Unit]]) -> list[Unit]:
    """What a reader reads for a share: whole files as the format plans them, ranges cut as often as files would be."""
    share = [parse_unit(name) for name in names]
    ranges = [unit for unit in share if unit.start or unit.stop is not None]
    if not ranges:
        return plan(names, pieces)
    if len(plan([ranges[0].file], 2)) == 1:
        # Its ranges would be read as if they were something else, and nobody would notice.
        raise ConfigError(
            f"{unit_name(ranges[0])} is a part of a file, but this format reads files whole only; "
            "share them out by split_files(…, cuttable=False)"
        )
    if len(share) >= pieces:
        pieces = 1
    units: list[Unit] = []
    for unit in share:
        if unit.stop is not None:
            units += cut_unit(unit, pieces)
        else:
            units += plan([unit.file], pieces) if unit.start == 0 else [unit]
    return units


def cut_unit(unit: Unit, pieces: int) -> list[Unit]:
    """A byte range with a known stop, cut evenly for several reading threads; each sample is in one piece."""
    if unit.stop is None:
        raise ConfigError(f"{unit.file}: a range without a stop cannot be cut")
    length = unit.stop - unit.start
    cuts = [unit.start + length * piece // pieces for piece in range(pieces + 1)]
    return [Unit(unit.file, start, stop) for start, stop in itertools.pairwise(cuts) if start < stop]


def _names(files: Sequence[Path]) -> list[str]:
    if isinstance(files, str | os.PathLike):
        raise ConfigError(f"files={os.fspath(files)!r} must be a list of files")
    names = expanded(files)
    if not names:
        raise ConfigError("the list of files is empty; give at least one file")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{name} is listed twice, so its samples would be too")
        if _RANGE.match(name):
            raise ConfigError(f"{name} is a share already; split the whole list of files, once")
        seen.add(name)
    return names


def _shares(names: Sequence[str], worker_num: int, cuttable: bool) -> list[list[Unit]]:
    """Everyone's share; none is empty."""
    weights, places = _weights(names), range(len(names))
    shares = _largest_first(places, names, weights, worker_num)
    whole = [[Unit(names[place]) for place in share] for share in shares]
    enough = len(names) >= worker_num
    if enough and _is_even([sum(weights[place] for place in share) for share in shares]):
        return whole
    known = all(_size(name) is not None for name in names)
    uncut = [place for place in places if not known or _whole_reason(names[place], cuttable)]
    if len(uncut) < len(names):
        filled = _filled(names, weights, _largest_first(uncut, names, weights, worker_num))
        if _all_have_samples(filled):
            return filled
    if enough:
        return whole
    if len(uncut) == len(names):
        for name in names:
            _check_cuttable(name, len(names), worker_num, cuttable)
    raise _too_few_samples(names, worker_num)


def _is_even(loads: Sequence[int]) -> bool:
    mean = sum(loads) / len(loads)
    return all(abs(load - mean) <= TOLERANCE * mean for load in loads)


def _weights(names: Sequence[str]) -> list[int]:
    """The files' sizes. Where not all have one none can be compared: then every file counts the same."""
    sizes = [_size(name) for name in names]
    return [1 if None in sizes else size or 0 for size in sizes]


def _largest_first(
    places: Iterable[int], names: Sequence[str], weights: Sequence[int], worker_num: int
) -> list[list[int]]:
    """These of the files, whole, each to the share with the fewest bytes so far."""
    loads = [0] * worker_num
    shares: list[list[int]] = [[] for _ in range(worker_num)]
    for place in sorted(places, key=lambda place: (-weights[place], names[place])):
        worker = min(range(worker_num), key=lambda worker: (loads[worker], len(shares[worker]), worker))
        loads[worker] += weights[place]
        shares[worker].append(place)
    return [sorted(share) for share in shares]


def _runs_of_files(names: Sequence[str], worker_num: int) -> list[list[str]]:
    """The files in their order, cut between files so that the parts come close to equal bytes; none is empty."""
    weights = _weights(names)
    total, taken, place = sum(weights), 0, 0
    shares: list[list[str]] = []
    for worker in range(worker_num):
        last = len(names) - (worker_num - worker - 1)  # the others need a file each
        goal, start = total * (worker + 1) / worker_num, place
        while place < last and (place == start or taken + weights[place] / 2 <= goal):
            taken += weights[place]
            place += 1
        shares.append(list(names[start:place]))
    return [*shares[:-1], [*shares[-1], *names[place:]]]


def _filled(names: Sequence[str], sizes: Sequence[int], whole: Sequence[Sequence[int]]) -> list[list[Unit]]:
    """Shares that have these files whole, filled up with the others to one level: laid end to end and cut there."""
    kept = {place for share in whole for place in share}
    lengths = [0 if place in kept else size for place, size in enumerate(sizes)]
    cuts = _cuts([sum(sizes[place] for place in share) for share in whole], sum(lengths))
    shares = []
    for share, (low, high) in zip(whole, itertools.pairwise(cuts), strict=True):
        units = {place: Unit(names[place]) for place in share} | dict(_between(names, lengths, low, high))
        shares.append([units[place] for place in sorted(units)])
    return shares


def _cuts(loads: Sequence[int], length: int) -> list[int]:
    """Where to cut so many bytes so that each share, with its part, comes to one level, or is above it without one."""
    level, among = 0, 0  # the level is a fraction, level / among: cuts are exact whatever the sizes
    for load in sorted(loads):
        if among and load * among >= length + level:
            break
        level, among = level + load, among + 1
    needs = [max(0, length + level - load * among) for load in loads]
    return [total // among for total in itertools.accumulate(needs, initial=0)]


def _between(names: Sequence[str], lengths: Sequence[int], low: int, high: int) -> Iterator[tuple[int, Unit]]:
    """What of the files, laid end to end, lies there; with each one's place in the list."""
    begin = 0
    for place, (name, length) in enumerate(zip(names, lengths, strict=True)):
        start, stop = max(low - begin, 0), min(high - begin, length)
        if start < stop:
            yield place, Unit(name) if (start, stop) == (0, length) else Unit(name, start, stop)
        begin += length


def _size(name: str) -> int | None:
    """Bytes; None for what has none (a named pipe)."""
    if is_uri(name):
        return check_file(name)
    try:
        status = os.stat(name)
    except (OSError, ValueError) as error:
        raise DataError(f"{name} cannot be shared out: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{name} is a directory; give the files in it")
    if not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size == 0:
        # No format takes it. All workers say so, not only the one whose share it would be in.
        raise empty_file(name)
    return status.st_size


def _whole_reason(name: str, cuttable: bool) -> str | None:
    """Why a file cannot be cut; None where it can."""
    if not cuttable:
        return "its format reads files whole only"
    if _size(name) is None:
        return "it is not a regular file"
    if name.lower().endswith(_PACKED_NAMES):
        return f"{os.path.splitext(name)[1]} files are read whole only"
    with open_file(name) as file:
        head = Head(name, file.read(HEAD_BYTES) or b"")
    if head.data.startswith(_PACKED_BYTES) or not head.is_text:
        return "it is compressed or not text, which is read whole only"
    return None


def _check_cuttable(name: str, count: int, worker_num: int, cuttable: bool) -> None:
    reason = _whole_reason(name, cuttable)
    if reason is not None:
        files = "1 file" if count == 1 else f"{count} files"
        raise ConfigError(
            f"{files} for {worker_num} workers, and {name} cannot be cut: {reason}; "
            f"give at least {worker_num} files, or use at most {count} worker{'s' * (count > 1)}"
        )


def _all_have_samples(shares: Sequence[Sequence[Unit]]) -> bool:
    return all(any(_has_sample(unit) for unit in share) for share in shares)


def _too_few_samples(names: Sequence[str], worker_num: int) -> ConfigError:
    return ConfigError(
        f"{_listed(names)} cannot be shared by {worker_num} workers: some would get no sample; use fewer workers"
    )


def _has_sample(unit: Unit) -> bool:
    """Whether a sample begins in this part of a text file."""
    if unit.start == 0:
        return True
    with open_file(unit.file) as file:
        left = (file.seek(0, os.SEEK_END) if unit.stop is None else unit.stop) - unit.start
        file.seek(unit.start - 1)
        # A sample begins behind a line end; one at the range's last byte belongs to the next range.
        while left > 0:
            block = file.read(min(left, 1 << 16))
            if not block:
                return False
            if b"\n" in block:
                return True
            left -= len(block)
    return False


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
