"""ParameterStore: where parameters live. In this process (`LocalStore`) or on servers (`RemoteStore`).

Contract:
- `keys` in one call are unique (whoever calls has deduplicated); `rows[i]` belongs to `keys[i]`.
- Every call that may cross a network returns a `Pending` to wait on. Several may be under way at once; calls of
  one caller on one table take effect in the order they were made.
- A push is one optimizer step of that table, even with zero keys.
- The dense parameters of a model are one flat float32 block. `create_dense` adopts the given array where the store is
  local: updates then show in it at once. Where it is remote, `pull_dense` fills it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.optim.base import UpdateRule
from sparsefleet.table.spec import TableSpec

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Pending(Protocol[T_co]):
    """The answer to come of a call that is under way."""

    def wait(self, timeout: float | None = None) -> T_co:
        """The answer, or the call's error. Raises `StoreError` after `timeout` seconds without one."""
        ...


class Done(Generic[T]):
    """A Pending whose answer is there already."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def wait(self, timeout: float | None = None) -> T:
        return self._value


@dataclass(frozen=True, slots=True)
class GeoAnswer:
    """What a geo exchange brings back."""

    sent: Mapping[str, F32]
    """Per table the present values of the rows just sent, in the order sent."""
    changed: Mapping[str, KeyedRows]
    """Per table the rows that others changed since our last exchange, of those we have pulled or sent before."""
    dense: Mapping[str, F32]
    """Per block its present values."""


_NO_SERVERS = "geo needs parameter servers: in one process local copies would have nobody to meet; choose another mode"


class _All:
    """Several pending calls that are waited for as one."""

    def __init__(self, calls: Sequence[Pending[None]]) -> None:
        self._calls = calls

    def wait(self, timeout: float | None = None) -> None:
        for call in self._calls:
            call.wait(timeout)


Layout = Sequence[tuple[str, Sequence[int]]]
"""The parameters that lie in a dense block one after the other: (name, shape)."""


def differing_layouts(there: Layout, here: Layout) -> str:
    """Where two layouts part, in words; empty where they do not."""
    for (name, shape), (other, other_shape) in zip(there, here, strict=False):
        if name != other or list(shape) != list(other_shape):
            return f"{name} {list(shape)} there, {other} {list(other_shape)} here"
    return "" if len(there) == len(here) else f"{len(there)} parameters there, {len(here)} here"


@dataclass(frozen=True)
class RunFacts:
    """What a checkpoint knows of a run besides its parameters. All but `buffers` is plain JSON data."""

    step: int = 0
    schema: Mapping[str, Any] | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)
    """Reader positions by trainer: {"0": {...}}."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    buffers: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Tensors of the model that no optimizer moves: BatchNorm statistics, frozen weights."""


class CutMember(Protocol):
    """A trainer's part in a checkpoint of the whole job: rows, state and reader positions of one moment."""

    def pause(self) -> None:
        """Return when the store has all that this trainer has done and not told it yet; nothing more until `resume`.

        A trainer whose steps are in the store before they count as done may go on: the store holds them off.
        """
        ...

    def report(self, applied: int | None) -> dict[str, Any]:
        """Where this trainer stands, as plain data, with `applied` of its run's batches in the store; None: all."""
        ...

    def resume(self) -> None: ...

    def fail(self, error: BaseException) -> None:
        """Nobody will say when to resume: training ends with this error."""
        ...


FactsOfAll = Callable[[Mapping[int, Any]], RunFacts]
"""What a checkpoint should know, from the reports of all trainers by their number; one that is lost has none."""


class ParameterStore(ABC):
    holds_pushes: bool = False
    """Whether `save` holds pushes off by itself; else whoever calls it sees to that."""

    @abstractmethod
    def create_table(self, spec: TableSpec) -> None:
        """Make the table, or check that the one there has the same spec (`StoreError` says what differs)."""

    @abstractmethod
    def create_dense(self, name: str, values: F32, rule: UpdateRule, layout: Layout) -> None:
        """Make the dense block from `values`, or, where it exists, fill `values` from it."""

    def start_buffers(self) -> Mapping[str, npt.NDArray[Any]]:
        """Buffers of the checkpoint that the store itself started from; empty where it started from nothing."""
        return {}

    @abstractmethod
    def pull(self, table: str, keys: U64, *, create: bool = True) -> Pending[F32]:
        """Rows [U, D]. Missing ones are created, or with create=False read as zeros and counted as misses."""

    @abstractmethod
    def push(self, table: str, keys: U64, grads: F32) -> Pending[None]:
        """Apply the table's rule to these rows; missing ones are created first."""

    @abstractmethod
    def pull_dense(self, name: str, out: F32) -> Pending[None]:
        """Fill `out` with the block's present values (nothing to do where `out` is the block)."""

    @abstractmethod
    def push_dense(self, name: str, grads: F32) -> Pending[None]:
        """Apply the block's rule."""

    @abstractmethod
    def barrier(self, name: str, timeout: float | None = None) -> None:
        """Return when every trainer has called it with this name."""

    @abstractmethod
    def save(self, path: str, facts: RunFacts, *, drop_state: bool = False) -> None:
        """Write a checkpoint of all tables and blocks at one moment; nobody pushes meanwhile.

        drop_state: without optimizer state, for scoring only.
        """

    @abstractmethod
    def load(self, path: str, *, values_only: bool = False) -> RunFacts:
        """Fill the tables and blocks that have been created from a checkpoint, and return what else it knows.

        `path` is a checkpoint, or a run's folder: then its newest. values_only: optimizers start afresh.
        """

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Rows, memory, calls and misses per table, as plain data."""

    # -- calls of a job of several trainers; one process is a job of one ----------------------------------------------

    def push_step(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        fresh: Mapping[str, F32] | None = None,
    ) -> Pending[None]:
        """Apply gradients of several tables and blocks as one step.

        steps: how many batches they are of; `save_together` finds out by it which batches are in a checkpoint.
        fresh: by block, arrays to fill with its values after the step, as `pull_dense` does.
        """
        pending = [self.push(table, rows.keys, rows.rows) for table, rows in sparse.items()]
        pending += [self.push_dense(name, grads) for name, grads in (dense or {}).items()]
        pending += [self.pull_dense(name, out) for name, out in (fresh or {}).items()]
        return _All(pending)

    def sync_push(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        fresh: Mapping[str, F32] | None = None,
    ) -> Pending[object]:
        """Hand in this trainer's part of a round: the sum of all parts is applied once, when all are in.

        fresh: as in `push_step`, with the values after the round.
        """
        return self.push_step(sparse, dense, fresh=fresh)

    def leave_rounds(self) -> None:  # noqa: B027
        """This trainer has no more rows: rounds go on without it until it joins them again, or its next `sync_push`."""

    def join_rounds(self) -> None:  # noqa: B027
        """From now on rounds wait for this trainer."""

    def begins_empty(self) -> bool:
        """Whether rows are still as their tables' specs make them, as far as this trainer knows.

        Nothing was loaded, and this trainer has sent nothing: what others may have sent, they did in the same epoch.
        """
        raise StoreError(_NO_SERVERS)

    def geo_pull(self, table: str, keys: U64) -> Pending[F32]:
        """Rows as `pull` gives them; from now on this trainer is told when others change them."""
        raise StoreError(_NO_SERVERS)

    def geo_exchange(
        self, sparse: Mapping[str, KeyedRows], dense: Mapping[str, F32] | None = None
    ) -> Pending[GeoAnswer]:
        """Add deltas to rows and blocks, and bring back what others have changed."""
        raise StoreError(_NO_SERVERS)

    def attending(self, member: CutMember) -> AbstractContextManager[object]:
        """While inside, a `save_together` of any trainer asks this one where it stands."""
        return nullcontext()

    def save_together(self, path: str, member: CutMember, facts: FactsOfAll, *, drop_state: bool = False) -> None:
        """A checkpoint of all trainers' work at one moment; this one's part in it is `member`."""
        member.pause()
        try:
            self.save(path, facts({0: member.report(None)}), drop_state=drop_state)
        finally:
            member.resume()

    def first_trainer(self) -> int:
        """The lowest of the trainers that are left: what one does for all, it does."""
        return 0

    def reduce(self, name: str, payload: Mapping[str, Any], timeout: float | None = None) -> list[Any]:
        """Every trainer hands in plain data under this name; all get everyone's, in the order of the trainers."""
        return [payload]

    def lost_trainers(self) -> list[str]:
        """Trainers that the others went on without, in words."""
        return []

    def not_begun(self) -> list[int]:
        """Trainers of the job that have never begun to train, by number."""
        return []

    def give_up(self, error: BaseException | None) -> None:  # noqa: B027
        """Training ends here before its time, because of an error or (None) without a word: the others are told.

        An error of this trainer's own (a bad row, a loss that is no number) ends the job; one that says that it was
        interrupted or cut off from its servers only makes it lost to the others.
        """

    def report(self, status: Mapping[str, Any]) -> None:  # noqa: B027
        """What `stats` shows of this trainer from now on: step, rows_per_s, …"""

    def close(self) -> None:  # noqa: B027  (a local store has nothing to let go of)
        """Let go of connections; the store is not used afterwards."""
