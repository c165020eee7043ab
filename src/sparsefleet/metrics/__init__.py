"""How good predictions are: AUC over all, a window or within groups, log loss, calibration, by segment; your own.

`Metric` is the contract, `MetricSet` all metrics of a run.
"""

from sparsefleet.metrics.auc import auc_of
from sparsefleet.metrics.base import PROBABILITY, Metric, Outputs
from sparsefleet.metrics.calibration import Calibration
from sparsefleet.metrics.clicks import ClickMetrics, WindowMetrics
from sparsefleet.metrics.group_auc import GroupAUC
from sparsefleet.metrics.labels import LabelMetrics, label_names
from sparsefleet.metrics.metric_set import MetricSet, check_metrics
from sparsefleet.metrics.segments import Segments

__all__ = [
    "PROBABILITY",
    "Calibration",
    "ClickMetrics",
    "GroupAUC",
    "LabelMetrics",
    "Metric",
    "MetricSet",
    "Outputs",
    "Segments",
    "WindowMetrics",
    "auc_of",
    "check_metrics",
    "label_names",
]
