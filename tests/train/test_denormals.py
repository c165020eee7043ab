"""Steps and scoring take denormals for zero; reading, and the threads of whoever calls, do not."""

from __future__ import annotations

import threading

import torch
from fit_jobs import network, rows_of, trainer

from sparsefleet.core.schema import CRITEO
from sparsefleet.data import Feeder
from sparsefleet.models import CTRDNN


def torch_flushes() -> bool:
    return bool(torch.tensor([1e-40]) * 1 == 0)


def watched(model, seen: list[tuple[str, bool]]):
    """The model, which notes in which thread it runs and whether denormals are zero there, in both directions."""

    class Watched(CTRDNN):
        def forward(self, batch):
            out = super().forward(batch)
            seen.append((threading.current_thread().name, torch_flushes()))
            if out.requires_grad:
                out.register_hook(lambda grad: seen.append((threading.current_thread().name, torch_flushes())))
            return out

    model.__class__ = Watched
    return model


def test_a_step_flushes_and_the_reading_between_steps_does_not(clicks):
    stepped, read = [], []

    def rows():
        with rows_of(clicks).epoch(1) as epoch:
            for batch in epoch.streams[0]:
                read.append((threading.current_thread().name, float("1e-310") == 0))
                yield batch

    trainer().fit(watched(network(), stepped), Feeder(CRITEO, rows))
    assert set(stepped) == {("train-0", True)}
    assert len(stepped) == 2 * 60
    assert set(read) == {("train-0", False)}
    assert not torch_flushes()


def test_scoring_flushes_and_leaves_the_callers_thread_alone(clicks):
    seen: list[tuple[str, bool]] = []
    job, model = trainer(2), watched(network(), seen)
    job.evaluate(model, rows_of(clicks, part="test"))
    assert {flushes for _, flushes in seen} == {True}
    assert {name for name, _ in seen} <= {"train-0", "train-1"}
    seen.clear()
    here = threading.current_thread().name
    assert not any(torch_flushes() for _ in job.predict(model, rows_of(clicks, part="test")))
    assert set(seen) == {(here, True)}
    assert not torch_flushes()
