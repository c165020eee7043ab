"""replay: sends logged requests to a running server again, and compares its scores with the log's. Needs no torch."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.verify.differences import F64, Spread, apart
from sparsefleet.verify.http_client import HttpClient, PlaceError, scores_of
from sparsefleet.verify.logged import BadLine, Logged, read_log
from sparsefleet.verify.report import finite

WORST = 10
EXAMPLES = 20
AHEAD = 4
"""Requests read ahead for each one under way."""


@dataclass(frozen=True)
class ReplayConfig:
    concurrency: int = 8
    """Requests under way at a time."""
    timeout: float = 30.0
    """Seconds for one answer."""
    tolerance: float = 1e-6
    """How far scores may be apart."""
    limit: int | None = None
    """Requests at most; None: all of the log."""

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= 1000:
            raise ConfigError(f"concurrency={self.concurrency} must be 1 to 1000")
        if not self.timeout > 0:
            raise ConfigError(f"timeout={self.timeout} must be above 0")
        if not self.tolerance >= 0:
            raise ConfigError(f"tolerance={self.tolerance} must be 0 or above")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit={self.limit} must be 1 or above")


@dataclass
class Replayed:
    """The result of a replay."""

    tolerance: float
    requests: int = 0
    """Requests that were sent, whether they were answered or not."""
    spread: Spread = field(default_factory=lambda: Spread.of(np.empty(0)))
    beyond: int = 0
    """Scores further apart than the tolerance."""
    worst: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    bad_lines: int = 0
    bad_examples: list[dict[str, Any]] = field(default_factory=list)
    versions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests by (version in the log, version that answered)."""

    @property
    def ok(self) -> bool:
        """Bad lines are counted and reported, but say nothing about the server."""
        return not self.beyond and not self.failed

    def to_dict(self) -> dict[str, Any]:
        versions = [
            {"logged": logged, "answered": answered, "requests": count}
            for (logged, answered), count in self.versions.items()
        ]
        facts = {
            "ok": self.ok,
            "requests": self.requests,
            "tolerance": self.tolerance,
            "beyond_tolerance": self.beyond,
            "differences": self.spread.to_dict(),
            "worst": self.worst,
            "failed": self.failed,
            "failures": self.failures,
            "bad_lines": self.bad_lines,
            "bad_line_examples": self.bad_examples,
            "versions": versions,
        }
        return dict(finite(facts))


def replay(
    log: str,
    url: str,
    *,
    config: ReplayConfig | None = None,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Replayed:
    """Send every request of the log to the server, and compare. A log without one good line raises."""
    config = config or ReplayConfig()
    with contextlib.closing(HttpClient(url, config.timeout)) as client:
        client.get("/healthz")  # a server that cannot be reached is reported once, not for each line
    collected = _Collected(config.tolerance)
    senders = _Senders(url, config.timeout)
    lines = read_log(log)
    if config.limit is not None:
        lines = _limited(lines, config.limit)
    under_way: deque[tuple[Logged, Future[Any]]] = deque()
    try:
        with ThreadPoolExecutor(config.concurrency, "replay") as pool:
            try:
                for entry in lines:
                    if isinstance(entry, BadLine):
                        collected.bad(entry)
                        continue
                    under_way.append((entry, pool.submit(senders.send, entry)))
                    if len(under_way) > AHEAD * config.concurrency:
                        collected.take(*under_way.popleft())
                        progress(collected.result.requests, config.limit)
                while under_way:
                    collected.take(*under_way.popleft())
                    progress(collected.result.requests, config.limit)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        senders.close()
    result = collected.finished()
    if not result.requests:
        found = f"; {result.bad_lines} are bad, the first: {result.bad_examples[0]}" if result.bad_lines else ""
        raise DataError(f"{log}: there is no logged request in it{found}")
    return result


def _limited(lines: Iterator[Logged | BadLine], limit: int) -> Iterator[Logged | BadLine]:
    good = 0
    for entry in lines:
        yield entry
        good += isinstance(entry, Logged)
        if good == limit:
            return


class _Senders:
    """A connection for each thread of the pool."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout
        self._local = threading.local()
        self._lock = threading.Lock()
        self._made: list[HttpClient] = []

    def send(self, entry: Logged) -> tuple[str, dict[str, list[float]]]:
        client = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = HttpClient(self._url, self._timeout)
            with self._lock:
                self._made.append(client)
        rows = len(next(iter(entry.scores.values())))
        version, found = scores_of(client.post("/v1/predict", entry.request), rows, client.url)
        if found.keys() != entry.scores.keys():
            mine, logged = (", ".join(names) or "one score" for names in (found, entry.scores))
            raise PlaceError(f"{client.url}: version {version} answers {mine}; the log has {logged}")
        return version, found

    def close(self) -> None:
        for client in self._made:
            client.close()


class _Collected:
    def __init__(self, tolerance: float) -> None:
        self.result = Replayed(tolerance)
        self._differences: list[F64] = []
        self._worst: list[tuple[float, int, dict[str, Any]]] = []
        self._order = itertools.count()

    def bad(self, entry: BadLine) -> None:
        self.result.bad_lines += 1
        if len(self.result.bad_examples) < EXAMPLES:
            self.result.bad_examples.append({"line": entry.line, "reason": entry.reason})

    def take(self, entry: Logged, answer: Future[tuple[str, dict[str, list[float]]]]) -> None:
        result = self.result
        result.requests += 1
        try:
            version, scores = answer.result()
        except PlaceError as error:
            result.failed += 1
            if len(result.failures) < EXAMPLES:
                result.failures.append({"line": entry.line, "reason": str(error)})
            return
        result.versions[entry.version or "not logged", version] += 1
        for label, mine in scores.items():
            far = apart(entry.scores[label], mine)
            self._differences.append(far)
            for index in np.argsort(-far, kind="stable")[:WORST].tolist():
                self._offer(float(far[index]), entry, index, label, mine[index], version)

    def _offer(self, difference: float, entry: Logged, index: int, label: str, score: float, version: str) -> None:
        if len(self._worst) == WORST and difference <= self._worst[0][0]:
            return
        facts = {
            "line": entry.line,
            "row": index,
            **({"label": label} if label else {}),
            "difference": difference,
            "logged": entry.scores[label][index],
            "answered": score,
            "logged_version": entry.version,
            "answered_version": version,
            "input": entry.row(index),
        }
        # Of equal differences the earlier one stays: heapq removes the smallest item.
        item = (difference, -next(self._order), facts)
        if len(self._worst) < WORST:
            heapq.heappush(self._worst, item)
        else:
            heapq.heapreplace(self._worst, item)

    def finished(self) -> Replayed:
        all_of_them = np.concatenate([np.empty(0), *self._differences])
        self.result.spread = Spread.of(all_of_them)
        self.result.beyond = int(np.count_nonzero(all_of_them > self.result.tolerance))
        self.result.worst = [facts for _, _, facts in sorted(self._worst, reverse=True)]
        return self.result
