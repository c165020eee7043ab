"""A job that heals: when a process of it is lost, a new attempt begins from the last cut, in the processes that live.

A cut is a checkpoint of the whole job in a folder of the job's own, taken every now and then (`train/job_cuts.py`).
When an attempt is over, every call of a trainer to its servers fails. Within `fit` it then joins the next attempt:
servers and readers go back to the cut, and training goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sparsefleet.checkpoint import Chain, Checkpoint
from sparsefleet.core.errors import StoreError
from sparsefleet.store.base import RunFacts
from sparsefleet.store.shards import facts_of

HEAL = "heal"
"""Under this name a cut knows, besides where training stands, what only a job that heals asks for."""


class Healing(Protocol):
    """What a workplace knows of the attempt that this trainer takes part in."""

    @property
    def attempt(self) -> int: ...

    @property
    def cut(self) -> str | None:
        """What this attempt began from; None: from the job's beginning."""
        ...

    @property
    def folder(self) -> str:
        """For the cuts of this attempt."""
        ...

    @property
    def cut_every(self) -> float | None:
        """Seconds between two cuts; None: so that they take about a hundredth of the time."""
        ...

    @property
    def chain(self) -> Chain:
        """Of the cuts that this trainer has written in this attempt."""
        ...

    @property
    def cut_wanted(self) -> str | None:
        """A ticket where somebody waits for a cut, so that the job can go on in another shape; None: nobody does."""
        ...

    def cut_taken(self, ticket: str, cut: str | None, error: str | None) -> None:
        """Tell who waits where the cut is, or why there is none."""
        ...

    def rejoin(self, why: StoreError) -> None:
        """Leave this attempt and join the next one; raises where there is none."""
        ...

    def caught_up(self) -> None:
        """A trainer that was started again is where the others are: from now on they meet."""
        ...


@dataclass(frozen=True)
class Cut:
    """What an attempt begins from."""

    path: str
    facts: RunFacts
    fit: int
    """Which call of `fit`, from 1, it was taken in."""
    rows: Mapping[str, int]
    """Samples that each trainer had trained in that call."""

    @staticmethod
    def open(path: str | None) -> Cut | None:
        if path is None:
            return None
        facts = facts_of(Checkpoint.open(path))
        known = facts.extra.get("training", {}).get(HEAL, {})
        return Cut(path, facts, int(known.get("fit", 0)), dict(known.get("rows", {})))


def cut_record(fit: int, rows: Mapping[int, int]) -> dict[str, Any]:
    """For `Cut` to read."""
    return {"fit": fit, "rows": {str(trainer): count for trainer, count in rows.items()}}


@dataclass(frozen=True)
class Before:
    """What a call of `fit` had done before its present attempt."""

    fit: int = 1
    rows: int = 0
    """Samples that are in the cut."""
    seconds: float = 0.0
    """Spent in earlier attempts."""
    again: int = 0
    """Samples that this process has trained and, since they are not in the cut, trains again."""
