"""Make raw Criteo files ready for training: check, split, and measure the normalisation.

    out/train/part-0 …   out/test/part-0 …   out/valid/part-0 …   out/schema.json   out/prepare.json

Lines are read and checked by the parser that training uses, so the two agree on what a good sample is.

Of every ten samples in a row (for a test share of 0.1), one at a random place goes to the test set: it depends
on the seed and the sample's number alone, so the same input gives the same split. Samples are dealt to the parts
in turn: parts have equal length, each spans the whole time of the input, and inside a part the order of the
input is kept. Nothing is shuffled; readers do that.

Validation samples, where a share of them is asked for, are drawn in the same way from the samples that are left: the
test set is the same with them and without.

The normalisation is (x - minimum) / diff with diff = 95th percentile - minimum, at least 1, and at least so large
that the largest value fits float32. The percentile is the value at the 95 % position of all sorted non-blank values,
of training and test samples alike; where there are validation samples, of the training samples alone. Larger values are
not clipped: extremes are kept.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from sparsefleet.core.errors import SKIP, ConfigError, DataError
from sparsefleet.core.schema import CRITEO, FILE_NAME, Schema
from sparsefleet.data.files import EmptyFileError, file_size, list_files
from sparsefleet.data.formats.base import BadSamples
from sparsefleet.data.formats.criteo import CriteoFormat
from sparsefleet.data.formats.source import open_source
from sparsefleet.datasets.planted import mix64
from sparsefleet.datasets.progress import OnProgress, ignore_progress
from sparsefleet.datasets.quantiles import Quantiles
from sparsefleet.datasets.staging import check_space, staged

PREPARE_FILE = "prepare.json"
PERCENTILE = 0.95
MAX_PARTS = 1000
"""All part files are open at once."""

FLOAT32_MAX = float(np.finfo(np.float32).max)
_ANY_NUMBER = replace(CRITEO, dense=tuple(replace(feature, minimum=0.0, diff=1e300) for feature in CRITEO.dense))
"""Constants under which every number that the parser takes fits float32: they are yet to be measured."""
_VALID = 0xD1B54A32D192ED03
"""Of the seed: validation samples are drawn otherwise than test samples are."""

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PrepareSpec:
    test_share: float = 0.1
    """Share of rows held out; 0 holds out none."""
    parts: int = 8
    """Training part files; test and validation rows get as many as keeps their parts about as large."""
    seed: int = 1
    """Decides which rows are held out."""
    keep_constants: bool = False
    """Keep the numbers that the schema has, and measure only what it lacks. Criteo's has the usual fixed constants."""
    on_bad_row: str = "error"
    """error or skip"""
    valid_share: float = 0.0
    """Share of rows held out for decisions within training, such as when to stop; 0 holds out none."""

    def __post_init__(self) -> None:
        for option, share in (("--test-share", self.test_share), ("--valid-share", self.valid_share)):
            if not 0 <= share < 1:
                raise ConfigError(f"{option} {share} must be at least 0 and below 1, for instance 0.1")
        if self.test_share + self.valid_share >= 1:
            raise ConfigError(
                f"--test-share {self.test_share} and --valid-share {self.valid_share} leave no rows to train on: "
                "together they must be below 1, for instance 0.1 each"
            )
        if not 1 <= self.parts <= MAX_PARTS:
            raise ConfigError(f"--parts {self.parts} must lie between 1 and {MAX_PARTS}")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"--seed {self.seed} must lie between 0 and 2**64 - 1")
        BadSamples(self.on_bad_row)  # refuses an unknown policy

    @property
    def test_parts(self) -> int:
        return self._parts_for(self.test_share)

    @property
    def valid_parts(self) -> int:
        return self._parts_for(self.valid_share)

    def _parts_for(self, share: float) -> int:
        return min(MAX_PARTS, max(1, round(self.parts * share / (1 - self.test_share - self.valid_share))))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Which samples are of which set."""

    test: Mask
    valid: Mask

    @property
    def train(self) -> Mask:
        return ~(self.test | self.valid)


@dataclass(frozen=True, slots=True)
class IntegerStats:
    """What was measured of one integer feature, blanks left out."""

    name: str
    values: int
    blanks: int
    minimum: float | None
    """None where all samples are blank."""
    maximum: float | None
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
    valid_rows: int | None = None
    """None: no validation rows were asked for."""


def report_text(report: Any) -> str:
    """The text of prepare.json. What is told of validation rows stands there only where some were asked for."""
    told = {name: value for name, value in asdict(report).items() if not (name.startswith("valid_") and value is None)}
    return json.dumps(told, indent=1) + "\n"


def not_held_out(spec: PrepareSpec, test: int, valid: int | None, rows: int, split: str = "random") -> list[str]:
    """Which sets have no row though a share was asked for, and why, in words."""
    told = []
    for name, option, share, found in (
        ("test", "--test-share", spec.test_share, test),
        ("validation", "--valid-share", spec.valid_share, valid),
    ):
        if share and found == 0:
            why = f"{option} {share:g} of {rows:,} rows is less than one row; ask for a larger share"
            if share * rows >= 1:
                why = f"too few differ, for --split {split}, to hold some out"
            told.append(f"no row is a {name} row: {why}")
    return told


def entries_of(out: str | Path, spec: PrepareSpec, schema_name: str) -> tuple[str, ...]:
    """What a run puts into `out`, in that order; what an earlier run has left there under these names goes.

    So do validation rows of an earlier run where this one makes none: they would be among its training rows.
    """
    try:
        earlier = "valid_rows" in json.loads((Path(out) / PREPARE_FILE).read_text())
    except (OSError, ValueError, TypeError):
        earlier = False
    return ("train", "test", *(["valid"] if spec.valid_share or earlier else []), PREPARE_FILE, schema_name)


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
    # A file that is given by name may be empty; one in a folder may be too.
    files = [str(raw)] if os.path.isfile(raw) else list_files(raw)
    sizes = [file_size(file) for file in files]
    check_space(out, sum(sizes))
    bad_samples = BadSamples(spec.on_bad_row)
    quantiles = [Quantiles() for _ in CRITEO.dense]
    farthest = [(math.inf, -math.inf) for _ in CRITEO.dense]
    format = CriteoFormat(CRITEO if spec.keep_constants else _ANY_NUMBER)
    samples, measured, done = 0, 0, 0
    with staged(out, entries_of(out, spec, FILE_NAME), overwrite=overwrite) as stage:
        on_progress(0, sum(sizes))
        with ExitStack() as stack:
            train = _Parts(stage / "train", spec.parts, stack)
            test = _Parts(stage / "test", spec.test_parts, stack)
            valid = _Parts(stage / "valid", spec.valid_parts, stack)
            for file, size in zip(files, sizes, strict=True):
                try:
                    source = open_source(file)
                    for chunk in format.read_raw(source, bad_samples, file):
                        assert chunk.text is not None
                        assert chunk.numbers is not None
                        held = held_out(np.arange(samples, samples + len(chunk.text)), spec)
                        mine = held.train if spec.valid_share else np.ones(len(chunk.text), np.bool_)
                        samples, measured = samples + len(chunk.text), measured + int(mine.sum())
                        for place, (quantile, column) in enumerate(zip(quantiles, chunk.numbers.T, strict=True)):
                            there = ~np.isnan(column)
                            quantile.add(column[there & mine])
                            least, most = farthest[place]
                            farthest[place] = (
                                float(column[there].min(initial=least)),
                                float(column[there].max(initial=most)),
                            )
                        train.deal(chunk.text, held.train)
                        test.deal(chunk.text, held.test)
                        valid.deal(chunk.text, held.valid)
                        on_progress(done + source.on_disk, sum(sizes))
                except EmptyFileError as error:
                    if spec.on_bad_row == "error":
                        raise DataError(f"{file} is empty ({SKIP} passes over it)") from error
                    bad_samples.add("empty file")
                done += size
                on_progress(done, sum(sizes))
        if not samples:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in bad_samples.counts.items())
            raise DataError(f"{raw}: no usable samples ({reasons})")
        if spec.valid_share and not train.samples:
            raise DataError("no rows are left to train on; ask for a smaller --test-share or --valid-share")
        integers = tuple(
            IntegerStats(
                name=name,
                values=quantile.count,
                blanks=measured - quantile.count,
                minimum=quantile.minimum if quantile.count else None,
                maximum=quantile.maximum if quantile.count else None,
                p95=quantile.at(PERCENTILE) if quantile.count else None,
                exact=quantile.exact,
            )
            for name, quantile in zip(CRITEO.dense_names, quantiles, strict=True)
        )
        counts = (len(files), train.samples, test.samples, spec.seed, dict(bad_samples.counts), integers)
        report = PrepareReport(*counts, valid_rows=valid.samples if spec.valid_share else None)
        (stage / PREPARE_FILE).write_text(report_text(report))
        schema = CRITEO if spec.keep_constants else normalised(CRITEO, integers, farthest)
        schema.save(stage / FILE_NAME)
    return report


def normalised(
    schema: Schema, integers: tuple[IntegerStats, ...], farthest: Sequence[tuple[float, float]] | None = None
) -> Schema:
    """The schema with the measured minima and percentiles; a feature that is always blank stays x itself.

    `farthest`: least and greatest number of all samples, where not all of them were measured.
    """
    dense = []
    for place, (feature, stats) in enumerate(zip(schema.dense, integers, strict=True)):
        low = 0.0 if stats.minimum is None else stats.minimum
        high = low if stats.p95 is None else stats.p95
        least, most = low, low if stats.maximum is None else stats.maximum
        if farthest is not None and farthest[place][0] <= farthest[place][1]:
            least, most = farthest[place]
        # So that every number fits.
        diff = max(high - low, 1.0, most / FLOAT32_MAX - low / FLOAT32_MAX, low / FLOAT32_MAX - least / FLOAT32_MAX)
        if math.isinf(most - least):
            raise DataError(
                f"{feature.name} goes from {least} to {most}, further than a number can say; "
                f"leave such samples out, or keep the usual constants (--keep-constants)"
            )
        dense.append(replace(feature, minimum=low, diff=diff))
    return replace(schema, dense=tuple(dense))


def held_out(numbers: I64, spec: PrepareSpec) -> HeldOut:
    """Which of the samples of these numbers are held out: one at a random place in each window of 1/share samples.

    Windows rather than a coin per sample, so that the share is exact, for ten samples as for ten million. Validation
    samples are drawn by windows of what the test set leaves, whose samples are numbered anew.
    """
    of_test = Fraction(spec.test_share).limit_denominator(1_000_000)
    of_valid = Fraction(spec.valid_share).limit_denominator(1_000_000)
    test, before = _drawn(numbers, of_test, spec.seed)
    if not of_valid or of_test == 1:
        return HeldOut(test, np.zeros(len(numbers), np.bool_))
    of_rest = min(Fraction(1), of_valid / (1 - of_test)).limit_denominator(1_000_000)
    valid, _ = _drawn(numbers - before, of_rest, spec.seed ^ _VALID)
    return HeldOut(test, valid & ~test)


def _drawn(numbers: I64, share: Fraction, seed: int) -> tuple[Mask, I64]:
    """Which of the samples are drawn, and how many are drawn of all samples before each."""
    if not share:
        return np.zeros(len(numbers), np.bool_), np.zeros(len(numbers), np.int64)
    over, under = share.numerator, share.denominator
    window = numbers * over // under
    first = -(-window * under // over)
    length = -(-(window + 1) * under // over) - first
    scattered = mix64(mix64(window.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(seed))
    place = first + (scattered % length.astype(np.uint64)).astype(np.int64)
    return np.asarray(numbers == place, np.bool_), window + (numbers > place)


class _Parts:
    """Part files of one folder; each is opened when its first sample comes, so none is empty."""

    def __init__(self, folder: Path, parts: int, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._files: list[BinaryIO | None] = [None] * parts
        self.samples = 0

    def deal(self, lines: Sequence[bytes], mine: Mask) -> None:
        """Append those of the lines that are `mine` to the parts in turn."""
        chosen = list(compress(lines, mine.tolist()))
        parts = len(self._files)
        for offset in range(min(parts, len(chosen))):
            part = (self.samples + offset) % parts
            self._file(part).write(b"\n".join([*chosen[offset::parts], b""]))
        self.samples += len(chosen)

    def _file(self, part: int) -> BinaryIO:
        file = self._files[part]
        if file is None:
            self._folder.mkdir(exist_ok=True)
            file = self._stack.enter_context((self._folder / f"part-{part}").open("wb"))
            self._files[part] = file
        return file
