"""MetricSet: all metrics of a run: those of clicks, which every run has, and the user's own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.metrics.base import Metric, Outputs
from sparsefleet.metrics.clicks import ClickMetrics
from sparsefleet.metrics.labels import LabelMetrics
from sparsefleet.metrics.segments import Segments

OWN = "own"
"""Where the dict of a set has the user's metrics. The rest of it is ClickMetrics', as in checkpoints without any."""
OF_A_RUN = ("epoch", "step", "loss", "batch_auc", "rows_per_s", "time", "kind")
"""Names that a run tells beside its metrics."""


class MetricSet:
    """Any thread may call any method."""

    def __init__(self, clicks: ClickMetrics, own: Sequence[Metric] = ()) -> None:
        """`own` is copied, and must have counted nothing."""
        self._clicks = clicks
        self._first: int | None = None
        """The thread that counts there."""
        self._others: dict[int, ClickMetrics] = {}
        """Clicks of all other threads. Whole numbers: it does not matter where and when they are added up."""
        self._own = {metric.name: copy.deepcopy(metric) for metric in check_metrics(own)}
        self._lock = threading.Lock()

    def update(self, batch: Batch, outputs: Outputs) -> None:
        with self._lock:
            (self._clicks if batch.weights is not None else self._mine()).update(batch, outputs)
            for metric in self._own.values():
                metric.update(batch, outputs)

    @property
    def clicks(self) -> ClickMetrics:
        """Those of all threads, so far."""
        with self._lock:
            return self._all_clicks()

    def _mine(self) -> ClickMetrics:
        """Where the calling thread counts: threads that shared a histogram would fetch its lines from each other."""
        thread = threading.get_ident()
        if self._first is None:
            self._first = thread
        if thread == self._first:
            return self._clicks
        found = self._others.get(thread)
        if found is None:
            found = self._others[thread] = ClickMetrics(len(self._clicks.positive) - 1)
        return found

    def _all_clicks(self) -> ClickMetrics:
        for other in self._others.values():
            self._clicks.merge(other)
        self._first, self._others = None, {}
        return self._clicks

    def values(self) -> dict[str, float]:
        with self._lock:
            return {**self._all_clicks().values(), **self._own_values()}

    def click_values(self) -> dict[str, float]:
        """Only those of ClickMetrics."""
        with self._lock:
            return self._all_clicks().values()

    def own_values(self) -> dict[str, float]:
        """Only those of the user's own metrics."""
        with self._lock:
            return self._own_values()

    def details(self) -> list[Mapping[str, Any]]:
        """What metrics tell besides their values: segments, one by one."""
        with self._lock:
            told = (metric.details() for metric in self._own.values() if isinstance(metric, Segments))
            return [line for lines in told for line in lines]

    def unmet_segments(self) -> dict[str, Sequence[str]]:
        """Of each slot that is measured by value, the named values that no sample had; without slots that have none."""
        with self._lock:
            segments = [metric for metric in self._own.values() if isinstance(metric, Segments)]
            return {metric.slot: names for metric in segments if (names := metric.unmet())}

    def only_classes(self, label: str) -> dict[str, tuple[int, int]]:
        """Of each label that is the same in all rows that have it: which one, 0 or 1, and how many rows. `label`: the
        first one's name.
        """
        with self._lock:
            labels = {metric.label: metric.clicks for metric in self._own.values() if isinstance(metric, LabelMetrics)}
            found = {label: self._all_clicks(), **labels}
            return {
                name: (clicks.only_class, clicks.rows)
                for name, clicks in found.items()
                if clicks.only_class is not None
            }

    def _own_values(self) -> dict[str, float]:
        return {name: value for metric in self._own.values() for name, value in metric.values().items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data: for checkpoints, and for `add` in another process."""
        with self._lock:
            own = {name: metric.to_dict() for name, metric in self._own.items()}
            return {**self._all_clicks().to_dict(), **({OWN: own} if own else {})}

    @staticmethod
    def together(parts: Iterable[Mapping[str, Any]], own: Sequence[Metric] = ()) -> MetricSet:
        """What all parts, of several trainers or of the run before a resume, have counted, each as `to_dict` said it.

        Of the user's metrics those in `own` are taken, which have counted nothing; a part may lack some or have others.
        """
        first, *others = parts
        whole = MetricSet(ClickMetrics.from_dict(first), own)
        whole._merge_own(first)
        for other in others:
            whole._clicks.merge(ClickMetrics.from_dict(other))
            whole._merge_own(other)
        return whole

    def _merge_own(self, data: Mapping[str, Any]) -> None:
        others = data.get(OWN, {})
        for name, metric in self._own.items():
            if name in others:
                metric.merge(_from_dict(metric, others[name]))


def check_metrics(own: Sequence[Metric]) -> Sequence[Metric]:
    """Refuse what is no metric, and names that are taken."""
    names, values = set[str](), {*OF_A_RUN, *ClickMetrics().values()}
    for metric in own:
        if not isinstance(metric, Metric):
            raise ConfigError(
                f"metrics={metric!r:.80}: a metric is an object of a class derived from sparsefleet.metrics.Metric"
            )
        name = getattr(metric, "name", None)
        if not isinstance(name, str) or not name or name in names:
            raise ConfigError(
                f"the metric {type(metric).__qualname__} has name={name!r}: give each metric a name of its own"
            )
        directions = (metric.more_is_better, metric.less_is_better)
        if any(isinstance(given, str) for given in directions) or set(directions[0]) & set(directions[1]):
            raise ConfigError(
                f"the metric {name!r} has more_is_better={directions[0]!r}, less_is_better={directions[1]!r}: "
                "give lists of names of its values, each in one of them at most"
            )
        names.add(name)
        told = metric.values()
        if taken := values & told.keys():
            raise ConfigError(
                f"the metric {name!r} tells values that something else tells already: {', '.join(sorted(taken))}; "
                "call them otherwise in values()"
            )
        values |= told.keys()
    return own


def _from_dict(metric: Metric, data: Any) -> Metric:
    try:
        return type(metric).from_dict(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{metric.name!r}: this is not a metric that its to_dict wrote: {error!r}") from error
