"""Where a run tells what it does: one contract (`base`), one file per place."""

from sparsefleet.train.reporting.base import Reporter
from sparsefleet.train.reporting.console import console_reporter
from sparsefleet.train.reporting.jsonl import JsonLinesReporter
from sparsefleet.train.reporting.tensorboard import TensorBoardReporter

__all__ = ["JsonLinesReporter", "Reporter", "TensorBoardReporter", "console_reporter"]
