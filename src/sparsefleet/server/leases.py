"""LeaseBook: server 0's part in handing out data (`core/leases.py`): who has which piece, and how far each is.

A pass over the data has a name (which call of `fit`, which epoch). Trainers open it, all with the same plan, and take
pieces. A step that is applied brings its marks along (`Ledger.on_marks`), so that tables and leases change together,
and while a cut holds the gate the leases are those of the cut.

A pass goes by laps. A lap ends when no trainer gets another piece and all have met. Whatever is not done then was a
lost trainer's: it is handed back, and another lap begins. A trainer's loss hands its pieces back at once, but not
before everything that it sent is applied or sure to be refused (`Ledger.close_life`): or a sample could count twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import Disagreement, StoreError
from sparsefleet.core.leases import Leases
from sparsefleet.server.ledger import Account, Ledger
from sparsefleet.server.meetings import Meetings
from sparsefleet.server.rounds import Rounds
from sparsefleet.server.sessions import Sessions
from sparsefleet.store.remote.leases import FIT_ENDS, LAP_ENDS
from sparsefleet.store.wire import WireError

MAX_PIECES = 1 << 24


class LeaseBook:
    def __init__(self, sessions: Sessions, ledger: Ledger, meetings: Meetings, rounds: Rounds) -> None:
        self._sessions, self._ledger, self._meetings, self._rounds = sessions, ledger, meetings, rounds
        self._lock = threading.Lock()
        self._name = ""
        self._plan = ""
        self._leases = Leases(0)
        self._position: dict[str, Any] | None = None
        """What is read, as the first trainer said; None: of a pass that nobody may join."""
        self._told: dict[str, Any] = {}
        """What that one has for trainers that come late."""
        self._under_way = False
        """A lap is: somebody has taken a piece of it, and not all have met at its end. `sessions.changed` guards it."""
        self._laps: list[int] = []
        """Of the pass: by lap that is over, how many pieces were left."""
        self._ended: list[tuple[int, str]] = []
        """Lives of trainers that are over, and whose pieces are not handed back yet."""
        meetings.on_met.append(self._note_meeting)
        sessions.on_loss.append(self._note_loss)
        sessions.on_new_life.append(self._note_loss)
        ledger.on_marks = self._note

    def begin_run(self, worker: int, incarnation: str, leased: bool) -> None:
        """A trainer is about to train, on leased data or on a share of its own: then nothing is left to hand out."""
        with self._sessions.changed:
            self._sessions.begin_run(worker, incarnation, leased)
            if not leased:
                with self._lock:
                    self._clear()

    def open(
        self,
        worker: int,
        incarnation: str,
        name: str,
        plan: str,
        pieces: int,
        progress: Any,
        position: dict[str, Any] | None = None,
        told: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """`wanted` in the answer: nobody has said yet what is read; open it again with a `position`."""
        if not 0 <= pieces <= MAX_PIECES:
            raise WireError(f"{pieces} pieces; 0 to {MAX_PIECES} are taken")
        marks = {mark.unit: mark for mark in read_marks(progress)}
        if marks and max(marks) >= pieces:
            raise WireError(f"a mark of piece {max(marks)}; there are {pieces}")
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            crew, fixed = self._crew(), self._sessions.mode == "sync"
            under_way = self._under_way and self._sessions.all_stay_together
        with self._lock:
            if name != self._name and under_way and self._leases.left:
                raise StoreError(
                    f"worker {worker} opens {name!r} while {self._name!r} is under way, of which {self._leases.left} "
                    "pieces are left: all trainers must make the same calls in the same order (fit, infer)"
                )
            if name != self._name and position is None:
                return {"wanted": True}
            if name != self._name:
                self._name, self._plan, self._laps, self._position = name, plan, [], position or None
                self._told = told or {}
                self._leases = Leases(pieces, marks, fixed=fixed)
                self._leases.deal(crew)
            elif plan != self._plan:
                raise Disagreement(
                    f"worker {worker} reads other files, or reads them otherwise, than the others: with leases all "
                    "trainers are given the same files, in the same order, of the same sizes"
                )
            return {}

    def take(self, worker: int, incarnation: str, name: str) -> dict[str, Any]:
        """The next pieces of a trainer, each with its mark; none where there is none for it."""
        with self._sessions.changed:
            leaves = self._sessions.check(worker, incarnation).leaving
            self._sessions.check_job()
            self._under_way = True
        self._settle()
        with self._lock:
            self._check(name)
            if leaves:
                return {"untaken": self._leases.untaken, "samples": self._leases.samples, "leave": True}
            taken = self._leases.take_some(incarnation, worker)
            pieces = [[one.piece, one.mark and [one.mark.samples, one.mark.offset]] for one in taken]
            return {"untaken": self._leases.untaken, "samples": self._leases.samples, "pieces": pieces}

    def note(self, worker: int, incarnation: str, name: str, progress: Any) -> None:
        """Pieces that had no samples, so that no step tells of them."""
        marks = read_marks(progress)
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
        with self._lock:
            self._check(name)
            self._leases.note(incarnation, marks)

    def end_lap(self, worker: int, incarnation: str, name: str, lap: int) -> dict[str, Any]:
        """All trainers have met at the end of this lap (the first is 1): how many pieces are left for another one."""
        with self._sessions.changed:
            self._sessions.check(worker, incarnation)
            self._sessions.check_job()
            crew = self._crew()
        self._rounds.finish()
        self._settle()
        with self._lock:
            self._check(name)
            if lap == len(self._laps) + 1:  # the first one to ask; the others hear the same
                self._leases.hand_back()
                self._leases.deal(crew)
                self._laps.append(self._leases.left)
            if not 0 < lap <= len(self._laps):
                raise StoreError(f"lap {lap} of {name!r} ends after lap {len(self._laps)}; this is a bug")
            return {"left": self._laps[lap - 1]}

    def enter(self, worker: int, incarnation: str, patience: float) -> dict[str, Any]:
        """A trainer that comes late is let in as soon as a lap of a pass over training data is under way, and told
        where the others are. {} where it is to ask again; `over`: the job has come to its end."""
        sessions, until = self._sessions, time.monotonic() + patience
        with sessions.changed:
            while True:
                sessions.check(worker, incarnation)
                sessions.check_job()
                with self._lock:
                    joinable = self._under_way and self._position is not None
                    if joinable:
                        return self._let_in(worker, incarnation)
                if sessions.all_have_stopped():
                    return {"over": True}
                if (left := until - time.monotonic()) <= 0:
                    return {}
                sessions.changed.wait(min(left, 0.25))

    def _let_in(self, worker: int, incarnation: str) -> dict[str, Any]:
        """With both locks held."""
        sessions = self._sessions
        sessions.let_in(worker, incarnation)
        if self._leases.fixed:
            self._leases.deal(self._crew())
        return {
            "name": self._name,
            "laps": len(self._laps),
            "position": self._position,
            "told": self._told,
            "turns": self._meetings.turns(),
            "step": sessions.furthest_step(),
        }

    def _crew(self) -> set[int]:
        """With `sessions.changed` held: who is there, and not about to leave."""
        there = self._sessions.in_meetings()
        staying = {one for one in there - set(self._sessions.lost_among(there)) if not self._sessions.is_leaving(one)}
        return staying or there

    def _note_meeting(self, place: tuple[str, str, int]) -> None:
        if place[1].endswith(LAP_ENDS):
            self._under_way = False
        if place[1] == FIT_ENDS:
            self._sessions.end_run()

    def state(self) -> dict[str, Any]:
        """How far the pass is; exact while the gate is held."""
        with self._lock:
            return {"name": self._name, "left": self._leases.left, "progress": self._leases.progress()}

    def held_by(self, worker: int) -> list[list[Any]]:
        """The pieces of training data that a trainer's present life has, in the order that it took them, each as [file,
        samples of the piece that are in the model, where in the file the next one is, where the piece begins]; [] where
        that is not known."""
        with self._sessions.changed:
            life = self._sessions.life_of(worker)
        with self._lock:
            position, leases = self._position, self._leases
            units = position.get("units") if isinstance(position, Mapping) else None
            if life is None or not isinstance(units, list) or len(units) != leases.pieces:
                return []
            places = []
            for piece in leases.held_by(life):
                match units[piece]:
                    case [str(file), int(start), *_]:
                        mark = leases.marks.get(piece)
                        stands = (0, start) if mark is None else (mark.samples, mark.offset)
                        places.append([file, *stands, start])
            return places

    def stats(self) -> dict[str, Any]:
        with self._lock:
            leases = self._leases
            return {"pass": self._name, "pieces": leases.pieces, "left": leases.left, "untaken": leases.untaken}

    # ---

    def _check(self, name: str) -> None:
        if name != self._name:
            raise StoreError(f"the leases are of {self._name or 'nothing yet'!r}, not of {name!r}; this is a bug")

    def _note(self, account: Account, marks: Sequence[Mark]) -> None:
        """A step of this account is applied."""
        with self._lock:
            self._leases.note(account.incarnation, marks)

    def _note_loss(self, worker: int | None) -> None:
        """With `sessions.changed` held: somebody, or (None) everybody, is gone. What has to wait is done later."""
        with self._lock:
            if worker is None:
                self._clear()
            elif (life := self._sessions.life_of(worker)) is not None:
                self._ended.append((worker, life))

    def _clear(self) -> None:
        """With both locks held."""
        self._name, self._leases, self._laps, self._ended = "", Leases(0), [], []
        self._under_way, self._position, self._told = False, None, {}

    def left(self, worker: int) -> None:
        """A trainer has said good-bye: what it still holds is for the others."""
        with self._sessions.changed:
            self._note_loss(worker)

    def _settle(self) -> None:
        """Hand the pieces of those that are gone back."""
        if not self._ended:
            return
        with self._sessions.changed:
            with self._lock:
                # Its part of the open round is on other servers too: that one is still applied.
                ended = [one for one in self._ended if not self._rounds.holds(*one)]
            accounts = [account for one in ended for account in self._ledger.close_life(*one)]
        self._ledger.let_end(accounts)
        with self._sessions.changed:
            crew = self._crew()
        with self._lock:
            for one in ended:
                self._leases.hand_back(one[1])
                if one in self._ended:
                    self._ended.remove(one)
            self._leases.deal(crew)


def read_marks(progress: Any) -> Sequence[Mark]:
    """Marks as a message brings them."""
    if progress is None:
        return ()
    if not isinstance(progress, list):
        raise WireError(f"marks must be a list of [piece, samples, offset, done]; got {progress!r:.80}")
    marks = []
    for entry in progress:
        match entry:
            case [int(piece), int(samples), int(offset), bool(done)] if piece >= 0 and samples >= 0 and offset >= -1:
                marks.append(Mark(piece, samples, offset, done))
            case _:
                raise WireError(f"a mark is [piece, samples, offset, done]; got {entry!r:.80}")
    return marks


def text_of(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise WireError(f"{name} must be text of 1 to 200 characters; got {value!r:.80}")
    return value
