"""Counters of a server, and their Prometheus text."""

from __future__ import annotations

import bisect
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import I64
from sparsefleet.export.manifest import SCORE_BOUNDS
from sparsefleet.serving.drift import InputDrift, ScoreDrift
from sparsefleet.serving.kserve.messages import SERVICE
from sparsefleet.serving.predictor import Scores

F64 = npt.NDArray[np.float64]
BOUNDS = np.array(SCORE_BOUNDS[:-1], np.float32)
VERSIONS = 32
"""Versions that are told of by name; of more, those that have scored nothing for longest are forgotten."""
PREDICTIONS = frozenset({"/v1/predict", f"/{SERVICE}/ModelInfer"})
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Written from the event loop and the scoring threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._answers: Counter[str] = Counter()
        self._switches: Counter[str] = Counter()
        self._logged: Counter[str] = Counter()
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0
        self._rows = self._batches = self._joined = self._keys = self._unknown = 0
        self._dropped_rows = 0
        self._not_taken = 0
        self._ready = True
        self._scores: dict[str, I64] = {}
        self._score_drift: defaultdict[str, ScoreDrift] = defaultdict(lambda: ScoreDrift(len(SCORE_BOUNDS)))
        self._values: Counter[str] = Counter()
        self._unknown_values: Counter[str] = Counter()
        self._shadow_rows: Counter[str] = Counter()
        self._shadow_sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        """By version and label; so is the next."""
        self._shadow_most: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._shadow_skipped = 0

    def answered(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[path, status] += 1
            if path in PREDICTIONS:
                self._buckets[bisect.bisect_left(SECONDS, seconds)] += 1
                self._seconds += seconds

    def predicted(self, version: str) -> None:
        with self._lock:
            self._answers[version] += 1

    def scored(self, version: str, slots: Sequence[str], requests: int, scores: Scores) -> None:
        with self._lock:
            self._rows += len(scores.probabilities)
            self._batches += 1
            self._joined += requests
            self._keys += scores.keys
            self._unknown += scores.unknown

            counts = np.bincount(np.searchsorted(BOUNDS, scores.probabilities), minlength=len(SCORE_BOUNDS))
            histogram = self._histogram(version)
            histogram += counts
            self._score_drift[version].add(counts, len(scores.probabilities))
            if scores.by_slot is not None:
                for slot, values, unknown in zip(slots, *scores.by_slot, strict=True):
                    self._values[slot] += int(values)
                    self._unknown_values[slot] += int(unknown)

    def _histogram(self, version: str) -> I64:
        """Of a version's scores. Versions stand in the order in which they have scored last."""
        found = self._scores.pop(version, None)
        self._scores[version] = found = np.zeros(len(SCORE_BOUNDS), np.int64) if found is None else found
        if len(self._scores) > VERSIONS:
            gone = next(iter(self._scores))
            del self._scores[gone], self._answers[gone]
            self._score_drift.pop(gone, None)
        return found

    def shadowed(self, version: str, differences: Mapping[str, F64]) -> None:
        """Samples that the shadow scored: by label, its scores less those that were answered."""
        with self._lock:
            rows = self._shadow_rows.pop(version, 0) + len(next(iter(differences.values())))
            self._shadow_rows[version] = rows  # the last one to have scored stands last
            if len(self._shadow_rows) > VERSIONS:
                self._forget_shadow(next(iter(self._shadow_rows)))
            for label, values in differences.items():
                far, of = np.abs(values), (version, label)
                self._shadow_sums[of] += float(far.sum())
                self._shadow_most[of] = max(self._shadow_most[of], float(far.max(initial=0.0)))

    def _forget_shadow(self, version: str) -> None:
        del self._shadow_rows[version]
        for of in [of for of in self._shadow_sums if of[0] == version]:
            del self._shadow_sums[of], self._shadow_most[of]

    def shadow_skipped(self, rows: int) -> None:
        with self._lock:
            self._shadow_skipped += rows

    def shadow_summary(self, version: str) -> tuple[int, list[tuple[str, float, float]]]:
        """Samples compared; of each label its name, the mean and the largest difference."""
        with self._lock:
            rows = self._shadow_rows[version]
            return rows, [
                (label, total / max(rows, 1), self._shadow_most[name, label])
                for (name, label), total in self._shadow_sums.items()
                if name == version
            ]

    def dropped(self, rows: int) -> None:
        with self._lock:
            self._dropped_rows += rows

    def not_taken(self) -> None:
        with self._lock:
            self._not_taken += 1

    def ready(self, ready: bool) -> None:
        self._ready = ready

    def switched(self, outcome: str) -> None:
        """`outcome`: loaded, refused or rolled_back."""
        with self._lock:
            self._switches[outcome] += 1

    def logged(self, outcome: str, count: int = 1) -> None:
        """`outcome`: written or dropped."""
        with self._lock:
            self._logged[outcome] += count

    def text(self, version: str, waiting_rows: int, source: Mapping[str, Any], reference: Sequence[int] = ()) -> str:
        """In Prometheus' exposition format, version 0.0.4. `source`: counters of where rows come from.

        `reference`: the histogram of scores in the version's lineage.
        """
        with self._lock:
            return "\n".join(self._lines(version, waiting_rows, source, reference)) + "\n"

    def _lines(self, version: str, waiting_rows: int, source: Mapping[str, Any], reference: Sequence[int]) -> list[str]:
        lines: list[str] = []

        def metric(name: str, kind: str, help_text: str, *samples: tuple[str, float]) -> None:
            lines.extend((f"# HELP sparsefleet_{name} {help_text}", f"# TYPE sparsefleet_{name} {kind}"))
            lines.extend(f"sparsefleet_{name}{labels} {value + 0}" for labels, value in samples)

        metric(
            "requests_total",
            "counter",
            "Requests answered, those over gRPC by the status that they would have over HTTP.",
            *((_labels(path=path, status=str(code)), count) for (path, code), count in sorted(self._requests.items())),
        )
        metric(
            "answers_total",
            "counter",
            "Predictions answered, by model version.",
            *((_labels(version=name), count) for name, count in sorted(self._answers.items())),
        )
        metric("rows_total", "counter", "Rows scored.", ("", self._rows))
        metric("batches_total", "counter", "Runs of the network.", ("", self._batches))
        metric("batched_requests_total", "counter", "Requests (or pieces of long ones) in them.", ("", self._joined))
        metric("keys_total", "counter", "Distinct keys looked up.", ("", self._keys))
        metric("unknown_keys_total", "counter", "Those that no table held; they read as zeros.", ("", self._unknown))
        metric("dropped_rows_total", "counter", "Rows not scored: their clients had gone.", ("", self._dropped_rows))
        metric(
            "answers_not_taken_total",
            "counter",
            "Connections ended: answers not taken in time.",
            ("", self._not_taken),
        )
        metric("ready", "gauge", "Whether the warm-up scored as it should when it was last tried.", ("", self._ready))
        metric("waiting_rows", "gauge", "Rows that wait to be scored.", ("", waiting_rows))
        metric(
            "switches_total",
            "counter",
            "Changes of the model version, and bundles refused.",
            *((_labels(outcome=name), self._switches[name]) for name in ("loaded", "refused", "rolled_back")),
        )
        for name, value in source.items():
            metric(f"source_{name}", "gauge", f"Of the rows of the version that answers: {name}.", ("", float(value)))
        metric(
            "logged_requests_total",
            "counter",
            "Requests written to the log of requests, and those left out of it.",
            *((_labels(outcome=name), self._logged[name]) for name in ("written", "dropped")),
        )
        metric("model_info", "gauge", "The version that answers now.", (_labels(version=version), 1))
        metric(
            "slot_values_total",
            "counter",
            "Values by slot, of one batch in 16.",
            *((_labels(slot=slot), count) for slot, count in self._values.items()),
        )
        metric(
            "slot_unknown_values_total",
            "counter",
            "Those of them that no table held.",
            *((_labels(slot=slot), self._unknown_values[slot]) for slot in self._values),
        )
        lines.append("# HELP sparsefleet_scores Scores, by model version.")
        lines.append("# TYPE sparsefleet_scores histogram")
        for name, histogram in sorted(self._scores.items()):
            below = np.cumsum(histogram).tolist()
            for bound, sum_so_far in zip((*SCORE_BOUNDS[:-1], "+Inf"), below, strict=True):
                lines.append(f"sparsefleet_scores_bucket{_labels(version=name, le=str(bound))} {sum_so_far}")
            lines.append(f"sparsefleet_scores_count{_labels(version=name)} {below[-1]}")
        drift = self._score_drift[version].index(reference) if reference and version in self._scores else None
        if drift is not None:
            metric(
                "score_drift",
                "gauge",
                "Population stability index of the last scores against those of the bundle's test data.",
                (_labels(version=version), drift),
            )
        metric(
            "shadow_rows_total",
            "counter",
            "Rows that the shadow scored along.",
            *((_labels(version=name), count) for name, count in sorted(self._shadow_rows.items())),
        )
        metric(
            "shadow_difference_sum",
            "counter",
            "Sum of the differences between its scores and those answered, by label.",
            *(
                (_labels(version=name, label=label), round(total, 9))
                for (name, label), total in sorted(self._shadow_sums.items())
            ),
        )
        metric(
            "shadow_difference_max",
            "gauge",
            "The largest of them.",
            *(
                (_labels(version=name, label=label), round(most, 9))
                for (name, label), most in sorted(self._shadow_most.items())
            ),
        )
        metric("shadow_skipped_rows_total", "counter", "Rows that it had no time for.", ("", self._shadow_skipped))
        lines.append("# HELP sparsefleet_predict_seconds Time from a prediction's request to its answer.")
        lines.append("# TYPE sparsefleet_predict_seconds histogram")
        count = 0
        for limit, found in zip((*SECONDS, "+Inf"), self._buckets, strict=True):
            count += found
            lines.append(f"sparsefleet_predict_seconds_bucket{_labels(le=str(limit))} {count}")
        lines.append(f"sparsefleet_predict_seconds_sum {self._seconds:.6f}")
        lines.append(f"sparsefleet_predict_seconds_count {count}")
        return lines


def drift_text(version: str, drift: InputDrift) -> str:
    """The metrics of a version's inputs against its training data."""
    lines: list[str] = []
    for name, help_text, label, values in drift.metrics():
        lines.extend((f"# HELP sparsefleet_{name} {help_text}", f"# TYPE sparsefleet_{name} gauge"))
        for of, value in values:
            lines.append(f"sparsefleet_{name}{_labels(version=version, **{label: of})} {value}")
    return "\n".join(lines) + "\n"


def _labels(**labels: str) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
