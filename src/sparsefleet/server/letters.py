"""Letters: what trainers send each other, for those that exchange samples (global_shuffle).

A letter lies in a box, (name of the exchange, receiver), until the receiver asks for the one after it. So a letter that
is put again after a lost answer counts once, and one whose delivery was lost is given again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsefleet.core.errors import StoreError
from sparsefleet.server.gate import SLICE, OnWait
from sparsefleet.server.ledger import Account
from sparsefleet.server.sessions import Sessions
from sparsefleet.store.wire import Letter

HELD_BYTES = 256 << 20
"""Letters that wait on one server; whoever brings more waits too."""


@dataclass
class _Box:
    letters: list[Letter] = field(default_factory=list)
    taken: int = 0
    """Letters that the receiver has and that are gone from here."""


class Letters:
    def __init__(self, sessions: Sessions, held_bytes: int = HELD_BYTES) -> None:
        self._sessions, self._limit = sessions, held_bytes
        self._boxes: dict[tuple[str, int], _Box] = {}
        self._last_put: dict[str, int] = {}
        self._lives: dict[tuple[str, int], str] = {}
        """By name of the exchange and trainer, the incarnation that takes part."""
        self._changed = threading.Condition()
        self.held_bytes = 0
        sessions.on_new_life.append(self._forget_life)

    def put(self, caller: Account, number: int, box: str, to: int, letter: Letter, on_wait: OnWait) -> None:
        """Leave a letter, once there is room; `number` is the message's, among its caller's."""
        told = time.monotonic()
        self._take_part(caller, box)
        while True:
            with self._changed:
                if self._lives.get((box, caller.worker)) != caller.incarnation:  # forgotten while it waited
                    raise self._sessions.late_error(f"exchange {box!r}", caller.worker)
                if number <= self._last_put.get(caller.key, 0):
                    return
                if self.held_bytes == 0 or self.held_bytes + len(letter.body) <= self._limit:
                    # Of its own memory: what arrived belongs to a message.
                    kept = Letter(letter.sender, letter.last, letter.body.copy())
                    self._boxes.setdefault((box, to), _Box()).letters.append(kept)
                    self._last_put[caller.key] = number
                    self.held_bytes += len(kept.body)
                    self._changed.notify_all()
                    return
                self._changed.wait(SLICE / 4)
            self._check_alive([to], box)
            if time.monotonic() - told >= SLICE:
                told = time.monotonic()
                on_wait("letters wait to be fetched")

    def take(self, caller: Account, box: str, number: int, expected: Sequence[int], patience: float) -> Letter | None:
        """The caller's letter `number` of a box, from 0; None where it has not come. Those before it are done with."""
        to, until = caller.worker, time.monotonic() + patience
        self._take_part(caller, box)
        with self._changed:
            mine = self._boxes.setdefault((box, to), _Box())
            if number < mine.taken:
                raise StoreError(f"letter {number} of {box!r} is gone: {mine.taken} have been taken")
            done = mine.letters[: number - mine.taken]
            del mine.letters[: len(done)]
            mine.taken += len(done)
            self.held_bytes -= sum(len(letter.body) for letter in done)
            if done:
                self._changed.notify_all()
            while not mine.letters:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if mine.letters:
                return mine.letters[0]
            if not expected:  # the receiver has everything
                self._boxes.pop((box, to), None)
        self._check_alive(expected, box)
        return None

    def _take_part(self, caller: Account, box: str) -> None:
        """Another life of a trainer cannot go on with an exchange: who knows which letters it has had or sent."""
        with self._changed:
            if self._lives.setdefault((box, caller.worker), caller.incarnation) != caller.incarnation:
                raise self._sessions.late_error(f"exchange {box!r}", caller.worker)

    def _forget_life(self, worker: int | None) -> None:
        with self._changed:
            # Letters for a trainer that had not begun to take them are for its next life.
            over = [box for box in self._boxes if worker is None or (box[1] == worker and box in self._lives)]
            for box in over:
                self.held_bytes -= sum(len(letter.body) for letter in self._boxes.pop(box).letters)
            if worker is None:
                self._lives, self._last_put = {}, {}
            self._changed.notify_all()

    def _check_alive(self, workers: Sequence[int], box: str) -> None:
        """Whatever the policy for lost trainers is: rows that were on their way to or from one are lost with it."""
        with self._sessions.changed:
            if lost := self._sessions.lost_among(workers):
                raise self._sessions.missing_error(f"exchange {box!r}", lost)
