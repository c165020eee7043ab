"""Make raw Criteo files ready for training: check, split, and measure the normalisation.

    out/train/part-0 …   out/test/part-0 …   out/schema.json   out/prepare.json

Of every ten rows in a row (for a test share of 0.1), one at a random place goes to the test set: it depends
on the seed and the row's number alone, so the same input gives the same split. Rows are dealt to the parts in
turn: parts have equal length, each spans the whole time of the input, and inside a part the order of the
input is kept. Nothing is shuffled; readers do that.

The normalisation is (x - minimum) / diff with diff = 95th percentile - minimum, at least 1. The percentile is
the value at the 95 % position of all sorted non-blank values, training and test rows alike. Larger values are
not clipped: extremes are kept.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparsefleet.core.errors import SKIP, ConfigError, DataError
from sparsefleet.core.schema import CRITEO, FILE_NAME, Schema
from sparsefleet.data.formats.base import BadRows
from sparsefleet.data.tools.planted import mix64
from sparsefleet.data.tools.progress import OnProgress, ignore_progress
from sparsefleet.data.tools.quantiles import Quantiles
from sparsefleet.data.tools.raw_rows import INTEGER_COLUMNS, GoodRows, good_rows, raw_files, read_lines
from sparsefleet.data.tools.staging import check_space, staged

PREPARE_FILE = "prepare.json"
PERCENTILE = 0.95
MAX_PARTS = 1000
"""All part files are open at once."""

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PrepareSpec:
    test_share: float = 0.1
    """Share of rows held out; 0 holds out none."""
    parts: int = 8
    """Training part files; the test rows get as many as keeps their parts about as large."""
    seed: int = 1
    """Decides which rows are held out."""
    keep_constants: bool = False
    """Write the usual fixed constants into the schema instead of the measured ones."""
    on_bad_row: str = "error"
    """error or skip"""

    def __post_init__(self) -> None:
        if not 0 <= self.test_share < 1:
            raise ConfigError(f"--test-share {self.test_share} must be at least 0 and below 1, for instance 0.1")
        if not 1 <= self.parts <= MAX_PARTS:
            raise ConfigError(f"--parts {self.parts} must lie between 1 and {MAX_PARTS}")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"--seed {self.seed} must lie between 0 and 2**64 - 1")
        BadRows(self.on_bad_row)  # refuses an unknown policy

    @property
    def test_parts(self) -> int:
        return min(MAX_PARTS, max(1, round(self.parts * self.test_share / (1 - self.test_share))))


@dataclass(frozen=True, slots=True)
class IntegerStats:
    """What was measured of one integer feature, blanks left out."""

    name: str
    values: int
    blanks: int
    minimum: float | None
    """None where all rows are blank."""
    p95: float | None
    exact: bool
    """False where there were too many different values to count them all; see `Quantiles`."""


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """What prepare.json holds."""

    files: int
    train_rows: int
    test_rows: int
    seed: int
    skipped: dict[str, int] = field(default_factory=dict)
    """Bad rows left out, per reason."""
    integers: tuple[IntegerStats, ...] = ()


def prepare(
    raw: str | Path,
    out: str | Path,
    spec: PrepareSpec | None = None,
    *,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> PrepareReport:
    """Split the raw rows and write the schema. Progress is in bytes of the input files."""
    spec = spec or PrepareSpec()
    files = raw_files(raw)
    sizes = [file.stat().st_size for file in files]
    check_space(out, sum(sizes))
    bad_rows = BadRows(spec.on_bad_row)
    quantiles = [Quantiles() for _ in range(INTEGER_COLUMNS)]
    rows, done = 0, 0
    with staged(out, ("train", "test", PREPARE_FILE, FILE_NAME), overwrite=overwrite) as stage:
        on_progress(0, sum(sizes))
        with ExitStack() as stack:
            train = _Parts(stage / "train", spec.parts, stack)
            test = _Parts(stage / "test", spec.test_parts, stack)
            for file, size in zip(files, sizes, strict=True):
                empty = True
                for lines in read_lines(file):
                    empty = False
                    good = good_rows(lines, bad_rows)
                    held_out = is_test_row(np.arange(rows, rows + len(good)), spec.test_share, spec.seed)
                    rows += len(good)
                    for quantile, numbers in zip(quantiles, good.numbers, strict=True):
                        quantile.add(numbers[~np.isnan(numbers)])
                    train.deal(good, ~held_out)
                    test.deal(good, held_out)
                    on_progress(done + lines.position, sum(sizes))
                if empty:
                    _refuse_empty(file, bad_rows)
                done += size
        if not rows:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in bad_rows.counts.items())
            raise DataError(f"{raw}: no usable rows ({reasons})")
        integers = tuple(
            IntegerStats(
                name=name,
                values=quantile.count,
                blanks=rows - quantile.count,
                minimum=quantile.minimum if quantile.count else None,
                p95=quantile.at(PERCENTILE) if quantile.count else None,
                exact=quantile.exact,
            )
            for name, quantile in zip(CRITEO.dense_names, quantiles, strict=True)
        )
        report = PrepareReport(len(files), train.rows, test.rows, spec.seed, dict(bad_rows.counts), integers)
        (stage / PREPARE_FILE).write_text(json.dumps(asdict(report), indent=1) + "\n")
        schema = CRITEO if spec.keep_constants else normalised(CRITEO, integers)
        schema.save(stage / FILE_NAME)
    return report


def normalised(schema: Schema, integers: tuple[IntegerStats, ...]) -> Schema:
    """The schema with the measured minima and percentiles; a feature that is always blank stays x itself."""
    dense = []
    for feature, stats in zip(schema.dense, integers, strict=True):
        low = 0.0 if stats.minimum is None else stats.minimum
        high = low if stats.p95 is None else stats.p95
        dense.append(replace(feature, minimum=low, diff=max(high - low, 1.0)))
    return replace(schema, dense=tuple(dense))


def is_test_row(rows: I64, share: float, seed: int) -> Mask:
    """Which of these row numbers are held out: one at a random place in every window of 1/share rows.

    Windows rather than a coin per row, so that the share is exact, for ten rows as for ten million.
    """
    exact = Fraction(share).limit_denominator(1_000_000)
    if not exact:
        return np.zeros(len(rows), np.bool_)
    over, under = exact.numerator, exact.denominator
    window = rows * over // under
    first = -(-window * under // over)
    length = -(-(window + 1) * under // over) - first
    scattered = mix64(mix64(window.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(seed))
    place = (scattered % length.astype(np.uint64)).astype(np.int64)
    return np.asarray(rows - first == place, np.bool_)


class _Parts:
    """Part files of one folder; each is opened when its first row comes, so none is empty."""

    def __init__(self, folder: Path, parts: int, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._files: list[BinaryIO | None] = [None] * parts
        self.rows = 0

    def deal(self, good: GoodRows, mine: Mask) -> None:
        count = int(mine.sum())
        if not count:
            return
        text = _lines_array(good, mine)
        parts = len(self._files)
        for offset in range(min(parts, count)):
            part = (self.rows + offset) % parts
            self._file(part).write(_joined(text.take(pa.array(np.arange(offset, count, parts)))))
        self.rows += count

    def _file(self, part: int) -> BinaryIO:
        file = self._files[part]
        if file is None:
            self._folder.mkdir(exist_ok=True)
            file = self._stack.enter_context((self._folder / f"part-{part}").open("wb"))
            self._files[part] = file
        return file


def _lines_array(good: GoodRows, mine: Mask) -> pa.Array:
    """The chosen rows as an Arrow array: gathering many small pieces is what Arrow does well."""
    # Rows of a block may have gaps between them (bad rows), so each gets its own start: an array of all
    # pieces, then every other one.
    borders = np.stack([good.starts, good.ends], axis=1).ravel()
    offsets = np.append(borders, borders[-1])
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(borders), [None, pa.py_buffer(offsets), pa.py_buffer(good.text)]
    )
    return pieces.take(pa.array(2 * np.flatnonzero(mine)))


def _joined(array: pa.Array) -> memoryview:
    """All bytes of a freshly taken array."""
    ends = np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1]
    return memoryview(array.buffers()[2])[int(ends[0]) : int(ends[-1])]


def _refuse_empty(file: Path, bad_rows: BadRows) -> None:
    if bad_rows.policy == "error":
        raise DataError(f"{file} is empty ({SKIP} passes over it)")
    bad_rows.add("empty file")
