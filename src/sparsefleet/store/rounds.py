"""Rounds: steps that all trainers make together. The gradients of all are summed and applied once, as one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.norms import clip_factor, scaled, scaled_rows, squares

if TYPE_CHECKING:
    from sparsefleet.store.base import ParameterStore, Pending


Asked = Sequence[Mapping[str, U64]]
"""Keys by table, once for each thread that will want their rows."""


class Rounds(ABC):
    in_one_message: ClassVar[bool] = False
    """Whether `push_and_pull` saves messages; else rows are better pulled by the threads that want them."""

    @abstractmethod
    def push(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
        factor: float | None = None,
    ) -> Pending[object]:
        """Hand in this trainer's part of the open round; the answer comes when the round is applied.

        Arguments as in `ParameterStore.push_step`; `fresh` gets the values after the round. `factor`: after a
        `clip_factor` with the same gradients, by the same thread; the round is of so many times them.
        """

    @abstractmethod
    def push_and_pull(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None,
        asked: Asked,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
        factor: float | None = None,
    ) -> Pending[list[dict[str, F32]]]:
        """As `push`; the answer are rows as they are after the round: by table, for each that is asked for."""

    @abstractmethod
    def clip_factor(
        self, sparse: Mapping[str, KeyedRows], dense: Mapping[str, F32] | None, max_norm: float
    ) -> Pending[float]:
        """What makes the norm of the sum of all trainers' gradients `max_norm`, or 1 where it is less.

        The answer comes when all have handed in theirs. All trainers ask before each round, or none; what is handed in
        is kept for the `push` that follows.
        """

    @abstractmethod
    def join(self) -> None:
        """From now on rounds wait for this trainer."""

    @abstractmethod
    def leave(self) -> None:
        """This trainer has no more samples: rounds go on without it until it joins them again, or its next `push`."""


class RoundsOfOne(Rounds):
    """One trainer: every push is a round by itself."""

    def __init__(self, store: ParameterStore) -> None:
        self._store = store

    def push(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
        factor: float | None = None,
    ) -> Pending[object]:
        if factor is not None:
            sparse = scaled_rows(sparse, factor)
            dense = {name: scaled(values, factor) for name, values in (dense or {}).items()}
        return self._store.push_step(sparse, dense, steps=steps, marks=marks, fresh=fresh)

    def push_and_pull(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None,
        asked: Asked,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
        factor: float | None = None,
    ) -> Pending[list[dict[str, F32]]]:
        from sparsefleet.store.base import Done

        self.push(sparse, dense, steps=steps, marks=marks, fresh=fresh, factor=factor).wait()
        return Done([self._store.pull_all(one).wait() for one in asked])

    def clip_factor(
        self, sparse: Mapping[str, KeyedRows], dense: Mapping[str, F32] | None, max_norm: float
    ) -> Pending[float]:
        from sparsefleet.store.base import Done  # it imports this file

        total = squares([*(dense or {}).values(), *(rows.rows for rows in sparse.values())])
        return Done(clip_factor(total, max_norm))

    def join(self) -> None: ...

    def leave(self) -> None: ...
