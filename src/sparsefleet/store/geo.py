"""GeoStore: what geo asks of servers beyond a store. Trainers change copies of their own and exchange differences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.keyed_rows import KeyedRows

if TYPE_CHECKING:
    from sparsefleet.store.base import Pending


@dataclass(frozen=True, slots=True)
class GeoAnswer:
    """What an exchange brings back."""

    changed: Mapping[str, KeyedRows]
    """Per table the present values of rows that others changed since our last exchange, of those we have pulled or sent
    before, and of rows that were sent for the first time. The others are what they were, plus what was sent."""
    dense: Mapping[str, F32]
    """Per block its present values."""


class GeoStore(ABC):
    @abstractmethod
    def begins_empty(self) -> bool:
        """Whether rows are still as their tables' specs make them, as far as this trainer knows.

        Nothing was loaded, and this trainer has sent nothing: what others may have sent, they did in the same epoch.
        """

    @abstractmethod
    def loads(self) -> int:
        """How often a checkpoint has taken the place of all there was: what trainers knew of it is void then."""

    @abstractmethod
    def pull(self, table: str, keys: U64) -> Pending[F32]:
        """Rows as `ParameterStore.pull` gives them; from now on this trainer is told when others change them."""

    @abstractmethod
    def exchange(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        marks: Sequence[Mark] = (),
    ) -> Pending[GeoAnswer]:
        """Add differences to rows and blocks, and bring back what others have changed.

        marks: as in `ParameterStore.push_step`.
        """
