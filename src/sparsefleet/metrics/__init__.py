"""How good predictions are: AUC over everything and over a window, log loss, accuracy, click ratio; and your own.

`Metric` is the contract, `MetricSet` all metrics of a run.
"""

from sparsefleet.metrics.auc import auc_of
from sparsefleet.metrics.base import PROBABILITY, Metric, Outputs
from sparsefleet.metrics.clicks import ClickMetrics, WindowMetrics
from sparsefleet.metrics.metric_set import MetricSet, check_metrics

__all__ = [
    "PROBABILITY",
    "ClickMetrics",
    "Metric",
    "MetricSet",
    "Outputs",
    "WindowMetrics",
    "auc_of",
    "check_metrics",
]
