"""Checkpoints of many servers, made by the trainer that asks for one; and their statistics added up.

A cut is one moment everywhere. The same step has the same number on all servers, so: freeze all; compare what each has
applied of every caller's steps; let a server that is behind apply just those that another has applied already; then
every server names its cut, which takes an instant, and is thawed. What was cut is written while training goes on.
Freeze and cut end by themselves after a while, so a trainer that dies here stops nobody for long.

Of a trainer whose life is over, the last step may be on some servers only, and stays so: nobody waits for the rest, and
a table's step is that of the server that counted most. A job that heals has no checkpoint then, for it could go back to
that one.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefleet.checkpoint import (
    Base,
    BlockInfo,
    Checkpoint,
    FileEntry,
    Manifest,
    TableInfo,
    begin,
    commit,
    file_entry,
    latest,
    locate,
    write_buffers,
)
from sparsefleet.checkpoint.checksum import checksum_of
from sparsefleet.checkpoint.manifest import FILE_NAME
from sparsefleet.core.errors import CheckpointError, SparseFleetError, StoreError
from sparsefleet.store.base import RunFacts, StoreCut
from sparsefleet.store.remote.link import ServerLink, on_all
from sparsefleet.store.shards import facts_of, manifest_of
from sparsefleet.store.wire import spec_to_dict
from sparsefleet.table.spec import TableSpec

log = logging.getLogger(__name__)
Check = Callable[[Mapping[str, Any]], None]
"""Called with each answer that says that a server is still at work; raises where waiting longer is of no use."""
TELL_EVERY = 5.0
MAX_LEASE = 3600.0
"""Seconds for which servers keep a freeze or a cut without hearing of it, at the most."""
AFTERWARDS_SECONDS = 5.0
"""For what is only told when a checkpoint is written: whoever needs a server that does not answer finds out in their
own time."""


def load(
    links: Sequence[ServerLink],
    identity: Mapping[str, Any],
    path: str,
    *,
    values_only: bool = False,
    partial: bool = False,
) -> RunFacts:
    checkpoint = Checkpoint.open(latest(path))
    facts = facts_of(checkpoint)
    how = {"values_only": values_only, "partial": partial}
    request = {**identity, **how, "path": str(checkpoint.location), "ticket": uuid.uuid4().hex}
    on_all(links, lambda link: _finished(link, "load", request, _Loading(link, f"load {path}")))
    return facts


def create_table(links: Sequence[ServerLink], identity: Mapping[str, Any], spec: TableSpec) -> None:
    """On servers that start from a checkpoint, the table's rows come from it."""
    request = {**identity, "spec": spec_to_dict(spec)}
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


def _finished(link: ServerLink, task: str, request: Mapping[str, Any], check: Check) -> dict[str, Any]:
    """Ask for a task until it is done. It may take long; each question has the usual time-out."""
    patience = min(5.0, link.config.timeout / 4)
    while True:
        answer = link.action(task, {**request, "patience": patience}, link.config.timeout)
        if not answer.get("busy"):
            return answer
        check(answer)


class FrozenServers:
    """While this is entered, all servers hold steps off, and have applied the same ones. `cut` names that moment."""

    def __init__(self, links: Sequence[ServerLink], identity: Mapping[str, Any]) -> None:
        self._links, self._identity = links, identity
        self._lease = _Lease(links, identity)
        self._over: set[str] = set()
        """Accounts of lives that have ended: what they sent last may have reached some servers only."""
        self._cut_named = False

    def __enter__(self) -> FrozenServers:
        request = {**self._identity, "seconds": self._lease.seconds}
        try:
            answers = on_all(self._links, lambda link: link.action("freeze", request))
            self._lease.begin()
            self._make_equal(answers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if not self._cut_named:
            self._lease.end()
        _tell_afterwards(self._links, "thaw", self._identity, self._lease.seconds)

    def cut(self) -> RemoteCut:
        """All servers as they are now."""
        request = {**self._identity, "seconds": self._lease.seconds}
        cut = RemoteCut(self._links, self._identity, self._lease)
        self._cut_named = True  # from here on the lease is the cut's
        try:
            named = on_all(self._links, lambda link: link.action("name_cut", request))
            self._compare(named)
            known = [set(map(str, answer["marks"])) for answer in named]
            cut.known = known[0].intersection(*known[1:])
        except BaseException:
            cut.close()
            raise
        return cut

    def _make_equal(self, answers: Sequence[Mapping[str, Any]]) -> None:
        # Only the first server may know who is left out: barriers are its business.
        self._over = {account for answer in answers for account in answer["over"]}
        accounts = [answer["accounts"] for answer in answers]
        furthest: dict[str, int] = {}
        for each in accounts:
            for account, (sequence, _) in each.items():
                furthest[account] = max(sequence, furthest.get(account, 0))
        for link, each in zip(self._links, accounts, strict=True):
            behind = {
                account: sequence
                for account, sequence in furthest.items()
                if account not in self._over and each.get(account, NEVER)[0] < sequence
            }
            if behind:
                request = {**self._identity, "accounts": behind, "patience": self._lease.seconds / 2}
                link.action("advance", request)

    def _compare(self, named: Sequence[Mapping[str, Any]]) -> None:
        """All servers have the same tables, and have applied the same steps."""
        for link, answer in zip(self._links, named, strict=True):
            for what in ("tables", "blocks"):
                if answer[what] != named[0][what]:
                    raise StoreError(
                        f"no checkpoint was written: {link} has the {what} {answer[what]}, {self._links[0]} has "
                        f"{named[0][what]}. A trainer is just making one; save again"
                    )
        for account in sorted({account for answer in named for account in answer["accounts"]}):
            counts = [answer["accounts"].get(account, NEVER) for answer in named]
            if all(count == counts[0] for count in counts):
                continue
            worker, each = account.split("/")[0], _per_server(self._links, counts)
            if account not in self._over:
                raise StoreError(
                    f"no checkpoint was written: the servers have not applied the same steps of worker {worker}: "
                    f"{each}. One of them has refused a step"
                )
            # A server that does not know the account may have forgotten it: servers keep those of some former lives.
            if NEVER not in counts and self._links[0].config.attempt is not None:
                raise StoreError(
                    f"no checkpoint was written: the last step of worker {worker} before it ended reached some servers "
                    f"only ({each}), and a job that heals must not go back to a part of a step"
                )
            if NEVER not in counts and account not in _told_uneven:
                _told_uneven.add(account)
                log.warning(
                    "the last step of worker %s before it ended reached some servers only (%s): the model holds a part "
                    "of that step",
                    worker,
                    each,
                )


NEVER = [0, 0]
"""Sequence of the last step and number of steps of an account that a server does not know."""
_told_uneven: set[str] = set()


def _per_server(links: Sequence[ServerLink], counts: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"{link} {count} up to number {last}" for link, (last, count) in zip(links, counts, strict=True))


class RemoteCut(StoreCut):
    """One moment of all servers, to be written while training goes on. Close it, written or not."""

    def __init__(self, links: Sequence[ServerLink], identity: Mapping[str, Any], lease: _Lease) -> None:
        self._links, self._identity, self._lease = links, identity, lease
        self.known: set[str] = set()
        """Checkpoints of which all servers know what has changed since."""
        self._closed = False

    def write(self, path: str, facts: RunFacts, *, drop_state: bool = False, since: str | None = None) -> Manifest:
        links, lease = self._links, self._lease
        before = None if drop_state or since not in self.known else _checksum_of(since)
        with begin(path) as draft:
            request = {
                **self._identity,
                "directory": str(draft.directory),
                "drop_state": drop_state,
                **({} if before is None else {"since": since}),
            }
            answers = on_all(links, lambda link: _finished(link, "write", request, lambda busy: lease.check()))
            files = [
                _file(entry, link) for link, answer in zip(links, answers, strict=True) for entry in answer["files"]
            ]
            files += write_buffers(draft.directory, facts.buffers)
            tables, blocks = (_merged_infos(links, answers, what) for what in ("tables", "blocks"))
            infos = [TableInfo(**table) for table in tables]
            blocks_there = [
                BlockInfo(**{**block, "layout": tuple((name, tuple(shape)) for name, shape in block["layout"])})
                for block in blocks
            ]
            base = None
            if before is not None and since is not None:
                rows = {info.name: sum(int(answer["rows"][info.name]) for answer in answers) for info in infos}
                base = Base(locate(since).name, before, rows)
            lease.check()
            manifest = manifest_of(facts, infos, blocks_there, files, servers=len(links), base=base)
            commit(draft, manifest)
        if not drop_state:  # else there is nothing that a run could be resumed from
            for link in links:
                link.saved.path = path
            saved = {**self._identity, "path": path, "directory": request["directory"]}
            _tell_afterwards(links, "saved", saved, lease.seconds)
        return manifest

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._lease.end()
            _tell_afterwards(self._links, "drop_cut", self._identity, self._lease.seconds)


def _checksum_of(path: str | None) -> str | None:
    """The sum over a checkpoint's manifest; None where nothing can stand on that checkpoint."""
    assert path is not None
    try:
        return checksum_of(Checkpoint.open(path).location / FILE_NAME)
    except CheckpointError as error:
        log.warning("the next cut is whole, for the last one cannot be built upon: %s", error)
        return None


class _Lease:
    """Renews the freeze, and then the cut, in the background."""

    def __init__(self, links: Sequence[ServerLink], identity: Mapping[str, Any]) -> None:
        self._links, self._identity = links, identity
        self.seconds = min(MAX_LEASE, *(link.config.timeout for link in links))
        self._stop, self._error = threading.Event(), list[StoreError]()
        self._thread = threading.Thread(target=self._renew, name="sparsefleet-lease", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """What is renewed afterwards is nobody's."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * self.seconds)

    def check(self) -> None:
        """Raise where it has run out."""
        if self._error:
            raise self._error[0]

    def _renew(self) -> None:
        request, renewed = {**self._identity, "seconds": self.seconds}, time.monotonic()
        while not self._stop.wait(self.seconds / 4):
            try:
                on_all(self._links, lambda link: link.action("renew", request, self.seconds / 4))
                renewed = time.monotonic()
            except StoreError as error:
                if time.monotonic() - renewed > 3 / 4 * self.seconds:  # no time for another try
                    self._error.append(error)
                    return


def _tell_afterwards(links: Sequence[ServerLink], action: str, request: Mapping[str, Any], seconds: float) -> None:
    """Tell all servers something that none of them need answer for the checkpoint's sake."""

    def tell(link: ServerLink) -> None:
        try:
            link.action(action, request, min(AFTERWARDS_SECONDS, seconds / 4))
        except StoreError as error:
            log.warning("after a save: %s; that server goes on by itself within %g s", error, seconds)

    on_all(links, tell)


def _file(entry: Mapping[str, Any], link: ServerLink) -> FileEntry:
    try:
        return file_entry(entry, str(link))
    except SparseFleetError as error:
        raise CheckpointError(f"{link} reported a file that cannot be: {error}") from error


def _merged_infos(links: Sequence[ServerLink], answers: Sequence[Mapping[str, Any]], what: str) -> list[dict[str, Any]]:
    """Tables or blocks as the checkpoint describes them: the same on all servers, but for lost steps."""
    merged = [dict(info) for info in answers[0][what]]
    for link, answer in zip(links, answers, strict=True):
        if [{**info, "step": 0} for info in answer[what]] != [{**info, "step": 0} for info in merged]:
            raise StoreError(f"no checkpoint was written: {link} has {answer[what]}, {links[0]} has {answers[0][what]}")
        for info, other in zip(merged, answer[what], strict=True):
            info["step"] = max(info["step"], other["step"])
    return merged


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
