"""Scoring: what a process needs to know to score files with a saved model. Plain data: workers get it as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefleet.core.schema import Schema
from sparsefleet.data.reading import ReadingOptions
from sparsefleet.metrics import ClickMetrics, MetricSet
from sparsefleet.nn.objective import label_names
from sparsefleet.optim import SGD
from sparsefleet.scoring.measuring import metrics_of
from sparsefleet.scoring.predictions import open_predictions
from sparsefleet.scoring.saved_model import check_inputs, saved_model
from sparsefleet.scoring.told_reader import Tell, ToldReader
from sparsefleet.train import Trainer


@dataclass(frozen=True)
class Scoring:
    checkpoint: str
    format: str = "auto"
    pipe_command: str | None = None
    batch_size: int = 1000
    threads: int = 1
    on_bad_row: str = "error"
    labelled: bool = True
    precision: str = "float32"
    same_inputs: bool = False
    """Whoever asks vouches that samples read so have the keys and numbers that the model was trained on."""
    model: str | None = None
    """Where the class is of a model of the user's own: my_model.py:MyNet."""
    calibration: bool = False
    """Also measure calibration, by tenths of the samples."""
    segments: tuple[str, ...] = ()
    """Also measure by value of these slots (`metrics_of`)."""

    def score(
        self, files: Sequence[str], output: Path | None = None, tell: Tell | None = None
    ) -> tuple[MetricSet, dict[str, int]]:
        """The metrics of the samples of these files, and the bad ones passed over; predictions go to `output`."""
        network, schema = saved_model(self.checkpoint, self.model)
        trainer = self._trainer(schema)
        samples = self._reading().open(files, schema)
        check_inputs(self.checkpoint, samples)  # before a large model is loaded
        trainer.load(network, self.checkpoint, values_only=True)
        if tell is not None:
            samples = ToldReader(samples, tell)
        if output is None:
            metrics = trainer.measure(network, samples)
        else:
            metrics = self.nothing(schema)
            with open_predictions(output, label_names(network)) as write:
                for batch, outputs in trainer.predict_outputs(network, samples):
                    write(batch, outputs)
                    metrics.update(batch, outputs)
        return metrics, samples.skipped()

    def check(self, path: str) -> None:
        """Refuse what `score` would refuse before its first sample."""
        _, schema = saved_model(self.checkpoint, self.model)
        self._trainer(schema)
        self._reading().check(path, schema)
        check_inputs(self.checkpoint, self._reading().open(path, schema, load=False))

    def together(self, parts: Iterable[Mapping[str, Any]]) -> MetricSet:
        """The metrics of several processes, each as `MetricSet.to_dict` said them."""
        schema = saved_model(self.checkpoint, self.model)[1]
        return MetricSet.together(parts, metrics_of(schema, self.calibration, self.segments))

    def nothing(self, schema: Schema) -> MetricSet:
        """Metrics that have counted nothing."""
        return MetricSet(ClickMetrics(), metrics_of(schema, self.calibration, self.segments))

    def _trainer(self, schema: Schema) -> Trainer:
        # Nothing is trained: with SGD no row carries optimizer state.
        own = metrics_of(schema, self.calibration, self.segments)
        return Trainer(SGD(), threads=self.threads, precision=self.precision, metrics=own)

    def _reading(self) -> ReadingOptions:
        return ReadingOptions(
            "queue",
            self.format,
            self.pipe_command,
            self.batch_size,
            self.on_bad_row,
            self.threads,
            self.labelled,
            self.same_inputs,
        )
