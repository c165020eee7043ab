"""ParameterStore: where parameters live. In this process (`LocalStore`) or on servers (`RemoteStore`).

A store knows parameters and nothing else: who trains, who meets and who is lost is the business of a `Crew`
(`crew/base.py`). Two small interfaces stand beside it, for modes that need more than a push: `rounds` and `geo`.

Contract:
- `keys` in one call are unique (whoever calls has deduplicated); `rows[i]` belongs to `keys[i]`.
- Every call that may cross a network returns a `Pending` to wait on. Several may be under way at once; calls of
  one caller on one table take effect in the order they were made.
- A push is one optimizer step of each table and block that it names, even with zero keys.
- The dense parameters of a model are one flat float32 block. `create_dense` adopts the given array where the store is
  local: updates then show in it at once. Where it is remote, `pull_dense` fills it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy.typing as npt

from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.geo import GeoStore
from sparsefleet.store.rounds import Rounds, RoundsOfOne
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


class Each(Generic[T]):
    """Several answers by name, each of a call of its own."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Mapping[str, Pending[T]]) -> None:
        self._parts = parts

    def wait(self, timeout: float | None = None) -> dict[str, T]:
        return {name: part.wait(timeout) for name, part in self._parts.items()}


class OneOf(Generic[T]):
    """One of several answers that come together."""

    __slots__ = ("_name", "_parts")

    def __init__(self, parts: Pending[dict[str, T]], name: str) -> None:
        self._parts, self._name = parts, name

    def wait(self, timeout: float | None = None) -> T:
        return self._parts.wait(timeout)[self._name]


_NO_SERVERS = "geo needs parameter servers: in one process local copies would have nobody to meet; choose another mode"


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
    inputs: Mapping[str, Any] | None = None
    """How samples were read (`core/inputs.py`); None where it is not known."""
    model: Mapping[str, Any] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)
    """Reader positions by trainer: {"0": {...}}; or of all together, where data is leased: {"leases": {...}}."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    buffers: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Tensors of the model that no optimizer moves: BatchNorm statistics, frozen weights."""


class StoreCut(ABC):
    """One moment of all tables and blocks of a store, to be written while pushes go on. Close it, written or not."""

    @abstractmethod
    def write(self, path: str, facts: RunFacts, *, drop_state: bool = False, since: str | None = None) -> Manifest:
        """Write a checkpoint of that moment; once. It may take long, and any thread may do it.

        drop_state: without optimizer state, for scoring only. since: a checkpoint that this store has written in the
        same folder; where it still knows what has changed since, it writes a delta of that one. The manifest tells.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the moment: until then rows that change are kept aside. Closing twice does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ParameterStore(ABC):
    holds_pushes: bool = False
    """Whether `hold` holds pushes off by itself; else whoever names a cut sees to that."""

    @abstractmethod
    def create_table(self, spec: TableSpec) -> None:
        """Make the table, or check that the one there has the same spec (`StoreError` says what differs)."""

    @abstractmethod
    def create_dense(self, name: str, values: F32, rule: UpdateRule, layout: Layout) -> None:
        """Make the dense block from `values`, or, where it exists, fill `values` from it."""

    def start_buffers(self) -> Mapping[str, npt.NDArray[Any]]:
        """Buffers of the checkpoint that the store itself started from; empty where it started from nothing."""
        return {}

    def start_samples(self) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """How the samples of that checkpoint were read (`core/inputs.py`), and their schema; None: it is not known."""
        return None, None

    @abstractmethod
    def pull(self, table: str, keys: U64, *, create: bool = True) -> Pending[F32]:
        """Rows [U, D]. Missing ones are created, or with create=False read as zeros and counted as misses."""

    def pull_all(self, asked: Mapping[str, U64]) -> Pending[dict[str, F32]]:
        """As `pull`, from several tables: by table its rows. One message to a server where it is remote."""
        return Each({table: self.pull(table, keys) for table, keys in asked.items()})

    @abstractmethod
    def pull_dense(self, name: str, out: F32) -> Pending[None]:
        """Fill `out` with the block's present values (nothing to do where `out` is the block)."""

    @abstractmethod
    def push_step(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
    ) -> Pending[None]:
        """Apply gradients of several tables and blocks as one step; missing rows are created first.

        steps: how many batches they are of; a cut finds out by it which batches are in the store.
        marks: how far the pieces of leased data are once the step is applied (`core/leases.py`).
        fresh: by block, arrays to fill with its values after the step, as `pull_dense` does.
        """

    def push_and_pull(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None,
        asked: Mapping[str, U64],
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
    ) -> Pending[dict[str, F32]]:
        """As `push_step`, then `pull_all` of rows as they are after the step: one message where it is remote."""
        self.push_step(sparse, dense, steps=steps, marks=marks, fresh=fresh).wait()
        return self.pull_all(asked)

    def push(self, table: str, keys: U64, grads: F32) -> Pending[None]:
        """A step of one table alone."""
        return self.push_step({table: KeyedRows(keys, grads)})

    def push_dense(self, name: str, grads: F32) -> Pending[None]:
        """A step of one block alone."""
        return self.push_step({}, {name: grads})

    def hold(self) -> AbstractContextManager[object]:
        """Inside, no push is applied, and those that are count everywhere: the store is of one moment.

        In one process whoever pushes stands still by itself; nothing needs to be held.
        """
        return nullcontext()

    @abstractmethod
    def cut(self) -> StoreCut:
        """Name the present moment, in milliseconds. Called inside `hold`, with no push under way.

        One cut at a time, and no `load` until it is closed: `StoreError`.
        """

    def save(self, path: str, facts: RunFacts, *, drop_state: bool = False) -> None:
        """Write a checkpoint of the present moment; see `StoreCut.write`."""
        with self.hold():
            cut = self.cut()
        with cut:
            cut.write(path, facts, drop_state=drop_state)

    @abstractmethod
    def load(self, path: str, *, values_only: bool = False, partial: bool = False) -> RunFacts:
        """Fill the tables and blocks that have been created from a checkpoint, and return what else it knows.

        partial: those of the same name and shape, and leave the others as they are (`store/partial.py`).
        `path` is a checkpoint, or a run's folder: then its newest. values_only: optimizers start afresh.
        """

    @abstractmethod
    def lower_rates(self, factor: float) -> None:
        """From the next step on, all rules whose schedule is `OnPlateau` have `factor` times their rates.

        Called while nobody pushes; by one trainer of a job, for all. Saying it twice is the same as once.
        """

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Rows, memory, calls and misses per table, as plain data."""

    @property
    def rounds(self) -> Rounds:
        """Steps that all trainers make together (sync)."""
        return RoundsOfOne(self)

    @property
    def geo(self) -> GeoStore:
        """Differences instead of gradients (geo)."""
        raise StoreError(_NO_SERVERS)

    def close(self) -> None:  # noqa: B027  (a local store has nothing to let go of)
        """Let go of connections; the store is not used afterwards."""
