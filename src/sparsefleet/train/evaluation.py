"""Evaluation: a model scored on data, by one trainer or by all trainers of a job; nothing is changed."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.crew import PassLender
from sparsefleet.data.base import Reader
from sparsefleet.data.leased import LeasedDataset
from sparsefleet.metrics import PROBABILITY, ClickMetrics, MetricSet, WindowMetrics
from sparsefleet.metrics.base import Outputs
from sparsefleet.train.fetch import FetchHandler
from sparsefleet.train.fetcher import Fetcher
from sparsefleet.train.gate import Gate
from sparsefleet.train.given_data import threads_for
from sparsefleet.train.model_in_store import ModelInStore
from sparsefleet.train.replica import Scorer
from sparsefleet.train.run import RunConfig
from sparsefleet.train.threads import intra_op_threads_kept, run_threads
from sparsefleet.train.workplace import Workplace

log = logging.getLogger(__name__)

BATCH_AUC = "batch_auc"
"""What handlers may fetch while a pass goes on: of its last batches, as in training."""


class Evaluation:
    def __init__(self, workplace: Workplace, models: ModelInStore, threads: int | None) -> None:
        """`threads`: as the trainer was told; None: as the data says, else as the last run had."""
        self._workplace, self._models, self._threads = workplace, models, threads

    def everywhere(
        self, config: RunConfig, model: nn.Module, data: Reader, fetch: Sequence[FetchHandler] = ()
    ) -> dict[str, float]:
        """Metrics over the shares of all trainers of the job, exactly those of one process; all must call it."""
        work = self._workplace
        work.evaluations += 1
        name = f"fit {work.fits}, evaluation {work.evaluations}"
        while True:
            parts, complete = self._together(name, config, model, data, fetch)
            if complete:
                return MetricSet.together((part["metrics"] for part in parts), config.metrics).values()
            log.warning("%s: a trainer was lost with what it had scored; the data is scored again", name)
            name = f"{name}, again"

    def _together(
        self, name: str, config: RunConfig, model: nn.Module, data: Reader, fetch: Sequence[FetchHandler]
    ) -> tuple[list[Any], bool]:
        """What all trainers have scored; and whether that is all of leased data. They all hear the same."""
        crew, shared = self._workplace.crew, self._models.to_score(model)
        crew.barrier(name)  # whoever still trains changes what the others would score
        # One that catches up scores all of leased data by itself: the others may be at another pass over theirs.
        together = isinstance(data, LeasedDataset) and not crew.catching_up
        lender = crew.lender(name) if together else None
        with shared.scored():
            mine = self._leased(config, model, data, lender, fetch) if lender else self.here(config, model, data, fetch)
        parts = crew.reduce(name, {"metrics": mine.to_dict(), "pieces": 0 if lender is None else lender.done_here})
        if not isinstance(data, LeasedDataset) and len(parts) < crew.size:
            log.warning(
                "%s: the metrics are of %d trainers' shares of the data; the job may have %d trainers. Data that is "
                "read with leased=True is scored as a whole, whoever is lost",
                name,
                len(parts),
                crew.size,
            )
        return parts, lender is None or sum(int(part["pieces"]) for part in parts) >= lender.pieces

    def here(self, config: RunConfig, model: nn.Module, data: Reader, fetch: Sequence[FetchHandler] = ()) -> MetricSet:
        """The sums behind the metrics of all that this trainer's reader gives."""
        data.seek({})
        return self._pass(config, model, data, fetch)

    def outputs(self, config: RunConfig, model: nn.Module, data: Reader) -> Generator[tuple[Batch, Outputs]]:
        """Every batch with all outputs by name, in the order of the input."""
        self._models.to_score(model)
        self._models.trained_on.check(data)
        data.seek({})
        with _evaluating(model), data.epoch(1) as epoch:
            scorer = Scorer(model, self._models.pull_existing, config.precision)
            for batch in epoch.streams[0]:
                yield batch, scorer.outputs(batch)
                data.consumed(batch)

    def _leased(
        self, config: RunConfig, model: nn.Module, data: Reader, lender: PassLender, fetch: Sequence[FetchHandler]
    ) -> MetricSet:
        """Score pieces of data that all trainers read together, until all of them are scored."""
        assert isinstance(data, LeasedDataset)
        data.seek({})
        data.lend_by(lender)
        try:
            parts = [self._pass(config, model, data, fetch).to_dict()]
            lender.all_done()
            while lender.end_lap():  # what a lost trainer has left
                parts.append(self._pass(config, model, data, fetch).to_dict())
                lender.all_done()
        finally:
            data.lend_by(None)
        return MetricSet.together(parts, config.metrics)

    def _pass(self, config: RunConfig, model: nn.Module, data: Reader, fetch: Sequence[FetchHandler]) -> MetricSet:
        shared, pull = self._models.to_score(model), self._models.pull_existing
        self._models.trained_on.check(data)
        threads = threads_for(data, self._threads, config.threads)
        metrics = MetricSet(ClickMetrics(config.num_thresholds), config.metrics)
        wanted = [name for handler in fetch for name in handler.fetch_list]
        window = WindowMetrics(config.num_thresholds, config.slide_steps)
        fetcher = Fetcher(shared, pull, config.precision, wanted, [*metrics.values(), BATCH_AUC])
        batches = itertools.count(1)

        def numbers(names: Sequence[str]) -> dict[str, float]:
            return {**metrics.values(), **({BATCH_AUC: window.auc()} if BATCH_AUC in names else {})}

        def look(names: Sequence[str]) -> list[Any]:
            return fetcher.values(names, numbers)

        def tick() -> None:
            for handler in fetch:
                handler.tick(look)

        with _evaluating(model), intra_op_threads_kept(), data.epoch(threads) as epoch:
            scorers = [Scorer(copy, pull, config.precision) for copy in shared.copies(len(epoch.streams))]

            def score(index: int, batch: Batch) -> None:
                outputs = scorers[index].outputs(batch)
                metrics.update(batch, outputs)
                if BATCH_AUC in wanted:
                    window.update(outputs[PROBABILITY], batch.labels)
                fetcher.seen(batch, outputs)
                data.consumed(batch)
                count = next(batches)
                for handler in fetch:
                    handler.after_step(count, look)

            run_threads(epoch, score, Gate(), tick)
        return metrics


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
