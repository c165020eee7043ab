"""TrainingState: where one trainer stands; what a checkpoint knows of a run besides tables and parameters."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from sparsefleet.core.errors import CheckpointError
from sparsefleet.metrics import Metric, MetricSet
from sparsefleet.store.base import RunFacts

LEASES = "leases"
"""Among a checkpoint's positions: that of all trainers together, where data is handed out in pieces."""

VALIDATION = "validation"
"""Among what is known of a run: how it stands by its validation data."""

UNTIL = "until"
"""Among what a trainer that comes late is told: the present call of `fit` trains until so many epochs are done."""


@dataclass(frozen=True)
class TrainingState:
    """Where one trainer's run stands; with the tables and the dense block, all that a resumed run needs."""

    step: int = 0
    epoch: int = 0
    position: Mapping[str, Any] = field(default_factory=dict)
    """Of the reader; empty: the epoch's beginning."""
    finished: bool = False
    """Of this epoch this trainer has no more rows; others of its job still have."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    random_state: str = ""
    """torch's generator, so that dropout goes on as if never interrupted."""
    validation: Mapping[str, Any] = field(default_factory=dict)
    """How the run stands by its validation data (`Standing`); empty where it has none. The same in all trainers,
    but for those that have just judged another epoch."""
    rows: int = 0
    """Samples trained by the present call of `fit`."""

    @staticmethod
    def from_facts(facts: RunFacts, trainer: int = 0, trainers: int = 1, *, leased: bool = False) -> TrainingState:
        """Where this trainer goes on. The metrics so far are all trainers': the first one carries them on.

        leased: all trainers read the same data, of which they are given pieces.
        """
        positions = facts.positions
        together = positions.get(LEASES) or (positions.get("0") if leased and len(positions) == 1 else None)
        if together is not None:
            if trainers > 1 and not leased:
                raise CheckpointError(
                    "the checkpoint was cut within an epoch of leased data: resume it with leases (--leases, "
                    "open_reader(…, leased=True)), with any number of trainers; or in one process"
                )
            positions = dict.fromkeys(map(str, range(trainers)), together)
        elif positions and leased:
            raise CheckpointError(
                f"the checkpoint was cut within an epoch whose data {len(positions)} trainers had shares of: resume it "
                "without leases (--no-leases, split_files), with as many trainers; or from a checkpoint of an epoch's "
                "end"
            )
        if positions and set(positions) != {str(number) for number in range(trainers)}:
            raise CheckpointError(
                f"the checkpoint was cut within an epoch, with the reader positions of {len(facts.positions)} "
                f"trainer(s); they do not fit {trainers}: resume with as many, or from a checkpoint of an epoch's end "
                "(`sparsefleet train --leases`, or open_reader(…, leased=True), goes on with any number)"
            )
        try:
            training = facts.extra["training"]
            places = training.get("trainers", {})
            mine = places[str(trainer)] if len(places) == trainers > 1 else {}
            return TrainingState(
                step=int(mine.get("step", facts.step)),
                epoch=int(training["epoch"]),
                position=dict(positions.get(str(trainer), {})),
                finished=bool(mine.get("finished", False)),
                metrics=dict(training["metrics"]) if trainer == 0 else {},
                random_state=str(mine.get("random_state", training["random_state"])),
                validation=dict(training.get(VALIDATION, {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint's record of the run is damaged: {error!r}") from error


def leased_facts(
    states: Mapping[int, TrainingState], mine: int, position: Mapping[str, Any], own: Sequence[Metric] = ()
) -> RunFacts:
    """As `joint_facts`, where all trainers read the same data: `position` is theirs together, {} between epochs."""
    epoch = min(state.epoch for state in states.values())
    between = {trainer: replace(state, epoch=epoch, position={}) for trainer, state in states.items()}
    facts = joint_facts(between, mine, max(between) + 1, own)
    training = {name: value for name, value in facts.extra["training"].items() if name != "lost"}
    return replace(facts, positions={LEASES: position} if position else {}, extra={"training": training})


def joint_facts(states: Mapping[int, TrainingState], mine: int, trainers: int, own: Sequence[Metric] = ()) -> RunFacts:
    """What a checkpoint says of where its trainers stand, from the state of each; `mine` is the one that saves.

    `own`: the user's metrics, empty, for the sums of all trainers.

    Trainers meet at the end of every epoch: some may be through with the present one, none further than that. A lost
    trainer has no state: what it has not trained is missing from this epoch, whether it is resumed or not; `lost` says
    whose it is.
    """
    epoch = min(state.epoch for state in states.values())
    within_epoch = any(state.position or state.epoch > epoch for state in states.values())
    others = [state.metrics for trainer, state in states.items() if trainer != mine and state.metrics]
    metrics = MetricSet.together([states[mine].metrics, *others], own)
    training: dict[str, Any] = {
        "epoch": epoch,
        "metrics": metrics.to_dict(),
        "random_state": states[mine].random_state,
    }
    # Not this trainer's own: an attempt, and the best checkpoint, must not hang on who of them happens to save.
    if stands := max((state.validation for state in states.values()), key=_judged):
        training[VALIDATION] = dict(stands)
    positions = {}
    if trainers > 1:
        lost = TrainingState(step=states[mine].step, epoch=epoch + 1, random_state=states[mine].random_state)
        all_states = {trainer: states.get(trainer, lost) for trainer in range(trainers)}
        training["trainers"] = {
            str(trainer): {
                "step": state.step,
                "finished": within_epoch and state.epoch > epoch,
                "random_state": state.random_state,
            }
            for trainer, state in all_states.items()
        }
        if missing := sorted(all_states.keys() - states.keys()):
            training["lost"] = missing
        if within_epoch:
            positions = {
                str(trainer): state.position if state.epoch == epoch else {} for trainer, state in all_states.items()
            }
    elif within_epoch:
        positions = {str(mine): states[mine].position}
    return RunFacts(step=states[mine].step, positions=positions, extra={"training": training})


def _judged(validation: Mapping[str, Any]) -> int:
    return int(validation.get("judged", 0)) if validation else -1


def lost_within_epoch(facts: RunFacts) -> list[int]:
    """Trainers whose rows of the epoch that a checkpoint was cut within are missing, now and when it is resumed."""
    lost = facts.extra.get("training", {}).get("lost", []) if facts.positions else []
    return [worker for worker in lost if type(worker) is int] if isinstance(lost, list) else []


def random_state_text() -> str:
    return base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()


def restore_random_state(text: str) -> None:
    if not text:
        return
    try:
        raw = np.frombuffer(base64.b64decode(text), np.uint8).copy()
        torch.set_rng_state(torch.from_numpy(raw))
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint's record of torch's random state is damaged: {error}") from error
