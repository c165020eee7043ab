"""End to end: every place scores the same raw samples, and its scores are compared with the checkpoint's.

Every place is judged against the checkpoint with the export's options applied (rows left out, rows rounded to their
type). What those options cost is reported on its own line, because the user asked for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.verify.differences import Spread, apart
from sparsefleet.verify.places import ScoringPlace
from sparsefleet.verify.report import Check, Question
from sparsefleet.verify.samples import RawSample

TITLE = "Are the scores the same, end to end?"


@dataclass(frozen=True, slots=True)
class Scored:
    """[B] scores of every place that could score the samples, and why the others could not."""

    trained: F32
    """Of the checkpoint as it is."""
    expected: F32
    """Of the checkpoint with the export's options."""
    online: Mapping[str, F32]
    failed: Mapping[str, str]


def score_samples(
    places: Mapping[str, ScoringPlace], samples: Sequence[RawSample], trained: F32, expected: F32
) -> Scored:
    online: dict[str, F32] = {}
    failed: dict[str, str] = {}
    for name, place in places.items():
        try:
            online[name] = place.scores(samples)
        except SparseFleetError as error:
            failed[name] = str(error)
    return Scored(trained, expected, online, failed)


def check_scores(scored: Scored, tolerance: float, options: str) -> Question:
    """`options`: those of the export that change scores, in words; empty where there are none."""
    allowed = f"{tolerance:g}"
    checks = []
    for name, found in scored.online.items():
        spread = Spread.of(apart(scored.expected, found))
        checks.append(Check(f"scores of {name}", spread.max <= tolerance, _words(spread), allowed, spread.to_dict()))
    checks += [
        Check(f"scores of {name}", False, f"there are none: {reason}", allowed)
        for name, reason in scored.failed.items()
    ]
    if options:
        cost = Spread.of(apart(scored.trained, scored.expected))
        checks.append(Check(f"cost of the export's options ({options})", None, _words(cost), facts=cost.to_dict()))
    return Question(TITLE, checks)


def _words(spread: Spread) -> str:
    quantiles = ", ".join(f"{value:.2g}" for value in spread.quantiles)
    return f"max {spread.max:.2g}, mean {spread.mean:.2g}, p50/p90/p99/p99.9 {quantiles}"
