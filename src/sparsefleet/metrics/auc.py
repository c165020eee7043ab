"""AUC from two histograms of predicted probabilities."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import I64

F64 = npt.NDArray[np.float64]


def auc_of(positive: I64 | F64, negative: I64 | F64) -> float:
    """`positive`, `negative`: samples in each bucket, or sums of their weights, as whole numbers of any unit.

    Area under the ROC curve by trapezoids from the top bucket; NaN where one class is missing.
    """
    clicks, others = int(positive.sum()), int(negative.sum())
    if not clicks or not others:
        return math.nan
    true = np.concatenate([[0], np.cumsum(positive[::-1])]).astype(np.float64)
    false = np.concatenate([[0], np.cumsum(negative[::-1])]).astype(np.float64)
    return float(np.sum(np.diff(false) * (true[1:] + true[:-1]) / 2) / (clicks * others))
