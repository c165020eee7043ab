"""Serving a bundle: `Predictor` in Python, `sparsefleet serve` over HTTP. Nothing here needs torch."""

from sparsefleet.serving.predictor import Predictor, Scores
from sparsefleet.serving.samples import RequestError
from sparsefleet.serving.source import SourceError, SparseSource

__all__ = ["Predictor", "RequestError", "Scores", "SourceError", "SparseSource"]
