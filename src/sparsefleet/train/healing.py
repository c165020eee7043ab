"""A job that heals: when a process of it is lost, a new attempt begins from the last cut, in the processes that live.

A cut is a checkpoint of the whole job in a folder of the job's own, taken every now and then (`train/job_cuts.py`).
When an attempt is over, every call of a trainer to its servers fails. Within `fit` it then joins the next attempt:
servers and readers go back to the cut, and training goes on from there.
"""

from __future__ import annotations

import math
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

    def rejoin(self, why: StoreError, fits: int) -> None:
        """Leave this attempt and join the next one; raises where there is none. fits: the calls of `fit` that this
        trainer has begun, without one that it could not begin again."""
        ...

    def caught_up(self) -> None:
        """A trainer that was started again is where the others are: from now on they meet."""
        ...

    def catch_up(self, fit: int) -> None:
        """This trainer is at the end of this call of `fit`, where its attempt begins. Where another one has begun the
        next call, it goes past meetings until then, and so do all that are where it is; else they meet."""
        ...

    def start_again(self) -> None:
        """This process cannot go back as far as its attempt does: when it ends, it asks to be started again."""
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
    until: int
    """That call trains until so many epochs are done, those of calls before it included."""
    ended: Mapping[str, Any] | None = None
    """What that call came to, where the cut was taken at its end; None: there was something left to do."""

    def begins(self, fit: int) -> bool:
        """Whether a job that goes on from here goes on with the beginning of this call of `fit`."""
        return self.ended is not None and self.fit == fit - 1

    @staticmethod
    def open(path: str | None) -> Cut | None:
        if path is None:
            return None
        facts = facts_of(Checkpoint.open(path))
        known = facts.extra.get("training", {}).get(HEAL, {})
        ended = known.get("ended")
        ended = None if ended is None else _figures(ended)
        return Cut(
            path, facts, int(known.get("fit", 0)), dict(known.get("rows", {})), int(known.get("until", 0)), ended
        )


def cut_record(fit: int, rows: Mapping[int, int], until: int, ended: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """For `Cut` to read."""
    told = {} if ended is None else {"ended": _plain(ended)}
    return {"fit": fit, "rows": {str(trainer): count for trainer, count in rows.items()}, "until": until, **told}


NO_NUMBERS = ("nan", "inf", "-inf")
"""What figures may be that JSON has no word for: an AUC where nobody clicked."""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if value is None or isinstance(value, str | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _figures(value: Any) -> Any:
    """The inverse of `_plain`."""
    if isinstance(value, Mapping):
        return {name: _figures(each) for name, each in value.items()}
    return float(value) if value in NO_NUMBERS else value


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
