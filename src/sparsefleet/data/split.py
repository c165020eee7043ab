"""Which worker reads what: files shared out without overlap, the same answer in every process.

Enough files: whole files, the largest first, each to the worker with the fewest bytes so far. Fewer files than workers:
byte ranges of them, so that no worker stands idle. A range travels as a name, `part-0#bytes=1000:2000` (start included,
stop not, as in a slice), so a share is a list of names either way; `parse_unit` reads them back.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.data.files import empty_file
from sparsefleet.data.formats.base import Unit

Path = str | os.PathLike[str]

_RANGE = re.compile(r"^(?P<file>.+)#bytes=(?P<start>\d+):(?P<stop>\d*)$", re.DOTALL)

_WHOLE_BY_NAME = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".parquet", ".pq")
_WHOLE_BY_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"PAR1")


def split_files(files: Sequence[Path], worker_index: int, worker_num: int, *, cuttable: bool = True) -> list[str]:
    """This worker's share, as names in the order of `files`: whole files, or `file#bytes=start:stop` ranges.

    All workers must give the same files in the same order.
    """
    return [unit_name(unit) for unit in split_units(files, worker_index, worker_num, cuttable=cuttable)]


def split_units(files: Sequence[Path], worker_index: int, worker_num: int, *, cuttable: bool = True) -> list[Unit]:
    """This worker's share, as units. `cuttable=False`: the format reads files whole only (a pipe_command, say)."""
    names = _names(files)
    if worker_num < 1:
        raise ConfigError(f"worker_num={worker_num} must be at least 1")
    if not 0 <= worker_index < worker_num:
        raise ConfigError(f"worker_index={worker_index} with {worker_num} workers; allowed is 0 to {worker_num - 1}")
    if worker_num == 1:
        return [Unit(name) for name in names]
    if len(names) >= worker_num:
        return [Unit(name) for name in _whole_files(names, worker_num)[worker_index]]
    for name in names:
        _check_cuttable(name, len(names), worker_num, cuttable)
    shares = _ranges(names, worker_num)
    # Every worker looks at every share: all of them refuse alike, and none waits for one that has given up.
    _check_rows(names, shares)
    return shares[worker_index]


def ordered_shares(files: Sequence[Path], worker_num: int, *, cuttable: bool = True) -> list[list[str]]:
    """Everyone's share, one behind the other in the order of the rows: worker 0's come before worker 1's, and so on.

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
    shares = _ranges(names, worker_num)
    _check_rows(names, shares)
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
    if all(unit.start == 0 and unit.stop is None for unit in share):
        return plan(names, pieces)
    units: list[Unit] = []
    for unit in share:
        if unit.stop is not None:
            units += cut_unit(unit, pieces)
        else:
            units += plan([unit.file], pieces) if unit.start == 0 else [unit]
    return units


def cut_unit(unit: Unit, pieces: int) -> list[Unit]:
    """A byte range with a known stop, cut evenly (for several reading threads); the pieces hold its rows once each."""
    if unit.stop is None:
        raise ConfigError(f"{unit.file}: a range without a stop cannot be cut")
    length = unit.stop - unit.start
    cuts = [unit.start + length * piece // pieces for piece in range(pieces + 1)]
    return [Unit(unit.file, start, stop) for start, stop in itertools.pairwise(cuts) if start < stop]


def _names(files: Sequence[Path]) -> list[str]:
    if isinstance(files, str | os.PathLike):
        raise ConfigError(f"files={os.fspath(files)!r} must be a list of files")
    names = [os.fspath(file) for file in files]
    if not names:
        raise ConfigError("the list of files is empty; give at least one file")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{name} is listed twice, so its rows would be too")
        if _RANGE.match(name):
            raise ConfigError(f"{name} is a share already; split the whole list of files, once")
        seen.add(name)
    return names


def _whole_files(names: Sequence[str], worker_num: int) -> list[list[str]]:
    sizes = [_size(name) for name in names]
    # Sizes that not all files have (remote ones) cannot be compared: then every file counts the same.
    weights = [1 if None in sizes else size or 0 for size in sizes]
    loads = [0] * worker_num
    shares: list[list[int]] = [[] for _ in range(worker_num)]
    for place in sorted(range(len(names)), key=lambda place: (-weights[place], names[place])):
        worker = min(range(worker_num), key=lambda worker: (loads[worker], len(shares[worker]), worker))
        loads[worker] += weights[place]
        shares[worker].append(place)
    return [[names[place] for place in sorted(share)] for share in shares]


def _runs_of_files(names: Sequence[str], worker_num: int) -> list[list[str]]:
    """The files in their order, cut between files so that the parts come close to equal bytes; none is empty."""
    sizes = [_size(name) for name in names]
    weights = [1 if None in sizes else size or 0 for size in sizes]
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


def _check_rows(names: Sequence[str], shares: Sequence[Sequence[Unit]]) -> None:
    for share in shares:
        if not any(_has_row(unit) for unit in share):
            raise ConfigError(
                f"{_listed(names)} cannot be shared by {len(shares)} workers: some would get no row; use fewer workers"
            )


def _ranges(names: Sequence[str], worker_num: int) -> list[list[Unit]]:
    """The files laid end to end and cut into equal lengths."""
    sizes = [_size(name) or 0 for name in names]
    total = sum(sizes)
    cuts = [total * worker // worker_num for worker in range(worker_num + 1)]
    return [list(_between(names, sizes, low, high)) for low, high in itertools.pairwise(cuts)]


def _between(names: Sequence[str], sizes: Sequence[int], low: int, high: int) -> Iterator[Unit]:
    begin = 0
    for name, size in zip(names, sizes, strict=True):
        start, stop = max(low - begin, 0), min(high - begin, size)
        if start < stop:
            yield Unit(name) if (start, stop) == (0, size) else Unit(name, start, stop)
        begin += size


def _size(name: str) -> int | None:
    """Bytes; None for what is not a local file (a URI, a named pipe)."""
    if "://" in name:
        return None
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
        return "it is not a local file"
    if name.lower().endswith(_WHOLE_BY_NAME):
        return f"{os.path.splitext(name)[1]} files are read whole only"
    with open(name, "rb") as file:
        if file.read(8).startswith(_WHOLE_BY_MAGIC):
            return "it is compressed or Parquet, which is read whole only"
    return None


def _check_cuttable(name: str, count: int, worker_num: int, cuttable: bool) -> None:
    reason = _whole_reason(name, cuttable)
    if reason is not None:
        files = "1 file" if count == 1 else f"{count} files"
        raise ConfigError(
            f"{files} for {worker_num} workers, and {name} cannot be cut: {reason}; "
            f"give at least {worker_num} files, or use at most {count} worker{'s' * (count > 1)}"
        )


def _has_row(unit: Unit) -> bool:
    """Whether a row begins in this part of a text file."""
    if unit.start == 0:
        return True
    with open(unit.file, "rb") as file:
        file.seek(unit.start - 1)
        left = (os.fstat(file.fileno()).st_size if unit.stop is None else unit.stop) - unit.start
        # A row begins behind a line end; one at the range's last byte belongs to the next range.
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
