"""Split any table of events into training, test and validation parts: at random, by time, or by group.

    out/train/part-0.csv …   out/test/part-0.csv …   out/valid/part-0.csv …   out/schema.toml   out/prepare.json

Rows are read and checked by the parser that training uses, so the two agree on what a good row is. They are written as
they came; CSV parts get the header of their file. Rows are dealt to the parts in turn, in the order of the input.

- random: of every ten rows (for a test share of 0.1), one at a random place;
- time: the latest rows; validation rows are the latest before them. This reads the files twice;
- group: whole groups (all rows of a user), drawn by a hash of the group; rows without one at random, each by itself.

There are validation rows where a share of them is asked for; the test set is the same with them and without.

On the way the training rows are measured, and the schema that is written has what came out: which values a `min_count`
keeps (`value_counts.py`), the bounds of `quantiles`, and minimum and diff of a `measure` (`measures.py`). A schema
that has such numbers already is measured anew, or (`keep_constants`) only for what it lacks.

The input is split in items (`split_job.py`), by as many processes as are asked for (`split_workers.py`); the result
depends on the input and the seed, not on them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import TOML_NAME, Schema, Slot
from sparsefleet.core.schema.kept_values import MOST, kept_hashes, kept_text
from sparsefleet.core.schema.text import kept_section, schema_text, with_measured, without_kept
from sparsefleet.data.files import file_size, list_files
from sparsefleet.data.formats import format_for, guess_format
from sparsefleet.data.formats.csv import CsvFormat
from sparsefleet.data.formats.records import BOM
from sparsefleet.data.formats.source import open_source
from sparsefleet.datasets.measures import Moments, bounds_of, scale
from sparsefleet.datasets.prepare import PREPARE_FILE, PrepareSpec, entries_of, not_held_out, report_text
from sparsefleet.datasets.progress import OnProgress, ignore_progress
from sparsefleet.datasets.split_job import (
    ITEM_BYTES,
    SplitJob,
    counting_schema,
    cut_into_items,
    ranged_slots,
    without_numbers,
)
from sparsefleet.datasets.split_workers import SplitWorkers
from sparsefleet.datasets.staging import check_space, staged
from sparsefleet.datasets.value_counts import frequent_values

SPLITS = ("random", "time", "group")
WORK = "work"
SUFFIXES = {
    "parquet": ".parquet",
    "csv": ".csv",
    "jsonl": ".jsonl",
    "libsvm": ".libsvm",
    "libffm": ".libffm",
    "multislot": ".multislot",
}


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What prepare.json holds."""

    files: int
    train_rows: int
    test_rows: int
    split: str
    seed: int
    from_time: int | None = None
    """By time: test rows begin here, in seconds since 1970; None: there are none."""
    skipped: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    """Of each slot with a min_count, how many different values occur so often in the training rows."""
    buckets: dict[str, list[float]] = field(default_factory=dict)
    """Of each slot with quantiles, the bounds."""
    scales: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of each dense feature with a measure, minimum and diff."""
    remarks: list[str] = field(default_factory=list)
    """What is measured and not as one would expect, such as numbers that are all equal."""
    valid_rows: int | None = None
    """None: no validation rows were asked for."""
    valid_from_time: int | None = None
    """By time: validation rows begin here, and end where test rows begin; None: there are none."""


def split_table(
    raw: str | Path | Sequence[str],
    out: str | Path,
    schema: Schema,
    spec: PrepareSpec,
    *,
    split: str = "random",
    format_name: str = "auto",
    schema_file: str | Path | None = None,
    overwrite: bool = False,
    workers: int = 1,
    on_progress: OnProgress = ignore_progress,
    item_bytes: int = ITEM_BYTES,
) -> SplitReport:
    """`schema_file`: where the schema stands; TOML is copied as it is, with its comments. Progress is in bytes.

    `workers`: processes; the result is the same for any number. `item_bytes`: how much input is split at a time, on
    which the result depends.
    """
    if split not in SPLITS:
        raise ConfigError(f"--split {split} is not a way to split; choose {', '.join(SPLITS)}")
    if workers < 1:
        raise ConfigError(f"--workers {workers} must be 1 or above")
    files = list_files(raw)
    if not spec.keep_constants:
        schema = without_numbers(schema)
    counting = counting_schema(schema)
    name = guess_format(files[0], schema) if format_name == "auto" else format_name
    if name not in SUFFIXES:
        raise ConfigError(
            f"{files[0]}: read by this schema, it is of format {name}; with --schema, data prepare splits CSV, JSON "
            "lines, libsvm, libffm, MultiSlot and Parquet; without it, Criteo's lines"
        )
    if name == "multislot":
        _check_multislot(schema, split)
    for way, column in (("time", schema.time), ("group", schema.group)):
        if split == way and column is None:
            raise ConfigError(f"--split {way} needs a column: say {way} = NAME in the schema")
    format = format_for(name, counting)
    if name == "csv" and schema.csv is not None and schema.csv.multiline:
        raise ConfigError("data prepare cannot split CSV whose fields hold line ends (csv.multiline); write it without")
    head = _head_of(files, format)
    items = cut_into_items(files, format, item_bytes)
    counted = [at for at, slot in enumerate(schema.slots) if slot.name in schema.uncounted]
    scaled = [at for at, feature in enumerate(schema.dense) if not feature.measured]
    job = SplitJob(items, counting.to_dict(), name, asdict(spec), split, counted, scaled, ranged_slots(schema))
    total = sum(file_size(file) for file in files)
    check_space(out, total)
    progress = _Progress(on_progress, total * (2 if split == "time" else 1), len(items))
    with staged(out, entries_of(out, spec, TOML_NAME), overwrite=overwrite) as stage:
        work = stage / WORK
        work.mkdir()
        split_workers = SplitWorkers(work, workers)
        if split == "time":
            from_time, valid_from_time = _times_of_the_split(split_workers, job, work, spec, progress.next_pass())
            job = replace(job, from_time=from_time, valid_from_time=valid_from_time)
        tell = progress.next_pass()
        train, test, valid, ungrouped, skipped = 0, 0, 0, 0, Counter[str]()
        moments = [Moments()] * len(scaled)
        with ExitStack() as stack:
            parts = {
                "train": _Parts(stage / "train", spec.parts, SUFFIXES[name], head, stack),
                "test": _Parts(stage / "test", spec.test_parts, SUFFIXES[name], head, stack),
                "valid": _Parts(stage / "valid", spec.valid_parts, SUFFIXES[name], head, stack),
            }
            for item, done in split_workers.each(job, "split", tell):
                train, test, valid = train + done.train, test + done.test, valid + done.valid
                ungrouped += done.ungrouped
                skipped.update(done.skipped)
                more = map(Moments.from_plain, done.moments)
                moments = [one.plus(other) for one, other in zip(moments, more, strict=True)]
                for side, to in parts.items():
                    to.take(work / f"item-{item}.{side}")
        if not train + test + valid:
            raise DataError(f"{files[0]}: no usable rows ({dict(skipped)})")
        if not train and spec.valid_share:
            raise DataError("no rows are left to train on; ask for a smaller --test-share or --valid-share")
        if not train:
            raise DataError("all rows went to the test set; ask for a smaller --test-share")
        measured = _with_kept(schema, counted, work)
        kept = {slot.name: _kept_values(slot) for slot in measured.slots if slot.min_count is not None}
        measured, remarks = _with_numbers(measured, job, moments, work)
        remarks += not_held_out(spec, test, valid if spec.valid_share else None, train + test + valid, split)
        if ungrouped:
            remarks.append(
                f"{ungrouped:,} of {train + test + valid:,} rows have no group (an empty {schema.group!r}): each was "
                "drawn by itself, as --split random draws rows"
            )
        report = SplitReport(
            *(len(files), train, test, split, spec.seed, job.from_time, dict(skipped), kept),
            buckets={slot.name: list(slot.buckets or ()) for slot in measured.slots if slot.quantiles is not None},
            scales={one.name: (one.minimum, one.diff) for one in measured.dense if one.measure is not None},
            remarks=remarks,
            valid_rows=valid if spec.valid_share else None,
            valid_from_time=job.valid_from_time,
        )
        (stage / PREPARE_FILE).write_text(report_text(report))
        (stage / TOML_NAME).write_text(_schema_text(schema_file, measured))
    return report


def _check_multislot(schema: Schema, split: str) -> None:
    """Its lines hold keys and numbers that somebody has made: there are no values to count, and no further columns."""
    if split != "random":
        raise ConfigError(f"--split {split}: MultiSlot lines have no column of that; split them at random")
    for slot in schema.slots:
        if slot.min_count is not None:
            raise ConfigError(
                f"slot {slot.name!r}: min_count is for values of text, and MultiSlot lines hold ready-made keys: take "
                "it out, and leave rare values out where the lines are written"
            )
        if slot.quantiles is not None:
            raise ConfigError(
                f"slot {slot.name!r}: quantiles are of numbers, and MultiSlot lines hold ready-made keys: take it out, "
                "and make the buckets where the lines are written"
            )
    for feature in schema.dense:
        if feature.measure is not None:
            raise ConfigError(
                f"dense feature {feature.name!r}: numbers in MultiSlot lines are taken as they are, so nothing is "
                "measured: take measure out, and scale them where the lines are written"
            )


def _head_of(files: Sequence[str], format: Any) -> bytes:
    """The header that all parts get."""
    if not isinstance(format, CsvFormat):
        return b""
    heads = {}
    for file in files:
        size, lines = format.preamble(file)
        source = open_source(file)
        try:
            heads[bytes(_read(source, size)).removeprefix(BOM) if lines else b""] = file
        finally:
            source.close()
    if len({head.rstrip(b"\r\n") for head in heads}) > 1:
        raise DataError("the files' headers differ; bring the columns of all of them into one order first")
    head = next(iter(heads))
    return head if not head or head.endswith(b"\n") else head + b"\n"


def _read(source: Any, size: int) -> bytearray:
    data, filled = bytearray(size), 0
    while filled < size and (count := source.readinto(memoryview(data)[filled:])):
        filled += count
    return data


def _times_of_the_split(
    split_workers: SplitWorkers, job: SplitJob, work: Path, spec: PrepareSpec, tell: Callable[[int, int], None]
) -> tuple[int | None, int | None]:
    """When test rows begin, and validation rows, where there are to be any.

    Rows of one second stay together, so a set may be larger than was asked for: validation rows are counted back from
    where the test rows really begin.
    """
    found = [np.empty(0, np.int64)]
    for item, _ in split_workers.each(job, "times", tell):
        file = work / f"item-{item}.times.npy"
        found.append(np.load(file))
        file.unlink()
    joined = np.sort(np.concatenate(found))
    if not len(joined):
        raise DataError(f"{job.items[0][0][0]}: no usable rows")

    def last(share: float, of: npt.NDArray[np.int64]) -> int | None:
        """When the last rows of these begin, as many as the share of all is; None: none are asked for, or there."""
        if not share or not len(of):
            return None
        behind = round((1 - share) * len(joined)) - (len(joined) - len(of))
        return int(of[min(len(of) - 1, max(0, behind))])

    from_test = last(spec.test_share, joined)
    before = joined if from_test is None else joined[joined < from_test]
    return from_test, last(spec.valid_share, before)


def _with_kept(schema: Schema, counted: Sequence[int], work: Path) -> Schema:
    slots, total = list(schema.slots), sum(_kept_values(slot) for slot in schema.slots if slot.kept is not None)
    for at in counted:
        slot = slots[at]
        assert slot.min_count is not None
        hashes = frequent_values(work, at, slot.min_count)
        total += len(hashes)
        if total > MOST:
            raise ConfigError(
                f"slot {slot.name!r}: {len(hashes):,} values occur at least {slot.min_count} times; a schema, which "
                f"travels with every checkpoint, holds at most {MOST:,} kept values in all: raise min_count"
            )
        slots[at] = replace(slot, kept=kept_text(slot, schema.hash_seed, hashes))
    return replace(schema, slots=tuple(slots))


def _with_numbers(schema: Schema, job: SplitJob, moments: Sequence[Moments], work: Path) -> tuple[Schema, list[str]]:
    """The schema with bounds, minima and diffs, and what is to be remarked of them."""
    slots, dense, remarks = list(schema.slots), list(schema.dense), []
    for at, _ in job.ranged:
        slot = slots[at]
        assert slot.quantiles is not None
        bounds, remark = bounds_of(work, at, slot.quantiles, slot.name)
        slots[at] = replace(slot, buckets=bounds)
        remarks.append(remark)
    for at, of_feature in zip(job.scaled, moments, strict=True):
        minimum, diff, remark = scale(dense[at], of_feature)
        dense[at] = replace(dense[at], minimum=minimum, diff=diff)
        remarks.append(remark)
    return replace(schema, slots=tuple(slots), dense=tuple(dense)), [remark for remark in remarks if remark]


def _kept_values(slot: Slot) -> int:
    return len(kept_hashes(slot.kept or "", f"slot {slot.name!r}"))


def _schema_text(schema_file: str | Path | None, measured: Schema) -> str:
    if schema_file is None or not str(schema_file).endswith(".toml"):
        return schema_text(measured, toml=True)
    text = with_measured(without_kept(Path(str(schema_file)).read_text()), measured)
    text += kept_section({slot.name: slot.kept for slot in measured.slots if slot.kept is not None})
    if Schema.from_text(text, TOML_NAME).to_dict() != measured.to_dict():
        return schema_text(measured, toml=True)  # written in a way that nobody foresaw: better without its comments
    return text


class _Progress:
    """Bytes of all items, of one pass or two."""

    def __init__(self, on_progress: OnProgress, total: int, items: int) -> None:
        self._on_progress, self._total, self._items = on_progress, total, items
        self._before, self._done = 0, [0] * items
        on_progress(0, total)

    def next_pass(self) -> Callable[[int, int], None]:
        self._before += sum(self._done)
        self._done = [0] * self._items

        def tell(item: int, done: int) -> None:
            self._done[item] = done
            self._on_progress(min(self._total, self._before + sum(self._done)), self._total)

        return tell


class _Parts:
    """Part files of one folder; each is begun when its first row comes, so none is empty."""

    def __init__(self, folder: Path, parts: int, suffix: str, head: bytes, stack: ExitStack) -> None:
        self._folder, self._suffix, self._head, self._stack = folder, suffix, head, stack
        self._files: list[BinaryIO | None] = [None] * parts
        self._tables: list[pq.ParquetWriter | None] = [None] * parts

    def take(self, stem: Path) -> None:
        """The rows of one item, which are then gone from there."""
        for part in range(len(self._files)):
            file = stem.with_name(f"{stem.name}-{part}")
            if not file.exists():
                continue
            if self._suffix == ".parquet":
                self._take_table(part, file)
            else:
                with file.open("rb") as rows:
                    shutil.copyfileobj(rows, self._file(part), 1 << 20)
            file.unlink()

    def _path(self, part: int) -> Path:
        self._folder.mkdir(exist_ok=True)
        return self._folder / f"part-{part}{self._suffix}"

    def _file(self, part: int) -> BinaryIO:
        file = self._files[part]
        if file is None:
            file = self._files[part] = self._stack.enter_context(self._path(part).open("wb"))
            file.write(self._head)
        return file

    def _take_table(self, part: int, file: Path) -> None:
        with pq.ParquetFile(file) as rows:
            writer = self._tables[part]
            if writer is None:
                writer = pq.ParquetWriter(self._path(part), rows.schema_arrow)
                self._tables[part] = self._stack.enter_context(writer)
            elif not writer.schema.equals(rows.schema_arrow):
                raise DataError("the files' columns differ in names or types; bring them into one shape first")
            for group in range(rows.num_row_groups):
                writer.write_table(rows.read_row_group(group))
