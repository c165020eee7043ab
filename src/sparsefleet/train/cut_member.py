"""RunCutMember: a run's part in a cut of its job: it stands still, says where it is, goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sparsefleet.communicator import Communicator
from sparsefleet.core.errors import StoreError
from sparsefleet.store.base import ParameterStore
from sparsefleet.train.gate import Gate
from sparsefleet.train.progress import Progress
from sparsefleet.train.training_state import TrainingState

ACCOUNT_SECONDS = 60.0
"""Between a step's arrival on the servers and its entry in the reader's position lie microseconds, not this."""
LOOK_EVERY = 0.002
SETTLE_SECONDS = 2.0
"""How long a thread that stands at the gate with a batch may take to pass it; in an interrupted run none does."""


class RunCutMember:
    """Implements `CutMember` (`crew/base.py`), for the thread that saves and for the one that answers when others do.

    Both may want the run to stand still at once: where the trainer that saved has died, this one may save while it
    still answers. It goes on when both have resumed.
    """

    def __init__(
        self,
        store: ParameterStore,
        progress: Progress,
        state: Callable[[], TrainingState],
        settled: Callable[[], bool] = lambda: True,
    ) -> None:
        """`settled`: whether the reader's position holds every step that is done."""
        self.communicator: Communicator | None = None
        """Of the run under way; None: nothing is."""
        self.gate = Gate(lambda: self.communicator.parked() if self.communicator else 0)
        self._store, self._progress, self._state = store, progress, state
        self._settled = settled
        self._steps_before = progress.step
        self._standing_for: set[int] = set()
        """Threads that have paused the run."""
        self._pausing = threading.Lock()

    def pause(self) -> None:
        """Where the store holds pushes off by itself and no step is kept back here, there is nothing to do.

        In sync nothing else would do: a trainer that stood still would keep the others within their step.
        """
        communicator, me = self.communicator, threading.get_ident()
        if communicator is None or (self._store.holds_pushes and not communicator.keeps_back):
            return
        with self._pausing:
            if me in self._standing_for:
                return
            if not self._standing_for:
                try:
                    self._close_gate()
                except BaseException:  # Ctrl-C while it waited
                    self.gate.open()
                    raise
            self._standing_for.add(me)
            communicator.flush()

    def _close_gate(self) -> None:
        """Close it at a moment whose steps are all in the reader's position."""
        deadline = time.monotonic() + SETTLE_SECONDS
        self.gate.close()
        while not self._settled() and time.monotonic() < deadline:
            # A thread stands at the gate with a batch that others have overtaken: let it make its step.
            self.gate.open()
            time.sleep(LOOK_EVERY)
            self.gate.close()

    def report(self, applied: int | None) -> dict[str, Any]:
        # A thread may have had its step's answer and not told the reader yet.
        deadline = time.monotonic() + ACCOUNT_SECONDS
        while applied is not None and not self._standing_for and self._progress.step - self._steps_before != applied:
            if time.monotonic() > deadline:
                done = self._progress.step - self._steps_before
                raise StoreError(
                    f"cannot name a cut: the servers applied {applied} steps of this trainer, the trainer recorded "
                    f"{done}; save again, and report a bug if it repeats"
                )
            time.sleep(LOOK_EVERY)
        return asdict(self._state())

    def fail(self, error: BaseException) -> None:
        self.gate.fail(error)

    def resume(self) -> None:
        with self._pausing:
            if threading.get_ident() not in self._standing_for:
                return
            self._standing_for.discard(threading.get_ident())
            if not self._standing_for:
                self.gate.open()
