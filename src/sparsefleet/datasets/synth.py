"""Write Criteo-like data whose best possible AUC is known.

    out/train/part-0 …   out/test/part-0 …   out/schema.json   out/synth.json

Rows do not depend on the number of parts, and fewer rows are the beginning of more rows. Memory stays flat.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import CRITEO, FILE_NAME
from sparsefleet.datasets.planted import BLOCK_ROWS, TEST, TRAIN, Block, PlantedModel
from sparsefleet.datasets.progress import OnProgress, ignore_progress
from sparsefleet.datasets.staging import check_space, staged

SYNTH_FILE = "synth.json"
BYTES_PER_ROW = 240
"""About; only to see beforehand whether it fits the disk."""
MAX_PARTS = 100_000

_HEX_PAIRS = np.frombuffer("".join(f"{i:02x}" for i in range(256)).encode(), np.uint16)
_CSV = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none", batch_size=16384)
_NAMES = [str(column) for column in range(40)]


@dataclass(frozen=True, slots=True)
class SynthSpec:
    rows: int
    """Training rows."""
    test_rows: int
    parts: int = 4
    """Training part files; the test rows get as many as keeps their parts about as large."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"--rows {self.rows}: at least 1 row is needed")
        if self.test_rows < 0:
            raise ConfigError(f"--test-rows {self.test_rows} must be 0 or above")
        if not 1 <= self.parts <= min(self.rows, MAX_PARTS):
            raise ConfigError(
                f"--parts {self.parts} must lie between 1 and the number of rows ({self.rows}), "
                f"and not above {MAX_PARTS}"
            )
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"--seed {self.seed} must lie between 0 and 2**64 - 1")

    @property
    def test_parts(self) -> int:
        return max(1, min(self.parts, self.test_rows, round(self.parts * self.test_rows / self.rows)))


@dataclass(frozen=True, slots=True)
class SynthReport:
    """What synth.json holds; the best figures are those of the true probabilities on the test rows."""

    rows: int
    test_rows: int
    seed: int
    click_rate: float
    """Of the training rows."""
    test_click_rate: float | None
    best_auc: float | None
    """None without test rows of both labels."""
    best_logloss: float | None


def synth(
    out: str | Path,
    spec: SynthSpec,
    *,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> SynthReport:
    """Write the data and say how well one could possibly predict it. Progress is in rows."""
    check_space(out, (spec.rows + spec.test_rows) * BYTES_PER_ROW)
    model = PlantedModel(spec.seed)
    total = spec.rows + spec.test_rows
    train, test = Truth(), Truth()
    with staged(out, ("train", "test", SYNTH_FILE, FILE_NAME), overwrite=overwrite) as stage:
        done = 0
        on_progress(done, total)
        for name, stream, rows, parts, truth in (
            ("train", TRAIN, spec.rows, spec.parts, train),
            ("test", TEST, spec.test_rows, spec.test_parts, test),
        ):
            if not rows:
                continue
            (stage / name).mkdir()
            for block in _write_parts(stage / name, model, stream, rows, parts):
                truth.add(block.labels, block.probabilities)
                done += len(block)
                on_progress(done, total)
        report = SynthReport(
            rows=spec.rows,
            test_rows=spec.test_rows,
            seed=spec.seed,
            click_rate=train.click_rate,
            test_click_rate=test.click_rate if spec.test_rows else None,
            best_auc=test.auc(),
            best_logloss=test.logloss(),
        )
        (stage / SYNTH_FILE).write_text(json.dumps(asdict(report), indent=1) + "\n")
        CRITEO.save(stage / FILE_NAME)
    return report


class Truth:
    """How well the true probabilities predict the drawn labels. Memory does not grow with the rows."""

    BUCKETS = 1 << 20
    """Ties inside a bucket count half; at this number of buckets they change the AUC by less than 1e-6."""

    def __init__(self) -> None:
        self._clicks = np.zeros(self.BUCKETS, np.int64)
        self._others = np.zeros(self.BUCKETS, np.int64)
        self._log_loss = 0.0

    def add(self, labels: npt.NDArray[np.int8], probabilities: npt.NDArray[np.float64]) -> None:
        buckets = np.minimum((probabilities * self.BUCKETS).astype(np.int64), self.BUCKETS - 1)
        clicked = labels == 1
        self._clicks += np.bincount(buckets[clicked], minlength=self.BUCKETS)
        self._others += np.bincount(buckets[~clicked], minlength=self.BUCKETS)
        self._log_loss -= float(np.log(np.where(clicked, probabilities, 1.0 - probabilities)).sum())

    @property
    def rows(self) -> int:
        return int(self._clicks.sum() + self._others.sum())

    @property
    def click_rate(self) -> float:
        return float(self._clicks.sum()) / self.rows

    def auc(self) -> float | None:
        clicks, others = int(self._clicks.sum()), int(self._others.sum())
        if not clicks or not others:
            return None
        below = np.cumsum(self._others) - self._others
        wins = float((self._clicks * (below + 0.5 * self._others)).sum())
        return wins / clicks / others

    def logloss(self) -> float | None:
        return self._log_loss / self.rows if self.rows else None


def criteo_text(block: Block) -> memoryview:
    """The rows as they stand in a Criteo file."""
    columns = [pa.array(block.labels)]
    columns += [pa.array(v, mask=m) for v, m in zip(block.integers, block.integers_missing, strict=True)]
    columns += [_hexadecimal(v, m) for v, m in zip(block.values, block.values_missing, strict=True)]
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(pa.table(columns, names=_NAMES), sink, _CSV)
    return memoryview(sink.getvalue())


def _hexadecimal(values: npt.NDArray[np.uint32], missing: npt.NDArray[np.bool_]) -> pa.Array:
    digits = _HEX_PAIRS[values.astype(">u4").view(np.uint8)]
    ends = np.arange(0, 8 * len(values) + 1, 8, dtype=np.int32)
    present = np.packbits(~missing, bitorder="little")
    return pa.Array.from_buffers(pa.string(), len(values), [pa.py_buffer(b) for b in (present, ends, digits)])


def _write_parts(folder: Path, model: PlantedModel, stream: int, rows: int, parts: int) -> Iterator[Block]:
    """Cut the stream into parts of equal length, and yield each block once it is written."""
    ends = [rows * (part + 1) // parts for part in range(parts)]
    part, row = 0, 0
    file: BinaryIO | None = None
    try:
        for block, texts in _rendered(model, stream, rows, ends):
            for size, text in texts:
                file = file or (folder / f"part-{part}").open("wb")
                file.write(text)
                row += size
                if row == ends[part]:
                    file.close()
                    file, part = None, part + 1
            yield block
    finally:
        if file is not None:
            file.close()


_Rendered = tuple[Block, list[tuple[int, memoryview]]]


def _rendered(model: PlantedModel, stream: int, rows: int, ends: list[int]) -> Iterator[_Rendered]:
    """Blocks in order, with their texts cut at the ends of parts; two are drawn at a time, ahead of use."""

    def render(index: int) -> _Rendered:
        start = index * BLOCK_ROWS
        block = model.block(stream, index).rows(0, min(BLOCK_ROWS, rows - start))
        stop = start + len(block)
        cuts = [start, *_within(ends, start, stop), stop]
        pieces = [(b - a, criteo_text(block.rows(a - start, b - start))) for a, b in pairwise(cuts)]
        return block, pieces

    model.calibrate()  # before the threads, so that it happens once
    blocks = -(-rows // BLOCK_ROWS)
    with ThreadPoolExecutor(2, thread_name_prefix="synth") as pool:
        ahead: list[Future[_Rendered]] = []
        try:
            for index in range(blocks + 2):
                if index < blocks:
                    ahead.append(pool.submit(render, index))
                if index >= 2 or index >= blocks:
                    if not ahead:
                        return
                    yield ahead.pop(0).result()
        finally:
            for future in ahead:
                future.cancel()


def _within(ends: Iterable[int], start: int, stop: int) -> list[int]:
    return [end for end in ends if start < end < stop]
