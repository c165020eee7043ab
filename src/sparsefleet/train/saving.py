"""When a run saves, and what a checkpoint knows of it besides tables and parameters."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sparsefleet.checkpoint import point_latest, prune, step_path
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.store.base import ParameterStore, RunFacts


@dataclass(frozen=True)
class SavePolicy:
    folder: str
    """Checkpoints go to folder/step-…; `latest` in it names the newest."""
    every_steps: int | None = None
    """Also save after every so many batches."""
    every_epoch: bool = True
    on_interrupt: bool = True
    """Save when the user stops the run."""
    keep: int = 3
    """How many checkpoints stay."""

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"every_steps={self.every_steps} must be 1 or above")
        if self.keep < 1:
            raise ConfigError(f"keep={self.keep} must be 1 or above")


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands; with the tables and the dense block, all that a resumed run needs."""

    step: int = 0
    epoch: int = 0
    position: Mapping[str, Any] = field(default_factory=dict)
    """Of the reader; empty: the epoch's beginning."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    random_state: str = ""
    """torch's generator, so that dropout goes on as if never interrupted."""

    def to_dict(self) -> dict[str, Any]:
        """All but step and position, which have places of their own in a checkpoint."""
        return {"epoch": self.epoch, "metrics": dict(self.metrics), "random_state": self.random_state}

    @staticmethod
    def from_facts(facts: RunFacts, trainer: int = 0, trainers: int = 1) -> TrainingState:
        """Where this trainer goes on. The metrics so far are all trainers': the first one carries them on."""
        if facts.positions and set(facts.positions) != {str(number) for number in range(trainers)}:
            raise CheckpointError(
                f"the checkpoint was cut within an epoch, with the reader positions of {len(facts.positions)} "
                f"trainer(s); they do not fit {trainers}: resume with as many, or from a checkpoint of an epoch's end"
            )
        try:
            training = facts.extra["training"]
            return TrainingState(
                step=facts.step,
                epoch=int(training["epoch"]),
                position=dict(facts.positions.get(str(trainer), {})),
                metrics=dict(training["metrics"]) if trainer == 0 else {},
                random_state=str(training["random_state"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's record of the run is damaged: {error!r}") from error


def save_checkpoint(store: ParameterStore, policy: SavePolicy, facts: RunFacts) -> str:
    """Save into the policy's folder, point `latest` at it, and remove what is too old. Returns the path."""
    path = str(step_path(policy.folder, facts.step))
    store.save(path, facts)
    point_latest(path)
    prune(policy.folder, policy.keep)
    return path


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
