"""Memory over a long epoch of a streaming reader: the process must not grow with the number of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from parts.common import Line, Scale, criteo_files
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.files import list_files
from sparsefleet.data.open import open_reader

REPEATS = 20


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def lines(folder: Path, scale: Scale) -> Iterator[Line]:
    data = criteo_files(folder, scale.rows) / "train"
    long = folder / "long"
    long.mkdir(exist_ok=True)
    for repeat in range(REPEATS):  # the same rows under many names: a long epoch without a large disk
        for file in list_files(data):
            name = long / f"part-{repeat}-{Path(file).name}"
            if not name.exists():
                name.symlink_to(Path(file).resolve())
    reader = open_reader(long, CRITEO, batch_size=1000)
    rows, early, total = 0, 0.0, scale.rows * REPEATS
    with reader.epoch(1) as epoch:
        for batch in epoch.streams[0]:
            reader.consumed(batch)
            rows += len(batch)
            if not early and rows >= total // 5:
                early = resident_mb()
    late = resident_mb()
    yield Line(
        f"stream {total:,} rows", f"{late:.0f} MB at the end", f"after a fifth: {early:.0f} MB", f"{late / early:.2f}",
        "<= 1.05", late <= 1.05 * early,
    )  # fmt: skip
