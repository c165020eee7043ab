"""Crew: who is in the job, where they meet, who is lost, and how all of them come to one moment.

Parameters are none of its business: those are the store's. One process is a crew of one (`crew/one.py`); trainers on
parameter servers meet at server 0 (`store/remote/crew.py`). Nothing above a crew knows which of them it has.

Contract:
- Members have numbers from 0 to `size` - 1; `index` is this process's own.
- Members meet by name: the nth call under a name meets the others' nth call under it. A member that is lost is left
  out, or ends the others' wait with an error that names it, as the job's policy is.
- Every wait ends: when all have come, when `timeout` is over, or when somebody who is waited for is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from sparsefleet.core.leases import Lender, Progress

T = TypeVar("T")

Reports = Mapping[int, Any]
"""Where each member stands, by its number, as plain data; a member that is lost has no entry."""


class CutMember(Protocol):
    """One member's part in a cut: the moment that a checkpoint of the whole job is of."""

    def pause(self) -> None:
        """Return when the store has all that this member has done and not told it yet; nothing more until `resume`.

        A member whose steps are in the store before they count as done may go on: the store holds them off.
        """
        ...

    def report(self, applied: int | None) -> dict[str, Any]:
        """Where this member stands, as plain data, with `applied` of its run's batches in the store; None: all."""
        ...

    def resume(self) -> None: ...

    def fail(self, error: BaseException) -> None:
        """Nobody will say when to resume: training ends with this error."""
        ...


@dataclass(frozen=True)
class LeaseState:
    """How far all members are in a pass over leased data."""

    left: int
    """Pieces that are not done."""
    progress: Progress


@dataclass(frozen=True)
class Entry:
    """Where the others are, for a member that comes while they are at work."""

    fit: int
    """Which call of `fit`, from 1."""
    epoch: int
    """From 0."""
    step: int
    position: Mapping[str, Any]
    """What their pass over the data reads."""
    evaluations: int
    """How often they have scored data together in that call."""
    told: Mapping[str, Any]
    """What they have for members that come late (`Crew.lender`)."""


class PassLender(Lender, Protocol):
    """Lends pieces of data for one pass over it, to this member and all others."""

    def end_lap(self) -> int:
        """All members call it once none gets another piece: how many pieces are left, for another lap. Where none is
        lost, none is left."""
        ...

    @property
    def leaves(self) -> bool:
        """This member was asked to leave the job, and gets no more pieces."""
        ...

    def all_done(self) -> None:
        """What this member has taken is done, for passes that make no steps."""
        ...

    @property
    def pieces(self) -> int:
        """Of the pass."""
        ...

    @property
    def done_here(self) -> int:
        """Pieces that this member has said are done, by `all_done`."""
        ...

    def state(self) -> LeaseState | None:
        """Exact while the store is held; None: the pass has not begun, or another one has."""
        ...


class Crew(ABC):
    index: int = 0
    """Which of the job's members this process is."""
    size: int = 1
    catching_up: bool = False
    """This process came late, or was started again in a job that heals, and is not where the others are: it goes past
    meetings that they have had without it."""

    @property
    def late(self) -> bool:
        """Likewise, and the others are at work: it is no part of their attempt's beginning."""
        return False

    @abstractmethod
    def first(self) -> int:
        """The lowest number of the members that are left: what one does for all, that one does."""

    @abstractmethod
    def barrier(self, name: str, timeout: float | None = None) -> None:
        """Return when every member has called it with this name."""

    @abstractmethod
    def reduce(self, name: str, payload: Mapping[str, Any], timeout: float | None = None) -> list[Any]:
        """Every member hands in plain data under this name; all get everyone's, in the order of the members."""

    @abstractmethod
    def lost(self) -> list[str]:
        """Members that the others went on without, in words."""

    @abstractmethod
    def not_begun(self) -> list[int]:
        """Members that have never begun to train, by number."""

    @abstractmethod
    def attending(self, member: CutMember) -> AbstractContextManager[object]:
        """While inside, a cut of any member asks this one where it stands."""

    @abstractmethod
    def at_one_moment(self, member: CutMember, hold: AbstractContextManager[object], act: Callable[[Reports], T]) -> T:
        """Bring the job to one moment, do something there, let all go on; returns what `act` returned.

        `member` is this process's part; `hold` is entered once all have paused, and keeps the store as it is. `act`
        gets the reports of all members. What takes long belongs after this call: all stand still for it.
        """

    def lender(self, name: str, *, told: Mapping[str, Any] | None = None) -> PassLender | None:
        """For the pass of this name; None: this member reads all data by itself.

        told: members may come while it is under way, and hear this, plain data; None: none may come.
        """
        return None

    def begin_run(self, *, leased: bool) -> None:  # noqa: B027  (a crew of one has nobody whose data could be missing)
        """This member is about to train. leased: on data that all read together, so that others have what a lost member
        has not trained; else on a share of its own."""

    def enter(self) -> Entry | None:
        """For a member that comes while the others are at work: return when it may take part. Else None, at once."""
        return None

    def caught_up(self) -> None:  # noqa: B027  (most members begin together)
        """This member is where the others are: from now on they meet."""

    def leave_job(self) -> NoReturn:
        """This member was asked to leave: nobody waits for it any more. Ends the process, in good order."""
        raise SystemExit(0)

    def report(self, status: Mapping[str, Any]) -> None:  # noqa: B027  (a crew of one has nobody to tell)
        """What others see of this member from now on: step, rows_per_s, …"""

    def give_up(self, error: BaseException | None) -> None:  # noqa: B027
        """Training ends here before its time, because of an error or (None) without a word: the others are told.

        An error of this member's own (a bad sample, a loss that is no number) ends the job; one that says that it was
        interrupted or cut off from its servers only makes it lost to the others.
        """

    def only_first(self, name: str, act: Callable[[], None]) -> None:
        """All members call it: the first of them acts, the others wait for it. If that one is lost, the next acts."""
        acted = False
        while not acted:
            present = self.reduce(f"{name}: who is here", {"member": self.index})
            mine = self.index == min(part["member"] for part in present)
            if mine:
                act()
            acted = any(part["acted"] for part in self.reduce(name, {"acted": mine}))
