"""Reading CSV and JSON lines beside pyarrow's readers plus hashing; what transforms cost; and libsvm and libffm.

    python benchmarks/formats.py [--rows 200000]

One thread each, on the same file of 24 columns with a header (a label, 9 numbers, 14 categories), in turns; the best of
five, in rows per second of the processor, so that other work on the machine counts less. The peer is what a competent
user would write: pyarrow's reader, NumPy for the numbers, and a hash in which only the distinct values of a block go
through Python (`benchmarks/peers/user_script.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from peers.user_script import hashed
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.formats.base import BadSamples, Format, Unit
from sparsefleet.data.formats.csv import CsvFormat
from sparsefleet.data.formats.jsonl import JsonLinesFormat
from sparsefleet.data.formats.libffm import LibffmFormat
from sparsefleet.data.formats.libsvm import LibsvmFormat

NUMBERS, CATEGORIES, FEATURES, TURNS = 9, 14, 30, 5
SCHEMA = Schema(
    dense=tuple(DenseFeature(f"n{i}", 0.0, 100.0) for i in range(NUMBERS)),
    slots=tuple(Slot(f"c{i}") for i in range(CATEGORIES)),
    label="click",
)
TRANSFORMED = replace(
    SCHEMA,
    dense=tuple(
        replace(f, clip=(0.0, 1000.0), function="log1p" if i % 3 == 0 else None) for i, f in enumerate(SCHEMA.dense)
    ),
    slots=(
        *(replace(slot, lower=i % 3 == 0, missing="none") for i, slot in enumerate(SCHEMA.slots[:-2])),
        Slot("c12", column="n0", buckets=(1.0, 10.0, 100.0)),
        Slot("c13", cross=("c0", "c1")),
    ),
)
LIBSVM = Schema(
    dense=tuple(DenseFeature(f"n{i}", column=str(10**6 + i)) for i in range(NUMBERS)),
    slots=(Slot("features", keys=True),),
    sparse_feature_dim=0,
)
LIBFFM = Schema(
    dense=tuple(DenseFeature(f"n{i}", column=f"{i}:value") for i in range(NUMBERS)),
    slots=tuple(Slot(f"c{i}", column=str(NUMBERS + i), keys=True) for i in range(FEATURES)),
    sparse_feature_dim=0,
)


def write(folder: Path, rows: int) -> tuple[str, str]:
    draw = np.random.default_rng(1)
    columns: dict[str, pa.Array] = {"click": pa.array(draw.integers(2, size=rows))}
    for i in range(NUMBERS):
        columns[f"n{i}"] = pa.array(
            np.round(draw.exponential(50, rows), 2) if i % 2 else draw.integers(1000, size=rows)
        )
    for i in range(CATEGORIES):
        names = [f"{value:08x}" for value in draw.integers(1 << 31, size=10 ** (1 + i % 5)).tolist()]
        places = (len(names) * draw.random(rows) ** 3).astype(np.int64)  # a few values are frequent
        columns[f"c{i}"] = pa.array([names[place] for place in places.tolist()])
    table = pa.table(columns)
    with (folder / "f.csv").open("wb") as file:
        file.write((",".join(table.column_names) + "\n").encode())
        pa_csv.write_csv(table, file, pa_csv.WriteOptions(include_header=False, quoting_style="none"))
    (folder / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return str(folder / "f.csv"), str(folder / "f.jsonl")


def write_features(folder: Path, rows: int) -> tuple[str, str]:
    """Lines of 30 features and 9 numbers, as Criteo's are often kept."""
    draw = np.random.default_rng(2)
    features = (1e6 * draw.random((rows, FEATURES)) ** 3).astype(np.int64).tolist()
    numbers = np.round(draw.random((rows, NUMBERS)), 3).tolist()
    with (folder / "f.svm").open("w") as svm, (folder / "f.ffm").open("w") as ffm:
        for row, (found, values) in enumerate(zip(features, numbers, strict=True)):
            pairs = [(at, 10**6 + at, value) for at, value in enumerate(values)]
            pairs += [(NUMBERS + at, feature, 1) for at, feature in enumerate(found)]
            svm.write(" ".join([str(row % 2), *(f"{feature}:{value}" for _, feature, value in pairs)]) + "\n")
            ffm.write(" ".join([str(row % 2), *(f"{at}:{feature}:{value}" for at, feature, value in pairs)]) + "\n")
    return str(folder / "f.svm"), str(folder / "f.ffm")


def ours(form: Format, file: str) -> int:
    return sum(len(chunk.batch) for chunk in form.read(Unit(file), BadSamples()))


def peer(table: pa.Table) -> int:
    """Labels, numbers and keys of a table."""
    for batch in table.to_batches(65536):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["click"].to_numpy()
        np.stack([pc.fill_null(columns[f.name], 0).to_numpy(zero_copy_only=False) / 100.0 for f in SCHEMA.dense], 1)
        np.stack([hashed(columns[slot.name], slot.name) for slot in SCHEMA.slots], 1)
    return int(table.num_rows)


def peer_csv(file: str) -> int:
    types = {slot.name: pa.string() for slot in SCHEMA.slots}
    options = pa_csv.ConvertOptions(column_types=types)
    return peer(pa_csv.read_csv(file, pa_csv.ReadOptions(use_threads=False), convert_options=options))


def peer_json(file: str) -> int:
    return peer(pa_json.read_json(file, pa_json.ReadOptions(use_threads=False)))


def in_turns(ways: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Samples per second, the best of several turns: what disturbs the machine disturbs all of them."""
    best = dict.fromkeys(ways, 0.0)
    for _ in range(TURNS):
        for name, way in ways.items():
            began = time.process_time()
            rows = way()
            best[name] = max(best[name], rows / (time.process_time() - began))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        csv_file, json_file = write(Path(folder), rows)
        svm_file, ffm_file = write_features(Path(folder), rows // 2)
        speeds = in_turns(
            {
                "csv": lambda: ours(CsvFormat(SCHEMA), csv_file),
                "csv, pyarrow and hashing": lambda: peer_csv(csv_file),
                "csv, with transforms": lambda: ours(CsvFormat(TRANSFORMED), csv_file),
                "jsonl": lambda: ours(JsonLinesFormat(SCHEMA), json_file),
                "jsonl, pyarrow and hashing": lambda: peer_json(json_file),
                "libsvm, 39 features": lambda: ours(LibsvmFormat(LIBSVM), svm_file),
                "libffm, 39 features": lambda: ours(LibffmFormat(LIBFFM), ffm_file),
            }
        )
    for name, speed in speeds.items():
        print(f"{name:<28} {speed:>12,.0f} rows/s")
    ratios = {
        "csv / pyarrow": (speeds["csv"] / speeds["csv, pyarrow and hashing"], 5.0, True),
        "jsonl / pyarrow": (speeds["jsonl"] / speeds["jsonl, pyarrow and hashing"], 2.0, True),
        "time with transforms / without": (speeds["csv"] / speeds["csv, with transforms"], 1.3, False),
    }
    fine = True
    for name, (ratio, bound, least) in ratios.items():
        fine &= ratio >= bound if least else ratio <= bound
        print(f"{name:<32} {ratio:5.2f}  ({'at least' if least else 'at most'} {bound:g})")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
