"""What a checkpoint says of several trainers: where each stands, and who was lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparsefleet.metrics import ClickMetrics
from sparsefleet.train.training_state import TrainingState, joint_facts, lost_within_epoch

METRICS = ClickMetrics().to_dict()


def at(epoch: int, position: dict | None = None) -> TrainingState:
    return TrainingState(step=10, epoch=epoch, position=position or {}, metrics=METRICS)


@pytest.mark.parametrize(
    ("states", "lost"),
    [
        ({0: at(2, {"file": 1}), 1: at(2, {"file": 0}), 2: at(2, {"file": 5})}, []),
        ({0: at(2, {"file": 1}), 2: at(2, {"file": 5})}, [1]),
        ({2: at(2, {"file": 5})}, [0, 1]),
        ({0: at(3), 2: at(3)}, []),  # at an epoch's end: the next one is everybody's again
    ],
)
def test_who_was_lost_within_the_epoch_is_told_to_who_resumes(states, lost):
    facts = joint_facts(states, mine=max(states), trainers=3)
    assert lost_within_epoch(facts) == lost
    for worker in lost:
        assert TrainingState.from_facts(facts, worker, 3).finished


def test_how_the_run_stands_is_told_by_whoever_knows_most():
    """One that came late saves for all: what the others have judged, and the best of it, stays."""
    stood = {"metric": "auc", "judged": 1, "best": 0.7, "best_epoch": 1}
    stands = {**stood, "judged": 2, "not_better": 1}
    states = {0: at(2), 1: replace(at(2), validation=stood), 2: replace(at(2), validation=stands)}
    facts = joint_facts(states, mine=0, trainers=3)
    assert facts.extra["training"]["validation"] == stands
    assert TrainingState.from_facts(facts, 0, 3).validation == stands
    assert "validation" not in joint_facts({0: at(2)}, mine=0, trainers=1).extra["training"]
