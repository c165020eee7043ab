"""Checkpoints of many servers, made by the trainer that asks for one; and their statistics added up.

A cut is one moment everywhere. Pushes have the same number on all servers, so: freeze all; compare the numbers of the
last push of every lane; let a server that is behind apply just those that another has applied already; then all
write. A freeze ends by itself after a while, so a trainer that dies here stops nobody for long.

Of a trainer that the others went on without, the last push may be on some servers only, and stays so: nobody waits for
the rest, and a table's step is that of the server that counted most.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefleet.checkpoint import (
    BlockInfo,
    Checkpoint,
    FileEntry,
    TableInfo,
    begin,
    commit,
    file_entry,
    latest,
    write_buffers,
)
from sparsefleet.core.errors import CheckpointError, SparseFleetError, StoreError
from sparsefleet.store.base import RunFacts
from sparsefleet.store.remote_link import ServerLink, on_all
from sparsefleet.store.saving import facts_of, manifest_of
from sparsefleet.store.wire import spec_to_dict
from sparsefleet.table.spec import TableSpec

log = logging.getLogger(__name__)
Check = Callable[[Mapping[str, Any]], None]
"""Called with each answer that says that a server is still at work; raises where waiting longer is of no use."""
TELL_EVERY = 5.0
AFTERWARDS_SECONDS = 5.0
"""For what is only told when a checkpoint is written: whoever needs a server that does not answer finds out in their
own time."""


def save(
    links: Sequence[ServerLink], path: str, facts_now: Callable[[], RunFacts], owner: str, *, drop_state: bool = False
) -> None:
    """`facts_now` is called when nothing moves on any server."""
    with begin(path) as draft, _Frozen(links, owner) as frozen:
        frozen.make_equal()
        facts = facts_now()
        request = {"owner": owner, "directory": str(draft.directory), "drop_state": drop_state}
        answers = on_all(links, lambda link: _finished(link, "write", request, lambda busy: frozen.check()))
        files = [_file(entry, link) for link, answer in zip(links, answers, strict=True) for entry in answer["files"]]
        files += write_buffers(draft.directory, facts.buffers)
        tables, blocks = (_same(links, answers, what, frozen.uneven) for what in ("tables", "blocks"))
        infos = [TableInfo(**table) for table in tables]
        blocks_there = [
            BlockInfo(**{**block, "layout": tuple((name, tuple(shape)) for name, shape in block["layout"])})
            for block in blocks
        ]
        frozen.check()
        commit(draft, manifest_of(facts, infos, blocks_there, files))
    if drop_state:
        return  # nothing that a run could be resumed from

    def tell(link: ServerLink) -> None:
        link.saved.path = path
        try:
            link.action("saved", {"path": path}, min(AFTERWARDS_SECONDS, link.config.timeout / 4))
        except StoreError as error:
            # The checkpoint is whole. Whoever needs that server next gets an error of their own.
            log.warning("%s was saved, but one server does not know: %s", path, error)

    on_all(links, tell)


def load(links: Sequence[ServerLink], path: str, *, values_only: bool = False) -> RunFacts:
    checkpoint = Checkpoint.open(latest(path))
    facts = facts_of(checkpoint)
    request = {"path": str(checkpoint.location), "values_only": values_only, "ticket": uuid.uuid4().hex}
    on_all(links, lambda link: _finished(link, "load", request, _Loading(link, f"load {path}")))
    return facts


def create_table(links: Sequence[ServerLink], spec: TableSpec) -> None:
    """On servers that start from a checkpoint, the table's rows come from it."""
    request = {"spec": spec_to_dict(spec)}
    what = f"load table {spec.name!r}"
    on_all(links, lambda link: _finished(link, "create_table", request, _Loading(link, what)))


class _Loading:
    """A server is loading: says so now and then, and gives up when no row has come for the time-out."""

    def __init__(self, link: ServerLink, what: str) -> None:
        self._link, self._what, self._rows = link, what, -1
        self._begun = self._moved = self._told = time.monotonic()

    def __call__(self, busy: Mapping[str, Any]) -> None:
        now, rows, limit = time.monotonic(), int(busy.get("rows", 0)), self._link.config.timeout
        if rows != self._rows:
            self._rows, self._moved = rows, now
        if now - self._moved > limit:
            raise StoreError(
                f"{self._link} has not got on with it for {limit:g} s: {self._what}; {rows:,} rows are there"
            )
        if now - self._told >= TELL_EVERY:
            self._told = now
            log.warning(
                "waiting for %s to %s: %s rows after %.0f s", self._link, self._what, f"{rows:,}", now - self._begun
            )


def _finished(link: ServerLink, job: str, request: Mapping[str, Any], check: Check) -> dict[str, Any]:
    """Ask for a job until it is done. It may take long; each question has the usual time-out."""
    patience = min(5.0, link.config.timeout / 4)
    while True:
        answer = link.action(job, {**request, "patience": patience}, link.config.timeout)
        if not answer.get("busy"):
            return answer
        check(answer)


class _Frozen:
    """All servers hold pushes off while this is entered; it is renewed in the background."""

    def __init__(self, links: Sequence[ServerLink], owner: str) -> None:
        self._links, self._owner = links, owner
        self._seconds = min(link.config.timeout for link in links)
        self._stop, self._error = threading.Event(), list[StoreError]()
        self._lanes: list[dict[str, int]] = []
        self.uneven = False
        """Whether trainers were lost in this run: what they sent last may have reached some servers only."""
        self._thread = threading.Thread(target=self._renew, name="sparsefleet-freeze", daemon=True)

    def __enter__(self) -> _Frozen:
        request = {"owner": self._owner, "seconds": self._seconds}
        try:
            answers = on_all(self._links, lambda link: link.action("freeze", request))
        except BaseException:
            self._thaw()
            raise
        # Only the first server may know who is left out: barriers are its business.
        over = {lane for answer in answers for lane in answer["over"]}
        self.uneven = any(answer["losses"] for answer in answers)
        self._lanes = [{k: n for k, n in answer["lanes"].items() if k not in over} for answer in answers]
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thaw()  # what is renewed afterwards is nobody's
        self._thread.join(timeout=2 * self._seconds)

    def make_equal(self) -> None:
        furthest: dict[str, int] = {}
        for lanes in self._lanes:
            for lane, number in lanes.items():
                furthest[lane] = max(number, furthest.get(lane, 0))
        for link, lanes in zip(self._links, self._lanes, strict=True):
            behind = {lane: number for lane, number in furthest.items() if lanes.get(lane, 0) < number}
            if behind:
                link.action("advance", {"owner": self._owner, "lanes": behind, "patience": self._seconds / 2})

    def check(self) -> None:
        if self._error:
            raise self._error[0]

    def _renew(self) -> None:
        request, renewed = {"owner": self._owner, "seconds": self._seconds}, time.monotonic()
        while not self._stop.wait(self._seconds / 4):
            try:
                on_all(self._links, lambda link: link.action("renew", request, self._seconds / 4))
                renewed = time.monotonic()
            except StoreError as error:
                if time.monotonic() - renewed > 3 / 4 * self._seconds:  # no time for another try
                    self._error.append(error)
                    return

    def _thaw(self) -> None:
        def thaw(link: ServerLink) -> None:
            try:
                link.action("thaw", {"owner": self._owner}, min(AFTERWARDS_SECONDS, self._seconds / 4))
            except StoreError as error:
                log.warning("after a save: %s; that server goes on by itself within %g s", error, self._seconds)

        on_all(self._links, thaw)


def _file(entry: Mapping[str, Any], link: ServerLink) -> FileEntry:
    try:
        return file_entry(entry, str(link))
    except SparseFleetError as error:
        raise CheckpointError(f"{link} reported a file that cannot be: {error}") from error


def _same(
    links: Sequence[ServerLink], answers: Sequence[Mapping[str, Any]], what: str, uneven: bool
) -> list[dict[str, Any]]:
    """Tables and blocks, with their steps, are the same on all servers of one moment; `uneven`: but for the steps."""
    merged = [dict(info) for info in answers[0][what]]
    for link, answer in zip(links, answers, strict=True):
        if [_to_be_same(info, uneven) for info in answer[what]] != [_to_be_same(info, uneven) for info in merged]:
            raise StoreError(
                f"{link} and {links[0]} were not at the same moment: {answer[what]} there, {answers[0][what]} here. "
                "A push failed on one of them; the checkpoint was not written"
            )
        for info, other in zip(merged, answer[what], strict=True):
            info["step"] = max(info["step"], other["step"])
    return merged


def _to_be_same(info: Mapping[str, Any], uneven: bool) -> dict[str, Any]:
    """What must not differ between servers."""
    return {name: value for name, value in info.items() if not (uneven and name == "step")}


_SUMMED = ("rows", "memory_bytes", "pulled_rows", "pushed_rows", "misses")


def merged_stats(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {}
    dense: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for name, stats in answer["tables"].items():
            into = tables.setdefault(name, {**stats, **dict.fromkeys(_SUMMED, 0)})
            for field in _SUMMED:
                into[field] += stats.get(field, 0)
        for name, stats in answer["dense"].items():
            into = dense.setdefault(name, {**stats, "values": 0, "memory_bytes": 0})
            into["values"] += stats["values"]
            into["memory_bytes"] += stats["memory_bytes"]
    first = answers[0]
    return {
        "tables": tables,
        "dense": dense,
        "workers": first["workers"],
        "lost": first["lost"],
        "servers": list(answers),
    }
