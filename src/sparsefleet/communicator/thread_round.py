"""ThreadRound: the threads of one trainer come together after each step, and one acts for all."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparsefleet.communicator.base import StepGradients
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.core.stopwatch import lapped

Act = Callable[[list[StepGradients]], None]


class ThreadRound:
    def __init__(self, members: int, act: Act, all_left: Callable[[], None] = lambda: None) -> None:
        """`act` gets the parts in the order of the members; `all_left` is called when nobody is left."""
        self._members, self._act, self._all_left = members, act, all_left
        self._parts: dict[int, StepGradients] = {}
        self._round = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """Members whose parts nobody has acted on yet; they go on once the others have come."""
        handed_in = len(self._parts)
        return handed_in if handed_in < self._members else 0  # else one of them acts right now

    def hand_in(self, member: int, part: StepGradients) -> None:
        """Returns when the round that this part belongs to has been acted on."""
        with self._changed:
            self._check()
            self._parts[member] = part
            mine = self._round
            if len(self._parts) == self._members:
                self._run()
            else:
                with lapped("push", "waiting"):
                    self._changed.wait_for(lambda: self._round != mine or self._error is not None)
            self._check()

    def leave(self) -> None:
        """This member has no more samples; the others no longer wait for it."""
        with self._changed:
            self._members -= 1
            if self._error is not None:
                return
            if self._members == 0:
                self._all_left()
            elif len(self._parts) == self._members:
                self._run()

    def fail(self, error: BaseException) -> None:
        """Wake everybody with this error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _run(self) -> None:
        parts = [self._parts[member] for member in sorted(self._parts)]
        self._parts = {}
        try:
            self._act(parts)
        except BaseException as error:
            self._error = error
        self._round += 1
        self._changed.notify_all()

    def _check(self) -> None:
        if isinstance(self._error, SparseFleetError):
            raise self._error
        if self._error is not None:
            raise RuntimeError("another thread of this trainer failed") from self._error
