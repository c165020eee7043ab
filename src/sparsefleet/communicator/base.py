"""Communicator: sits between trainer and store and owns *when* things move. Any works with any reader and any store.

Each training thread draws a `Lane`: it pulls the rows of its batch and hands in its gradients there. What happens in
between (waiting for others, merging, sending in the background) is the variant's own business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import ParameterStore, Pending


@dataclass(frozen=True, slots=True)
class StepGradients:
    """What one step of one thread asks of the parameters: sums over its batch."""

    sparse: Mapping[str, KeyedRows]
    """Per table; every table of the model is there, with zero rows where the batch had none."""
    dense: F32
    """Flat, as long as the dense block. Only valid during the call that hands it in."""


class Lane(ABC):
    """One training thread's way to the parameters. Not shared between threads."""

    @abstractmethod
    def pull(self, table: str, keys: U64) -> Pending[F32]:
        """The rows of these unique keys, as this thread should see them for its next step."""

    @abstractmethod
    def push(self, gradients: StepGradients) -> None:
        """Hand in one step's gradients; returns when this thread may start its next step."""

    def leave(self) -> None:  # noqa: B027  (most variants need no farewell)
        """This thread has no more rows; nobody need wait for it."""


class Communicator(ABC):
    def __init__(self, store: ParameterStore) -> None:
        self.store = store

    @abstractmethod
    def start(self, dense_name: str, dense_values: F32, lanes: int) -> None:
        """Training is about to begin with this many threads, which all read `dense_values`."""

    @abstractmethod
    def lane(self) -> Lane:
        """A lane for one training thread."""

    @abstractmethod
    def flush(self) -> None:
        """Return when everything handed in has been applied, and `dense_values` is as fresh as the store."""

    def close(self) -> None:
        """Flush and stop whatever runs in the background."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
