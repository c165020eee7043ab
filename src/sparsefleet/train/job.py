"""Job: what a trainer is part of. One process by itself, or one of several trainers on parameter servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from sparsefleet.communicator import Communicator, DirectCommunicator
from sparsefleet.core.errors import ConfigError
from sparsefleet.optim import Adam
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store import LocalStore, ParameterStore
from sparsefleet.store.base import RunFacts

if TYPE_CHECKING:
    from sparsefleet.train.trainer import Trainer


class Job(ABC):
    rule: UpdateRule
    """For the dense parameters, and for every table that has no rule of its own."""
    index: int = 0
    """Which of the job's trainers this process is."""
    trainers: int = 1
    first: int = 0
    """The lowest of the trainers that are left, as of the last epoch's end: what one does for all, it does."""
    trainer: Trainer | None = None
    """The trainer that works for this job in this process, once there is one."""

    @abstractmethod
    def store(self) -> ParameterStore:
        """Where the parameters live; the same object each time."""

    @abstractmethod
    def communicator(self) -> Communicator:
        """A new communicator for one call of `fit`."""

    def load(self, path: str, *, values_only: bool = False) -> RunFacts:
        """Fill the store from a checkpoint, once for all trainers; every one of them calls it."""
        return self.store().load(path, values_only=values_only)


class LocalJob(Job):
    """One process: tables live in it, gradients are applied at once."""

    refused: ClassVar[str] = ""
    """Why this process should not train by itself: it is one of several of a job. Set where that is found out."""

    def __init__(
        self,
        rule: UpdateRule | None = None,
        store: ParameterStore | None = None,
        communicator: Callable[[ParameterStore], Communicator] = DirectCommunicator,
    ) -> None:
        self.rule = rule or Adam()
        self._asked_for = store is not None
        self._store = store or LocalStore()
        self._communicator = communicator

    def store(self) -> ParameterStore:
        return self._store

    def communicator(self) -> Communicator:
        if self.refused and not self._asked_for:
            raise ConfigError(
                f"{self.refused}, but its Trainer would train a model of its own that nobody else sees: give it what "
                "fleet.distributed_optimizer(optimizer, strategy) returns (or store=LocalStore() to train alone)"
            )
        return self._communicator(self._store)
