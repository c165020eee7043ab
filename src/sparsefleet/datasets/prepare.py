"""Make raw Criteo files ready for training: check, split, and measure the normalisation.

    out/train/part-0 …   out/test/part-0 …   out/schema.json   out/prepare.json

Lines are read and checked by the parser that training uses, so the two agree on what a good sample is.

Of every ten samples in a row (for a test share of 0.1), one at a random place goes to the test set: it depends
on the seed and the sample's number alone, so the same input gives the same split. Samples are dealt to the parts
in turn: parts have equal length, each spans the whole time of the input, and inside a part the order of the
input is kept. Nothing is shuffled; readers do that.

The normalisation is (x - minimum) / diff with diff = 95th percentile - minimum, at least 1, and at least so large
that the largest value fits float32. The percentile is the value at the 95 % position of all sorted non-blank values,
of training and test samples alike. Larger values are not clipped: extremes are kept.
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
from typing import BinaryIO

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
        BadSamples(self.on_bad_row)  # refuses an unknown policy

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
    format = CriteoFormat(CRITEO if spec.keep_constants else _ANY_NUMBER)
    samples, done = 0, 0
    with staged(out, ("train", "test", PREPARE_FILE, FILE_NAME), overwrite=overwrite) as stage:
        on_progress(0, sum(sizes))
        with ExitStack() as stack:
            train = _Parts(stage / "train", spec.parts, stack)
            test = _Parts(stage / "test", spec.test_parts, stack)
            for file, size in zip(files, sizes, strict=True):
                try:
                    source = open_source(file)
                    for chunk in format.read_raw(source, bad_samples, file):
                        assert chunk.text is not None
                        assert chunk.numbers is not None
                        held_out = is_test_sample(np.arange(samples, samples + len(chunk.text)), spec)
                        samples += len(chunk.text)
                        for quantile, numbers in zip(quantiles, chunk.numbers.T, strict=True):
                            quantile.add(numbers[~np.isnan(numbers)])
                        train.deal(chunk.text, ~held_out)
                        test.deal(chunk.text, held_out)
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
        integers = tuple(
            IntegerStats(
                name=name,
                values=quantile.count,
                blanks=samples - quantile.count,
                minimum=quantile.minimum if quantile.count else None,
                maximum=quantile.maximum if quantile.count else None,
                p95=quantile.at(PERCENTILE) if quantile.count else None,
                exact=quantile.exact,
            )
            for name, quantile in zip(CRITEO.dense_names, quantiles, strict=True)
        )
        report = PrepareReport(len(files), train.samples, test.samples, spec.seed, dict(bad_samples.counts), integers)
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
        most = low if stats.maximum is None else stats.maximum
        diff = max(high - low, 1.0, most / FLOAT32_MAX - low / FLOAT32_MAX)  # so that every number fits
        if math.isinf(most - low):
            raise DataError(
                f"{feature.name} goes from {low} to {most}, further than a number can say; "
                f"leave such samples out, or keep the usual constants (--keep-constants)"
            )
        dense.append(replace(feature, minimum=low, diff=diff))
    return replace(schema, dense=tuple(dense))


def is_test_sample(numbers: I64, spec: PrepareSpec) -> Mask:
    """Which of the samples of these numbers are held out: one at a random place in each window of 1/share samples.

    Windows rather than a coin per sample, so that the share is exact, for ten samples as for ten million.
    """
    exact = Fraction(spec.test_share).limit_denominator(1_000_000)
    if not exact:
        return np.zeros(len(numbers), np.bool_)
    over, under = exact.numerator, exact.denominator
    window = numbers * over // under
    first = -(-window * under // over)
    length = -(-(window + 1) * under // over) - first
    scattered = mix64(mix64(window.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(spec.seed))
    place = (scattered % length.astype(np.uint64)).astype(np.int64)
    return np.asarray(numbers - first == place, np.bool_)


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
