"""Trainers that read the same data together, in one process: those that come late, and several in one job."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from small_jobs import cluster, in_threads, small_model

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.elastic import Elastic
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.base import Reader
from sparsefleet.data.open import open_reader
from sparsefleet.fleet import DistributedStrategy
from sparsefleet.optim import SGD
from sparsefleet.optim.schedule import OnPlateau
from sparsefleet.train import FetchHandler, Trainer, Validation
from sparsefleet.train.reporting.base import Reporter

SECONDS = 60.0


def leased(clicks: Path) -> Reader:
    return open_reader(clicks / "test", CRITEO, batch_size=20, leased=True)


class Judged(Reporter):
    epochs = 0

    def validated(self, step: int, values: Any, best: bool) -> None:
        self.epochs += 1


class Once(FetchHandler):
    """Does something at the end of a step, once it is time."""

    def __init__(self, is_time: Any, act: Any) -> None:
        super().__init__(["step"], period_batches=1)
        self._is_time, self._act = is_time, act

    def handler(self, fetched: list[Any]) -> None:
        if self._act is not None and self._is_time():
            act, self._act = self._act, None
            act()


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_one_that_comes_late_knows_how_the_run_stands(clicks: Path, tmp_path: Path, mode: str) -> None:
    under_way, saved = threading.Event(), threading.Event()
    judged, policy = Judged(), Validation(plateau_factor=0.5)
    rule = SGD(0.0, schedule=OnPlateau())  # nothing ever changes: the first epoch stays the best, then rates fall
    strategy = DistributedStrategy(mode=mode, k_steps=2)
    models, known = [small_model(), small_model()], []

    with cluster(2, workers=1, elastic=Elastic(1, 2), lost_trainer="drop") as made:

        def wait() -> None:
            under_way.set()
            assert saved.wait(SECONDS)

        def first() -> None:
            trainer = Trainer(made.job(rule, strategy, 0, 2), reporters=[judged])
            hold = Once(lambda: judged.epochs == 2, wait)
            trainer.fit(models[0], leased(clicks), 3, valid=leased(clicks), validation=policy, fetch=[hold])

        def late() -> None:
            assert under_way.wait(SECONDS)
            job = made.job(rule, strategy, 1, 2)
            trainer = Trainer(job, quiet=True)

            def look() -> None:
                known.append(trainer._last_run().state().validation)
                if mode == "geo":
                    known.append(job.workplace._last._dense.rule.schedule.lowered_to)  # type: ignore[union-attr]
                trainer.save(str(tmp_path / "late"))
                saved.set()

            try:
                look_once = Once(lambda: True, look)
                trainer.fit(models[1], leased(clicks), 3, valid=leased(clicks), validation=policy, fetch=[look_once])
            finally:
                saved.set()

        in_threads([first, late])
    assert (known[0]["judged"], known[0]["best_epoch"], known[0]["rate_factor"]) == (2, 1, 0.5)
    assert known[1:] == ([0.5] if mode == "geo" else [])
    extra = Checkpoint.open(tmp_path / "late").manifest.extra
    assert extra["best"]["epoch"] == 1
    assert extra["training"]["validation"] == known[0]


def test_all_servers_know_whether_the_present_call_of_fit_has_leased_data(clicks: Path) -> None:
    with cluster(2) as made:
        trainer = Trainer(made.job(SGD(0.1), DistributedStrategy(mode="async"), 0, 1), quiet=True)
        said = []
        for data in (leased(clicks), open_reader(clicks / "test", CRITEO), leased(clicks)):
            trainer.fit(small_model(), data)
            said.append([server.state.sessions.leased for server in made.servers])
        assert said == [[True, True], [False, False], [True, True]]


def test_every_trainer_of_a_job_trains_on_all_its_data(clicks: Path) -> None:
    """Two `Trainer`s, one after the other, on one distributed optimizer: passes of the one are not the other's."""
    with cluster(1) as made:
        job, model = made.job(SGD(0.1), DistributedStrategy(mode="async"), 0, 1), small_model()
        rows = []
        for files in (clicks / "test", clicks / "test", clicks / "train"):
            trainer = Trainer(job, quiet=True)
            data, scored = (open_reader(files, CRITEO, batch_size=200, leased=True) for _ in range(2))
            result = trainer.fit(model, data, test=scored)
            assert result.test is not None
            again = trainer.evaluate_everywhere(model, scored)
            assert again["rows"] == result.test["rows"]
            rows.append((result.rows, again["rows"]))
        assert rows == [(1500, 1500), (1500, 1500), (6000, 6000)]
        for _ in range(2):
            assert Trainer(job, quiet=True).evaluate_everywhere(model, leased(clicks))["rows"] == 1500
