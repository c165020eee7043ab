"""Communicator: sits between trainer and store and owns *when* things move. Any works with any reader and any store.

Each training thread draws a `Lane`: it pulls the rows of its batch and hands in its gradients there. What happens in
between (waiting for others, merging, sending in the background) is the variant's own business.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.crew import Crew, CrewOfOne
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import Each, ParameterStore, Pending
from sparsefleet.table.spec import TableSpec


@dataclass(frozen=True)
class CommunicatorConfig:
    """The knobs of all modes; each says whose it is and what it trades."""

    max_merge: int = 1
    """async: steps merged into one message. 1: none are queued, a step's gradients are applied before its thread's
    next step begins. More: less traffic and threads that need not wait for it, but fewer and staler updates, which
    costs accuracy with rules like Adam whose steps do not grow with the gradient."""
    send_queue_size: int = 4
    """async: steps that may wait to be sent. More: threads wait less for the network, gradients get older."""
    staleness: int | None = None
    """async: a thread waits when this many of its own steps are not applied yet; None: only the queue bounds it."""
    dense_refresh: int = 1
    """async: messages between two reads of the dense parameters. More: less traffic, older dense parameters."""
    k_steps: int = 2
    """geo: steps between two exchanges. More: less traffic, local copies drift further apart. It is the share of the
    whole run that counts: below a hundredth of a trainer's steps it costs little (docs/distributed.md has figures)."""
    trainers: int = 1
    """geo: trainers of the job; each sends its change divided by this."""
    clip_norm: float | None = None
    """A step's gradients, sparse and dense together, are scaled down to this norm where it is exceeded; None: never.
    `communicator/clipping.py` says which gradients that is in each mode."""

    def __post_init__(self) -> None:
        for name in ("max_merge", "send_queue_size", "dense_refresh", "k_steps", "trainers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be 1 or above")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ConfigError(f"clip_norm={self.clip_norm} must be a number above 0, or None for no clipping")
        if self.staleness is not None and self.staleness < 0:
            raise ConfigError(f"staleness={self.staleness} must be 0 or above, or None for no bound")


@dataclass(frozen=True, slots=True)
class StepGradients:
    """What one step of one thread asks of the parameters: sums over its batch."""

    sparse: Mapping[str, KeyedRows]
    """Per table; every table of the model is there, with zero rows where the batch had none."""
    dense: F32
    """Flat, as long as the dense block. Only valid during the call that hands it in."""
    marks: tuple[Mark, ...] = ()
    """How far pieces of leased data are with this step (`core/leases.py`)."""


def marks_of(parts: Sequence[StepGradients]) -> list[Mark]:
    """Of all these steps, in their order."""
    return [mark for part in parts for mark in part.marks]


@dataclass(frozen=True)
class Parameters:
    """The model's parameters, as a communicator must know them."""

    tables: Mapping[str, TableSpec]
    dense_name: str
    dense_values: F32
    """What all training threads read; kept fresh by the communicator, or by the store itself where it is local."""
    dense_rule: UpdateRule

    def dense_part(self, gradients: F32) -> dict[str, F32]:
        """A step's dense gradients as the store takes them; nothing for a model without dense parameters."""
        return {self.dense_name: gradients} if len(self.dense_values) else {}

    def fresh(self) -> dict[str, F32]:
        """Where a push's answer may leave the dense values that follow it."""
        return {self.dense_name: self.dense_values} if len(self.dense_values) else {}


class Lane(ABC):
    """One training thread's way to the parameters. Not shared between threads."""

    looks_ahead: bool = False
    """Whether it helps to say by `expect` what the next step will pull."""

    @abstractmethod
    def pull(self, table: str, keys: U64) -> Pending[F32]:
        """The rows of these unique keys, as this thread should see them for its next step."""

    def pull_all(self, asked: Mapping[str, U64]) -> Pending[dict[str, F32]]:
        """The rows of all tables of a batch, as `pull` gives them; in one message where a variant can."""
        return Each({table: self.pull(table, keys) for table, keys in asked.items()})

    def expect(self, asked: Mapping[str, U64]) -> None:  # noqa: B027  (most variants pull when they are asked to)
        """Before a push: what this thread will most likely pull after it, in these very arrays."""

    @abstractmethod
    def push(self, gradients: StepGradients) -> None:
        """Hand in one step's gradients; returns when this thread may start its next step."""

    def leave(self) -> None:  # noqa: B027  (most variants need no farewell)
        """This thread has no more samples in this epoch; nobody need wait for it."""

    def give_up(self, error: BaseException) -> None:
        """This thread has failed: whoever waits for it must be told. Never raises."""
        self.leave()


class Communicator(ABC):
    keeps_state: ClassVar[bool] = False
    """Whether the optimizers' state is here, and not in the store: then one communicator serves all calls of `fit`."""

    def __init__(
        self, store: ParameterStore, config: CommunicatorConfig | None = None, crew: Crew | None = None
    ) -> None:
        self.store = store
        self.config = config or CommunicatorConfig()
        self.crew = crew or CrewOfOne()

    def start(self, parameters: Parameters, done: int = 0) -> None:
        """Training is about to begin; this trainer has done so many steps of it before."""
        self.parameters = parameters
        self.refresh_dense()

    @abstractmethod
    def begin_epoch(self, number: int, lanes: int) -> list[Lane]:
        """A lane for each training thread of this epoch."""

    @abstractmethod
    def flush(self) -> None:
        """Return when everything handed in has been applied, and the dense values are as fresh as the store."""

    def lower_rates(self, factor: float) -> None:  # noqa: B027  (most variants leave rules to the store)
        """From the next step on, rules that are applied here have `factor` times their rates, as those of the store."""

    def staleness(self) -> int:
        """Steps of this trainer that are done here and not applied on the servers, right now."""
        return 0

    @property
    def keeps_back(self) -> bool:
        """Whether `push` may return before the step is applied: then only `flush` makes the store's state ours.

        Otherwise each push tells the store how many steps it holds (`steps`), so that a checkpoint that is cut at any
        moment knows which of our batches it has seen.
        """
        return False

    def parked(self) -> int:
        """Threads that wait within a push for other threads of this trainer to hand in theirs."""
        return 0

    def close(self) -> None:
        """Flush and stop whatever runs in the background."""
        self.flush()

    def abandon(self) -> None:  # noqa: B027  (most variants have nothing in the background)
        """Stop whatever runs in the background without sending what is left: training has failed."""

    def refresh_dense(self) -> None:
        if len(self.parameters.dense_values):
            self.store.pull_dense(self.parameters.dense_name, self.parameters.dense_values).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()
