"""Workplace: where a trainer works: a rule, the parameters' store, the crew of the job, and when things move.

One process by itself has a workplace of its own (`LocalWorkplace`). `fleet.distributed_optimizer` brings the workplace
of a job with servers. Nothing above it knows which one it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sparsefleet.communicator import Communicator, DirectCommunicator
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.crew import Crew, CrewOfOne
from sparsefleet.optim import Adam
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store import LocalStore, ParameterStore
from sparsefleet.train.healing import Healing

if TYPE_CHECKING:
    from sparsefleet.train.trainer import Trainer


class Workplace(ABC):
    rule: UpdateRule
    """For the dense parameters, and for every table that has no rule of its own."""

    fits: int = 0
    """Calls of `fit` here, of all `Trainer`s, the present one included. Passes over leased data and cuts are known by
    this number: it is the same in every process of a job, for all make the same calls in the same order."""
    evaluations: int = 0
    """How often all trainers of the job have scored data together, since the last call of `fit` began."""

    @property
    @abstractmethod
    def store(self) -> ParameterStore:
        """Where the parameters live; the same object each time."""

    @property
    @abstractmethod
    def crew(self) -> Crew:
        """Who works on the same parameters; the same object each time."""

    @abstractmethod
    def communicator(self) -> Communicator:
        """The communicator for one call of `fit`: a new one, or one that goes on from the last call."""

    @property
    def healing(self) -> Healing | None:
        """Of a job that goes on by itself when a process is lost; None: this one does not."""
        return None

    def kept_by_store(self, rule: UpdateRule) -> UpdateRule:
        """The rule of a table or block as the store is to have it."""
        return rule


@runtime_checkable
class BringsWorkplace(Protocol):
    """An optimizer that knows where to work: what `fleet.distributed_optimizer` returns."""

    def workplace_for(self, trainer: Trainer) -> Workplace:
        """The job's workplace; `trainer` works there from now on."""
        ...


class LocalWorkplace(Workplace):
    """One process: tables live in it, gradients are applied at once."""

    def __init__(
        self,
        rule: UpdateRule | None = None,
        store: ParameterStore | None = None,
        communicator: Callable[[ParameterStore], Communicator] = DirectCommunicator,
    ) -> None:
        self.rule = rule or Adam()
        self._asked_for = store is not None
        self._store = store or LocalStore()
        self._crew = CrewOfOne()
        self._communicator = communicator

    @property
    def store(self) -> ParameterStore:
        return self._store

    @property
    def crew(self) -> Crew:
        return self._crew

    def communicator(self) -> Communicator:
        if PROCESS_ROLE.part_of_job and not self._asked_for:
            raise ConfigError(
                f"this process is {PROCESS_ROLE.part_of_job} of a job, but its Trainer would train a model of its own "
                "that nobody else sees: give it what fleet.distributed_optimizer(optimizer, strategy) returns (or "
                "store=LocalStore() to train alone)"
            )
        return self._communicator(self._store)
