"""Question 2, sparse part: a table's rows in the checkpoint against the same rows in every place that serves them.

Legend: U keys, D values a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.core.table_rows import TableRows
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.kernels.bundle_rows import places as mixed
from sparsefleet.export.manifest import BundleTable
from sparsefleet.verify.differences import F64, apart
from sparsefleet.verify.places import BUNDLE, RowsPlace
from sparsefleet.verify.report import Check

EXAMPLES = 5
HALF = 2.0**-11
"""Rounding to the nearest float16 moves a value by this part of it at most …"""
HALF_SMALLEST = 2.0**-25
"""… or, near zero, by half the smallest step."""
INT8_SMALLEST = 128 * 2.0**-150
"""127 steps, each off by half the smallest float32, and a last rounding."""
ALLOWED = {
    "float32": "equal bits",
    "float16": "2^-11 of a value",
    "int8": "1/254 of a row's largest",
}


def row_tolerance(values: F32, dtype: str) -> F64:
    """How far [U, D] values may be from what they were before they were kept as `dtype`."""
    size = np.abs(values.astype(np.float64))
    if dtype == "float16":
        return np.maximum(size * HALF, HALF_SMALLEST)
    if dtype == "int8":
        # Half a step of the scale. Beside it, three roundings to float32 (scale, quotient, product), each of which
        # can move a value by 2^-24 of the row's largest; near zero, by half the smallest float32 a step.
        largest = size.max(axis=1, keepdims=True, initial=0.0)
        return np.broadcast_to(largest * (1 / 254 + 3 * 2.0**-24) + INT8_SMALLEST, size.shape)
    return np.zeros_like(size)


@dataclass
class _Tally:
    """What was found in one place, of one table's rows."""

    compared: int = 0
    differing: int = 0
    missing: int = 0
    surplus: int = 0
    """Rows that are there although the export was told to leave them out."""
    found: int = 0
    largest: float = 0.0
    examples: list[dict[str, Any]] = field(default_factory=list)
    missing_keys: list[int] = field(default_factory=list)
    surplus_keys: list[int] = field(default_factory=list)
    failure: str = ""
    """Why the place could not be read to its end."""

    def add(self, rows: TableRows, wanted: npt.NDArray[np.bool_], online: F32, found: Any, dtype: str) -> None:
        self.found += int(found.sum())
        missing, surplus, both = wanted & ~found, found & ~wanted, wanted & found
        self.missing += int(missing.sum())
        self.surplus += int(surplus.sum())
        self.compared += int(both.sum())
        _note(self.missing_keys, rows.keys[missing])
        _note(self.surplus_keys, rows.keys[surplus])
        offline, online = rows.values[both], online[both]
        far = apart(offline, online)
        self.largest = max(self.largest, float(far.max(initial=0.0)))
        wrong = np.flatnonzero((far > row_tolerance(offline, dtype)).any(axis=1))
        self.differing += len(wrong)
        for index in wrong[: EXAMPLES - len(self.examples)].tolist():
            self.examples.append(
                {
                    "key": int(rows.keys[both][index]),
                    "max": float(far[index].max()),
                    "checkpoint": offline[index].tolist(),
                    "online": online[index].tolist(),
                }
            )


def check_table(
    checkpoint: Checkpoint, bundle: Bundle, table: BundleTable, places: Mapping[str, RowsPlace], sample: int | None
) -> list[Check]:
    """One check for each place. `sample`: compare about so many rows; None: all."""
    total, min_seen = checkpoint.row_count(table.name), bundle.manifest.min_seen
    share = None if sample is None or sample >= total else sample / total
    tallies = {name: _Tally() for name in places}
    kept = 0
    for rows in checkpoint.sparse_rows(table.name, read_state=False):
        kept += int((rows.seen >= min_seen).sum())
        if share is not None:
            rows = rows.select(mixed(rows.keys, 0) < np.uint64(int(share * 2**64)))
        if not len(rows):
            continue
        for name, place in places.items():
            with _failing(tallies[name]):
                online, found = place.source.rows(table.name, rows.keys)
                tallies[name].add(rows, rows.seen >= min_seen, online, found, table.dtype)
    checks = []
    for name, tally in tallies.items():
        with _failing(tally):
            held = places[name].count(table.name)
            strangers = held - (tally.found if share is None else kept)
            if strangers > 0:
                tally.surplus += strangers
                _note(tally.surplus_keys, _unknown_keys(checkpoint, bundle, table.name) if name == BUNDLE else None)
        checks.append(_check(name, table, tally, total - kept, min_seen, total if share else None))
    return checks


@contextmanager
def _failing(tally: _Tally) -> Iterator[None]:
    """A place that cannot be read is a finding; the report has the first reason."""
    try:
        yield
    except SparseFleetError as error:
        tally.failure = tally.failure or str(error)


def _check(place: str, table: BundleTable, tally: _Tally, dropped: int, min_seen: int, of: int | None) -> Check:
    ok = not (tally.differing or tally.missing or tally.surplus or tally.failure)
    parts = [f"{tally.compared:,}{f' of {of:,}' if of else ''} compared, {tally.largest:.2g} at most"]
    for count, what in ((tally.differing, "differ"), (tally.missing, "missing"), (tally.surplus, "surplus")):
        if count:
            parts.append(f"{count:,} {what}")
    if dropped:
        parts.append(f"{dropped:,} left out on purpose (met fewer than {min_seen} times)")
    if tally.failure:
        parts.append(f"cannot be read to the end: {tally.failure}")
    if tally.examples:
        parts.append(_shown(tally.examples[0]))
    parts += [f"missing: key {key}" for key in tally.missing_keys[:1]]
    parts += [f"surplus: key {key}" for key in tally.surplus_keys[:1]]
    facts = {
        "place": place,
        "table": table.name,
        "row_type": table.dtype,
        "compared": tally.compared,
        "differing": tally.differing,
        "missing": tally.missing,
        "surplus": tally.surplus,
        "dropped": dropped,
        "max": tally.largest,
        "examples": tally.examples,
        "missing_keys": tally.missing_keys,
        "surplus_keys": tally.surplus_keys,
        "failure": tally.failure or None,
    }
    allowed = f"{table.dtype}: {ALLOWED[table.dtype]}"
    return Check(f"table {table.name}, {place}", ok, "; ".join(parts), allowed, facts)


def _shown(example: dict[str, Any]) -> str:
    at = int(np.argmax(apart(example["checkpoint"], example["online"])))
    return (
        f"key {example['key']}, value {at}: {example['checkpoint'][at]:.8g} in the checkpoint, "
        f"{example['online'][at]:.8g} here"
    )


def _note(keys: list[int], found: U64 | None) -> None:
    if found is not None:
        keys += found[: EXAMPLES - len(keys)].tolist()


def _unknown_keys(checkpoint: Checkpoint, bundle: Bundle, table: str) -> U64:
    """Keys of the mapped file that the checkpoint does not have."""
    known = [rows.keys for rows in checkpoint.sparse_rows(table, read_state=False)]
    return np.setdiff1d(bundle.tables[table].keys(), np.concatenate([np.empty(0, np.uint64), *known]))
