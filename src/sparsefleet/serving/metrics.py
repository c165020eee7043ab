"""Counters of a server, and their Prometheus text."""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

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

    def answered(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[path, status] += 1
            if path == "/v1/predict":
                self._buckets[bisect.bisect_left(SECONDS, seconds)] += 1
                self._seconds += seconds

    def predicted(self, version: str) -> None:
        with self._lock:
            self._answers[version] += 1

    def scored(self, rows: int, requests: int, keys: int, unknown: int) -> None:
        with self._lock:
            self._rows += rows
            self._batches += 1
            self._joined += requests
            self._keys += keys
            self._unknown += unknown

    def switched(self, outcome: str) -> None:
        """`outcome`: loaded, refused or rolled_back."""
        with self._lock:
            self._switches[outcome] += 1

    def logged(self, outcome: str, count: int = 1) -> None:
        """`outcome`: written or dropped."""
        with self._lock:
            self._logged[outcome] += count

    def text(self, version: str, waiting_rows: int, source: Mapping[str, Any]) -> str:
        """In Prometheus' exposition format, version 0.0.4. `source`: counters of where rows come from."""
        with self._lock:
            return "\n".join(self._lines(version, waiting_rows, source)) + "\n"

    def _lines(self, version: str, waiting_rows: int, source: Mapping[str, Any]) -> list[str]:
        lines: list[str] = []

        def metric(name: str, kind: str, help_text: str, *samples: tuple[str, float]) -> None:
            lines.extend((f"# HELP sparsefleet_{name} {help_text}", f"# TYPE sparsefleet_{name} {kind}"))
            lines.extend(f"sparsefleet_{name}{labels} {value}" for labels, value in samples)

        metric(
            "requests_total",
            "counter",
            "HTTP requests answered.",
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
        lines.append("# HELP sparsefleet_predict_seconds Time from a prediction's request to its answer.")
        lines.append("# TYPE sparsefleet_predict_seconds histogram")
        count = 0
        for limit, found in zip((*SECONDS, "+Inf"), self._buckets, strict=True):
            count += found
            lines.append(f"sparsefleet_predict_seconds_bucket{_labels(le=str(limit))} {count}")
        lines.append(f"sparsefleet_predict_seconds_sum {self._seconds:.6f}")
        lines.append(f"sparsefleet_predict_seconds_count {count}")
        return lines


def _labels(**labels: str) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
