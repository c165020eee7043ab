"""How good predictions are: AUC over everything and over a window, log loss, accuracy, click ratio."""

from sparsefleet.metrics.auc import auc_of
from sparsefleet.metrics.clicks import ClickMetrics, WindowMetrics

__all__ = ["ClickMetrics", "WindowMetrics", "auc_of"]
