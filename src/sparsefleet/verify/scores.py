"""End to end: every place scores the same raw samples, and its scores are compared with the checkpoint's.

Every place is judged against the checkpoint with the export's options applied (rows left out, rows rounded to their
type). What those options cost is reported on its own line, because the user asked for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.verify.differences import Spread, apart
from sparsefleet.verify.http_client import ONLY
from sparsefleet.verify.places import ByLabel, ScoringPlace
from sparsefleet.verify.report import Check, Question
from sparsefleet.verify.samples import RawSample

TITLE = "Are the scores the same, end to end?"


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores by label of every place that could score the samples, and why the others could not."""

    trained: ByLabel
    """Of the checkpoint as it is."""
    expected: ByLabel
    """Of the checkpoint with the export's options."""
    online: Mapping[str, ByLabel]
    """All with the labels of `expected`."""
    failed: Mapping[str, str]


def score_samples(
    places: Mapping[str, ScoringPlace], samples: Sequence[RawSample], trained: ByLabel, expected: ByLabel
) -> Scored:
    online: dict[str, ByLabel] = {}
    failed: dict[str, str] = {}
    for name, place in places.items():
        try:
            found = place.scores(samples)
        except SparseFleetError as error:
            failed[name] = str(error)
            continue
        if found.keys() == expected.keys():
            online[name] = found
        else:
            failed[name] = f"it scores {_labels(found)}, the checkpoint {_labels(expected)}"
    return Scored(trained, expected, online, failed)


def check_scores(scored: Scored, tolerance: float, options: str) -> Question:
    """`options`: those of the export that change scores, in words; empty where there are none."""
    allowed = f"{tolerance:g}"
    checks = []
    for name, found in scored.online.items():
        for label, wanted in scored.expected.items():
            spread = Spread.of(apart(wanted, found[label]))
            what = f"scores of {name}{_of(label)}"
            checks.append(Check(what, spread.max <= tolerance, _words(spread), allowed, spread.to_dict()))
    checks += [
        Check(f"scores of {name}", False, f"there are none: {reason}", allowed)
        for name, reason in scored.failed.items()
    ]
    if options:
        for label, trained in scored.trained.items():
            cost = Spread.of(apart(trained, scored.expected[label]))
            what = f"cost of the export's options ({options}){_of(label)}"
            checks.append(Check(what, None, _words(cost), facts=cost.to_dict()))
    return Question(TITLE, checks)


def _of(label: str) -> str:
    return f", label {label}" if label != ONLY else ""


def _labels(scores: ByLabel) -> str:
    return f"the labels {', '.join(scores)}" if ONLY not in scores else "one label"


def _words(spread: Spread) -> str:
    quantiles = ", ".join(f"{value:.2g}" for value in spread.quantiles)
    return f"max {spread.max:.2g}, mean {spread.mean:.2g}, p50/p90/p99/p99.9 {quantiles}"
