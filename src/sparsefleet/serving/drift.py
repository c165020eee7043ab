"""InputDrift: how far the requests of a version are from the samples that its model was trained on.

One batch in 16 is counted, as the bundle's profile was (`export/profile.py`). Told are population stability indices
of the last so many samples: older ones count half, and half again, so that a change of today is seen today.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from sparsefleet.core.batch import I64, Batch
from sparsefleet.core.schema import Schema
from sparsefleet.export.profile import F64, Profile, Spread

WINDOW = 50_000
"""Samples after which those before count half."""
LEAST = 1e-4
"""Share that a bucket counts with at least."""
ENOUGH = 50
"""Counted for each bin, on average, before an index is told: of fewer, chance alone makes a large one."""

Told = tuple[str, str, str, list[tuple[str, float]]]
"""A metric: its name, its help, the name of its label, and a value for each of that label's."""


class InputDrift:
    """Threads may share one."""

    def __init__(self, profile: Profile, schema: Schema) -> None:
        self._profile, self._schema = profile, schema
        self._lock = threading.Lock()
        self._spread = Spread.nothing(len(schema.slots), len(schema.dense))
        self._samples = 0.0

    def add(self, batch: Batch, by_slot: tuple[I64, I64]) -> None:
        """`by_slot`: values of each slot, and those of them without a row."""
        with self._lock:
            self._spread.add(batch, self._profile.bounds_nK, by_slot)
            self._samples += len(batch)
            if self._samples > WINDOW:
                self._spread.halve()
                self._samples /= 2

    def metrics(self) -> Iterator[Told]:
        with self._lock:
            before, now = self._profile.spread, self._spread
            slots, numbers = self._schema.slot_names, self._schema.dense_names
            yield (
                "slot_drift",
                "Population stability index of the values of a slot against the training data.",
                "slot",
                _indices(slots, before.keys_SK, now.keys_SK),
            )
            yield (
                "slot_length_drift",
                "The same of how many values a slot has.",
                "slot",
                _indices(slots, before.lengths_SK, now.lengths_SK),
            )
            yield (
                "number_drift",
                "The same of a dense feature's normalised numbers.",
                "feature",
                _indices(numbers, before.numbers_nK, now.numbers_nK),
            )
            for name, spread in (("slot_unknown_share", now), ("slot_unknown_share_trained", before)):
                of = "of the training data" if spread is before else "of requests"
                seen = [place for place in range(len(slots)) if spread.values_S[place]]
                shares = [(slots[at], round(float(spread.unknown_S[at] / spread.values_S[at]), 6)) for at in seen]
                yield name, f"Which part of a slot's values, {of}, has no row.", "slot", shares


class ScoreDrift:
    """The same of a version's scores, all of which are counted. Not for several threads at once."""

    def __init__(self, bins: int) -> None:
        self._recent = np.zeros(bins)
        self._samples = 0.0

    def add(self, counts: I64, samples: int) -> None:
        self._recent += counts
        self._samples += samples
        if self._samples > WINDOW:
            self._recent /= 2
            self._samples /= 2

    def index(self, reference: Sequence[int]) -> float | None:
        """None: there are too few scores to tell chance from change."""
        return _index(np.asarray(reference, np.float64), self._recent)


def _indices(names: Sequence[str], before: F64, now: F64) -> list[tuple[str, float]]:
    found = ((name, _index(before[place], now[place])) for place, name in enumerate(names))
    return [(name, index) for name, index in found if index is not None]


def _index(before: F64, now: F64) -> float | None:
    used = (before > 0) | (now > 0)
    if now.sum() < ENOUGH * max(1, int(used.sum())):
        return None
    return round(stability_index(before[used], now[used]), 6)


def stability_index(reference: Sequence[int] | F64, found: F64 | I64) -> float:
    """PSI: 0 where both histograms have the same shape; above .25 is usually called a large shift."""
    before, now = (np.asarray(counts, np.float64) for counts in (reference, found))
    # An empty bucket would make it infinite, and half a sample in it would make it grow with the number of samples.
    before, now = (np.maximum(counts / max(counts.sum(), 1.0), LEAST) for counts in (before, now))
    return float(((now - before) * np.log(now / before)).sum())
