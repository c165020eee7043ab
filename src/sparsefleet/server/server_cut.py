"""ServerCuts: this server's part of a checkpoint: its tables as they were at one record, until they are written.

While the gate is held, a cut is named (`name`): the tables are marked, which takes an instant whatever their size. Then
the gate is opened, and the cut is written while pushes go on. There is one cut at a time. It belongs to the life of the
trainer that saves: it is dropped when that life ends, and when it is not renewed in time.

Of the last checkpoints that were committed the tables' clocks are remembered, so that the next one can be a delta: the
rows that were touched later. A cut that was written and never became a checkpoint is nothing to stand on: the rows that
it held are in no file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from sparsefleet.checkpoint import locate
from sparsefleet.core.errors import StoreError
from sparsefleet.server.holdings import Holdings
from sparsefleet.server.ledger import Ledger
from sparsefleet.store.shards import ShardCut

log = logging.getLogger(__name__)

KEPT_MARKS = 4
"""Checkpoints whose clocks are remembered: between two cuts of a job that heals, its trainers may save some."""
LOOK_EVERY = 0.5
"""Seconds between two looks at whether a cut's owner is still there."""


@dataclass
class ServerCut:
    owner: str
    number: int
    """Of the last record that it holds."""
    shard: ShardCut
    deadline: float
    over: threading.Event = field(default_factory=threading.Event)
    written: tuple[str, _Mark] | None = None
    """The draft's directory that its files are in, and what is remembered of it once that is committed."""


@dataclass(frozen=True)
class _Mark:
    """What is remembered of a checkpoint."""

    clocks: dict[str, int]
    loads: int
    """How often everything here had been replaced by a checkpoint's: a clock means nothing after another time."""


class ServerCuts:
    def __init__(self, ledger: Ledger, holdings: Holdings, is_over: Callable[[str], bool], index: int) -> None:
        """`is_over`: whether a trainer's life has ended."""
        self._ledger, self._holdings, self._is_over, self._index = ledger, holdings, is_over, index
        self._cut: ServerCut | None = None
        self._marks: dict[str, _Mark] = {}
        self._lock = threading.Lock()

    def name(self, owner: str, seconds: float) -> dict[str, Any]:
        """Mark everything as it is now; `owner` holds the gate."""
        ledger = self._ledger
        ledger.gate.check(owner)
        ledger.check_whole()
        with self._lock:
            if self._cut is not None and self._cut.owner == owner:
                self._drop()  # of a save that failed, and whose trainer could not say so
            if self._cut is not None:
                raise StoreError("another checkpoint is being written right now; wait for it")
            number, shard = ledger.number, self._holdings.cut()
            try:
                ledger.gate.check(owner)  # the whole time: a freeze may have run out meanwhile
                if ledger.number != number:
                    raise StoreError("this server was held no longer while the cut was named: save again")
            except BaseException:
                shard.close()
                raise
            cut = self._cut = ServerCut(owner, number, shard, time.monotonic() + seconds)
        threading.Thread(target=self._watch, args=(cut,), name="sparsefleet-cut", daemon=True).start()
        return {
            "number": cut.number,
            "accounts": ledger.accounts(),
            "tables": [info.name for info in shard.table_infos()],
            "blocks": [info.name for info in shard.block_infos()],
            "marks": [path for path, mark in list(self._marks.items()) if mark.loads == self._holdings.loads],
        }

    def renew(self, owner: str, seconds: float) -> bool:
        with self._lock:
            mine = self._cut is not None and self._cut.owner == owner
            if mine and self._cut is not None:
                self._cut.deadline = time.monotonic() + seconds
            return mine

    def write(self, owner: str, directory: str, drop_state: bool, since: str | None = None) -> dict[str, Any]:
        """Write the cut's files into a draft's directory; may take long. since: what it is a delta of."""
        cut, mark = self.check(owner), None
        if since is not None:
            mark = self._marks.get(since)
            if mark is None or mark.loads != self._holdings.loads:
                raise StoreError(f"this server does not know what has changed since {since}: write a whole checkpoint")
        shard, loads = cut.shard, self._holdings.loads
        clocks = None if mark is None else mark.clocks
        files = shard.write(locate(directory), self._index, drop_state=drop_state, since=clocks)
        self.check(owner)
        if not drop_state:
            cut.written = directory, _Mark(shard.clocks(), loads)
        return {
            "files": [entry.to_dict() for entry in files],
            "rows": shard.rows(),
            "tables": [asdict(info) for info in shard.table_infos(drop_state)],
            "blocks": [info.to_dict() for info in shard.block_infos(drop_state)],
        }

    def committed(self, owner: str, directory: str, path: str) -> None:
        """The draft in this directory is the checkpoint `path` now: a later one may be a delta of it.

        A word that comes when its cut is gone changes nothing; then the next checkpoint is whole.
        """
        with self._lock:
            written = self._cut.written if self._cut is not None and self._cut.owner == owner else None
            if written is None or written[0] != directory:
                return
            self._marks.pop(path, None)
            self._marks[path] = written[1]
            while len(self._marks) > KEPT_MARKS:
                del self._marks[next(iter(self._marks))]

    def check(self, owner: str) -> ServerCut:
        """The owner's cut, or an error where it has none any more."""
        with self._lock:
            if self._cut is None or self._cut.owner != owner:
                raise StoreError("the cut is gone (it was not renewed in time, or belongs to another): save again")
            return self._cut

    def drop(self, owner: str) -> None:
        with self._lock:
            if self._cut is not None and self._cut.owner == owner:
                self._drop()

    def _drop(self) -> None:
        cut, self._cut = self._cut, None
        if cut is not None:
            cut.over.set()
            cut.shard.close()

    def _watch(self, cut: ServerCut) -> None:
        while not cut.over.wait(LOOK_EVERY):
            gone = self._is_over(cut.owner)
            with self._lock:
                late = time.monotonic() > cut.deadline
                if self._cut is cut and (gone or late):
                    log.warning("a cut is dropped: its trainer %s", "has ended" if gone else "was silent for too long")
                    self._drop()
