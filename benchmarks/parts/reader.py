"""The native Criteo reader, all checks on, one thread, against pyarrow's CSV reader plus hashing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from parts.common import Line, Scale, criteo_files, in_turn
from peers import user_script
from sparsefleet.data.files import list_files
from sparsefleet.data.formats.base import BadSamples
from sparsefleet.data.formats.criteo import CriteoFormat


def lines(folder: Path, scale: Scale) -> Iterator[Line]:
    files = list_files(criteo_files(folder, scale.rows) / "train")

    def native() -> float:
        begin, rows = time.perf_counter(), 0
        format = CriteoFormat()
        for unit in format.plan(files, 1):
            for chunk in format.read(unit, BadSamples()):
                rows += len(chunk.batch)
        return rows / (time.perf_counter() - begin)

    def pyarrow() -> float:
        begin, rows = time.perf_counter(), 0
        for labels, _, _ in user_script.read(files):
            rows += len(labels)
        return rows / (time.perf_counter() - begin)

    ours, theirs = in_turn([native, pyarrow], 2 * scale.rounds + 1)
    yield Line("read Criteo text", f"{ours / 1e6:.2f} M rows/s", "2 M rows/s", f"{ours / 2e6:.2f}", ">= 1", ours >= 2e6)
    yield Line(
        "read Criteo text", f"{ours / 1e6:.2f} M rows/s", f"pyarrow CSV + hashing: {theirs / 1e6:.2f} M rows/s",
        f"{ours / theirs:.1f}", ">= 8", ours >= 8 * theirs,
    )  # fmt: skip
