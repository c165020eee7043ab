"""Ledger: the one door through which this server's tables change. Every change is a record, and records are numbered.

A record says what kind of change it is, whose steps it holds (a push: one caller's; a sync round: one of every
trainer), how many batches those are of, and which tables and blocks it is about. `Ledger.apply` sees to all the rest:
a step that has been applied before is not applied again; a record that comes while a cut is named waits; the tables and
the accounts of the callers change together; and a change that fails half-way ends the job, for no record says what the
tables hold then.

An *account* is what has been applied of one caller's steps. The same step has the same sequence number on all servers,
so servers are at the same moment where their accounts are equal, whatever their own record numbers are. A cut is the
number of the last record before it, on every server.

Rows that a pull creates are no records. A new row's values are a function of its key, so it may be created at any
moment, twice, or never: a checkpoint that has it and one that has not load as the same model.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import StoreError
from sparsefleet.server.gate import SLICE, Gate, OnWait, never_over

log = logging.getLogger(__name__)

PUSH, ROUND, GEO, CREATE, LOAD, RATES = "push", "round", "geo", "create", "load", "rates"

MAX_CALLERS = 4096
"""Callers of one trainer: as many as it has threads that call the store."""
KEPT_FORMER = 256
"""Accounts of lives that are over which are remembered: whether their last step reached all servers is still of
interest to the next checkpoints."""


class Account:
    """What has been applied of one caller's steps. They come in order, perhaps more than once."""

    __slots__ = (
        "batches", "caller", "clip_norm", "closed", "held", "incarnation", "key", "lock", "records", "round",
        "sequence", "squares", "worker",
    )  # fmt: skip

    def __init__(self, worker: int, incarnation: str, caller: int) -> None:
        self.worker, self.incarnation, self.caller = worker, incarnation, caller
        self.key = f"{worker}/{incarnation}/{caller}"
        self.lock = threading.Lock()
        """Held from looking at `sequence` to changing it: a step sent again may meet its first self at work."""
        self.sequence = 0
        """Of the last step that counts."""
        self.records = 0
        """Records that hold steps of this caller. Servers that differ here only: one has refused a step."""
        self.batches = 0
        """Batches of the trainer that these steps are of."""
        self.round = 0
        """The last round that the caller had a part in."""
        self.held: Sequence[Any] | None = None
        """Its part of a round whose norm was asked for, until that is applied (`server/norms.py`)."""
        self.squares = (0, 0.0)
        """The message that asked for a norm last, and what it was told."""
        self.clip_norm = 0.0
        """What it wants the norm for: all trainers must want the same."""
        self.closed = False
        """Nothing is taken any more: its life is over, and others go on with its data."""

    def check_open(self) -> None:
        if self.closed:
            raise StoreError(f"the others went on without worker {self.worker}: its data is theirs now")

    def wait_for_turn(self, on_wait: OnWait) -> None:
        """Take `lock`, and tell the client while that lasts."""
        while not self.lock.acquire(timeout=SLICE):
            on_wait("the same message, sent before, is still being applied")


class Step(NamedTuple):
    """One step of one caller."""

    account: Account
    sequence: int
    batches: int
    marks: Sequence[Mark] = ()
    """How far the trainer's pieces of leased data are with it."""

    @property
    def key(self) -> str:
        return self.account.key


@dataclass(slots=True)
class Record:
    kind: str
    steps: Sequence[Step] = ()
    parts: Sequence[Any] = ()
    """What it changes; each part has a `name`."""
    number: int = 0
    """Its place among all records of this server, from 1, once it is applied."""

    def __str__(self) -> str:
        whose = ", ".join(f"step {step.sequence} of worker {step.account.worker}" for step in self.steps[:3])
        more = f" and {len(self.steps) - 3} others" if len(self.steps) > 3 else ""
        return f"{self.kind} of {whose}{more}" if whose else f"{self.kind} of {', '.join(p.name for p in self.parts)}"


Torn = Callable[[str], None]


class Ledger:
    def __init__(
        self, is_over: Callable[[str], bool] = never_over, on_torn: Torn = lambda why: None, server: int = 0
    ) -> None:
        """`is_over`: whether a trainer's life (incarnation) has ended. `on_torn`: the job cannot go on, and why."""
        self.gate = Gate(is_over)
        self._is_over, self._on_torn, self._server = is_over, on_torn, server
        self._accounts: dict[str, Account] = {}
        self._former: dict[str, Account] = {}
        self._lock = threading.Lock()
        self._torn: str | None = None
        self.on_marks: Callable[[Account, Sequence[Mark]], None] = lambda account, marks: None
        """Told of each step's marks as it is applied; see `server/leases.py`."""

    # --- changes

    def apply(self, record: Record, change: Callable[[], object], on_wait: OnWait) -> bool:
        """Make the change and advance the accounts of its steps; False where it has been made before."""
        steps, taken, made_before = record.steps, 0, 0
        try:
            for account, sequence, *_ in steps:
                if not account.lock.acquire(blocking=False):
                    account.wait_for_turn(on_wait)
                taken += 1
                made_before += sequence <= account.sequence
            if made_before:
                self._check_made_before(record, made_before)
                return False
            self.check_whole()
            for account, *_ in steps:
                account.check_open()
            record.number = self.gate.enter(steps, on_wait)
            try:
                self._make(record, change)
            finally:
                self.gate.leave()
        finally:
            for account, *_ in steps[:taken]:
                account.lock.release()
        return True

    def apply_alone(
        self, record: Record, check: Callable[[], None], change: Callable[[], object], owner: str, patience: float
    ) -> None:
        """Make a change of everything: no other record is applied meanwhile. `check` raises if it cannot be made."""
        self.gate.hold(owner, None, patience)
        try:
            check()
            record.number = self.gate.passed = self.gate.passed + 1
            self._make(record, change)
            self._torn = None  # everything is anew
        finally:
            self.gate.open(owner)

    def _check_made_before(self, record: Record, steps: int) -> None:
        if steps < len(record.steps):
            raise StoreError(f"{record}: {steps} of its {len(record.steps)} steps were applied before; this is a bug")

    def _make(self, record: Record, change: Callable[[], object]) -> None:
        try:
            change()
        except BaseException as error:
            self._tear(record, error)
            raise
        for account, sequence, batches, marks in record.steps:
            account.sequence = sequence
            account.records += 1
            account.batches += batches
            if marks:
                self.on_marks(account, marks)

    def _tear(self, record: Record, error: BaseException) -> None:
        self._torn = (
            f"server {self._server} failed within a change ({record}): {error!r}. Its tables may hold a part of it, so "
            "nothing is applied or saved there any more"
        )
        log.error("%s", self._torn)
        self._on_torn(self._torn)

    def check_whole(self) -> None:
        """Raise where a change has failed half-way."""
        if self._torn is not None:
            raise StoreError(self._torn)

    # --- accounts

    @property
    def number(self) -> int:
        """Of the last record."""
        return self.gate.passed

    def account(self, worker: int, incarnation: str, caller: int) -> Account:
        """A caller's account; it is opened with the caller's first stream."""
        if not 0 <= caller < MAX_CALLERS:
            raise StoreError(f"lane {caller} must be 0 to {MAX_CALLERS - 1}")
        key = f"{worker}/{incarnation}/{caller}"
        with self._lock:
            present = self._accounts.get(key)
            if present is None:
                self._put_aside_former_lives(worker, incarnation)
                present = self._accounts[key] = Account(worker, incarnation, caller)
            return present

    def accounts(self) -> dict[str, list[int]]:
        """Per account the last step that counts, and how many do; those of former lives too."""
        with self._lock:
            known = [*self._former.values(), *self._accounts.values()]
        return {account.key: [account.sequence, account.records] for account in known if account.records}

    def has_steps(self) -> bool:
        """Whether any trainer's step has been applied."""
        with self._lock:
            return any(account.records for account in [*self._former.values(), *self._accounts.values()])

    def over(self) -> list[str]:
        """Accounts on which nothing will come, though other servers may have had more of them."""
        with self._lock:
            known = [*self._former.values(), *self._accounts.values()]
        ended = {life: self._is_over(life) for life in {account.incarnation for account in known}}
        return [account.key for account in known if ended[account.incarnation]]

    def batches(self, worker: int, incarnation: str) -> int:
        """Batches of this life of a trainer that are in what this server has applied."""
        with self._lock:
            mine = [one for one in self._accounts.values() if (one.worker, one.incarnation) == (worker, incarnation)]
        return sum(account.batches for account in mine)

    def close_life(self, worker: int, incarnation: str) -> list[Account]:
        """Nothing more is taken of this life, but for what is being applied: that is over once its accounts' locks are
        free (`let_end`)."""
        with self._lock:
            known = [*self._former.values(), *self._accounts.values()]
        mine = [account for account in known if (account.worker, account.incarnation) == (worker, incarnation)]
        for account in mine:
            account.closed = True
        return mine

    @staticmethod
    def let_end(accounts: Iterable[Account], seconds: float = threading.TIMEOUT_MAX) -> bool:
        """Return when nothing is being applied of these; False where something still is after so many seconds.

        Without a limit that takes as long as a record may wait at the gate: until a cut is named, or its owner is lost.
        """
        until = time.monotonic() + seconds
        for account in accounts:
            if not account.lock.acquire(timeout=min(threading.TIMEOUT_MAX, max(0.0, until - time.monotonic()))):
                return False
            account.lock.release()
        return True

    def _put_aside_former_lives(self, worker: int, incarnation: str) -> None:
        former = [k for k, one in self._accounts.items() if one.worker == worker and one.incarnation != incarnation]
        for key in former:
            self._former[key] = self._accounts.pop(key)
        while len(self._former) > KEPT_FORMER:
            del self._former[next(iter(self._former))]
