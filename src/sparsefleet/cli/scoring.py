"""Scoring: what a process needs to know to score rows with a saved model. Plain data, so that it can be handed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.cli.predictions import open_predictions
from sparsefleet.cli.reading import ReadingOptions
from sparsefleet.core.errors import CheckpointError
from sparsefleet.core.schema import Schema
from sparsefleet.metrics import ClickMetrics
from sparsefleet.models import registry
from sparsefleet.optim import SGD
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

    def score(self, files: Sequence[str], output: Path | None) -> tuple[ClickMetrics, dict[str, int]]:
        """The metrics of the rows of these files, and the bad rows passed over; predictions go to `output`."""
        network, schema = self._saved()
        trainer = self._trainer()
        trainer.load(network, self.checkpoint, values_only=True)
        rows = self._reading().open(files, schema)
        if output is None:
            metrics = trainer.measure(network, rows)
        else:
            metrics = ClickMetrics()
            with open_predictions(output) as write:
                for batch, probabilities in trainer.predict(network, rows):
                    write(batch, probabilities)
                    metrics.update(probabilities, batch.labels)
        return metrics, rows.skipped()

    def check(self, path: str) -> None:
        """Refuse what `score` would refuse before its first row."""
        _, schema = self._saved()
        self._trainer()
        self._reading().check(path, schema)

    def _saved(self) -> tuple[nn.Module, Schema]:
        checkpoint = Checkpoint.open(self.checkpoint)
        if checkpoint.manifest.schema is None:
            raise CheckpointError(f"{checkpoint.location} does not say what its input looks like (no schema)")
        schema = Schema.from_dict(checkpoint.manifest.schema, where=f"{checkpoint.location}: schema")
        return registry.build(checkpoint.manifest.model), schema

    def _trainer(self) -> Trainer:
        # Nothing is trained: with SGD no row carries optimizer state.
        return Trainer(SGD(), threads=self.threads, precision=self.precision)

    def _reading(self) -> ReadingOptions:
        return ReadingOptions(
            "queue", self.format, self.pipe_command, self.batch_size, self.on_bad_row, self.threads, self.labelled
        )
