"""RemoteStore: parameters on N servers, over Arrow Flight. The same contract as LocalStore.

A call is split over the servers, sent at once, and joined when waited for. After a cut connection, calls that were not
answered are sent again: pushes count once, and a repeated pull may see later pushes of the same caller, never fewer.
Besides the contract there are calls that only servers can answer: `push_step` (a whole step in one message),
`sync_push`, `geo_pull`, `geo_exchange`, `reduce`.

Legend: U keys of a call, D values a row, N servers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import Disagreement, StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store import remote_saving
from sparsefleet.store.base import CutMember, FactsOfAll, GeoAnswer, Layout, ParameterStore, Pending, RunFacts
from sparsefleet.store.remote_config import RemoteConfig
from sparsefleet.store.remote_control import Heartbeats, Meetings
from sparsefleet.store.remote_cut import Watch, open_cut
from sparsefleet.store.remote_lane import Joined, Lanes, Message
from sparsefleet.store.remote_link import Saved, ServerLink, on_all
from sparsefleet.store.remote_pack import NOTHING, Block, DenseItem, Item, RowItem, WantedBlocks, floats_of, pack
from sparsefleet.store.wire import Frame, Letter, read_parts
from sparsefleet.store.wire.arrays import read_arrays
from sparsefleet.store.wire.frames import EMPTY, Bytes
from sparsefleet.table.spec import TableSpec

T = TypeVar("T")

LETTER_BYTES = 4 << 20
"""About as much as a letter carries."""
GOOD_BYE_SECONDS = 2.0


class RemoteStore(ParameterStore):
    holds_pushes = True

    def __init__(self, config: RemoteConfig) -> None:
        """Connect to all servers, waiting for those that are not up yet, and register this trainer."""
        self.config = config
        self.incarnation = uuid.uuid4().hex
        self._specs: dict[str, TableSpec] = {}
        self._blocks: dict[str, Block] = {}
        saved = Saved()
        self._links = [ServerLink(config, index, saved) for index in range(len(config.endpoints))]
        identity = {"worker": config.worker, "incarnation": self.incarnation}
        self._register(identity)
        self._lanes = Lanes(self._links, identity, config.timeout)
        self._heartbeats = Heartbeats(self._links, identity, config.heartbeat)
        for link in self._links:
            link.check_all = self._heartbeats.check
        self._meetings = Meetings(self._links[0], identity, self._heartbeats.check)
        self._watch: Watch | None = None
        self._closed = False
        self.given_up = False
        """`give_up` was called: to the servers this trainer is lost."""
        self._has_sent = False

    @property
    def servers(self) -> int:
        return len(self._links)

    # --- making tables and blocks

    def create_table(self, spec: TableSpec) -> None:
        known = self._specs.get(spec.name)
        if known is not None:
            known.check_same(spec)
        remote_saving.create_table(self._links, spec)
        self._specs[spec.name] = spec

    def start_buffers(self) -> dict[str, npt.NDArray[Any]]:
        def arrays(frames: list[Frame]) -> dict[str, npt.NDArray[Any]]:
            return read_arrays(frames[0].header.get("arrays"), frames[0].body.copy())

        return self._send("buffers of the start", {0: ({"op": "start_buffers"}, EMPTY, LETTER_BYTES)}, arrays).wait()

    def create_dense(self, name: str, values: F32, rule: UpdateRule, layout: Layout) -> None:
        """The first trainer that reaches server 0 makes the block on all servers; the others take its values."""
        block = Block(name, len(values), self.servers)
        header = {
            "op": "create_dense",
            "rule": rule.to_dict(),
            "size": len(values),
            "layout": [[parameter, list(shape)] for parameter, shape in layout],
        }
        item = DenseItem(block, block.checked("values", values))
        created = False
        for server in range(self.servers):
            described, body = pack([item], server, self._room)
            message = {**header, "parts": described, "create": created or server == 0}
            calls = self._lanes.mine().send(f"create_dense {name!r}", {server: (message, body, len(body))})
            frame = calls[0].wait(self.config.timeout)
            start, stop = block.cut(server)
            values[start:stop] = floats_of(frame, stop - start)
            created = created or (server == 0 and frame.header.get("created") is True)
        self._blocks[name] = block

    # --- the contract's calls

    def pull(self, table: str, keys: U64, *, create: bool = True) -> Pending[F32]:
        return self._pull(table, keys, {"op": "pull", "create": create})

    def push(self, table: str, keys: U64, grads: F32) -> Pending[None]:
        return self._push(f"push to {table!r}", [self._row_item(table, keys, grads)])

    def pull_dense(self, name: str, out: F32) -> Pending[None]:
        wanted = self._wanted({name: out})
        messages: dict[int, Message] = {}
        for server in range(self.servers):
            described, body = pack([DenseItem(self._block(name), None)], server, self._room)
            messages[server] = ({"op": "pull", "parts": described}, body, wanted.bytes_of(server))
        return self._send(f"pull of dense block {name!r}", messages, wanted.fill)

    def push_dense(self, name: str, grads: F32) -> Pending[None]:
        return self._push(f"push to dense block {name!r}", [self._dense_item(name, grads)])

    def barrier(self, name: str, timeout: float | None = None) -> None:
        self._meetings.meet("barrier", name, None, self._seconds(timeout))

    def save(self, path: str, facts: RunFacts, *, drop_state: bool = False) -> None:
        remote_saving.save(self._links, path, lambda: facts, self.incarnation, drop_state=drop_state)

    def save_together(self, path: str, member: CutMember, facts: FactsOfAll, *, drop_state: bool = False) -> None:
        """All trainers send what they keep back; servers freeze; all say where they stand; servers write."""
        watch = self._watch

        def facts_now() -> RunFacts:
            reports, steps = cut.ask("report")
            mine = member.report(None if watch is None else watch.run_steps(steps))
            return facts({**reports, self.config.worker: mine})

        with open_cut(self._links[0], self._identity()) as cut:
            try:
                cut.ask("pause", meanwhile=member.pause)
                remote_saving.save(self._links, path, facts_now, self.incarnation, drop_state=drop_state)
            finally:
                member.resume()

    @contextlib.contextmanager
    def attending(self, member: CutMember) -> Iterator[None]:
        watch = Watch(self._links[0], self._identity(), member)
        watch.start()
        self._watch = watch
        try:
            yield
            watch.end(member.report(None))
        except BaseException:
            watch.abandon()
            raise
        finally:
            self._watch = None

    def first_trainer(self) -> int:
        return self._heartbeats.first

    def load(self, path: str, *, values_only: bool = False) -> RunFacts:
        return remote_saving.load(self._links, path, values_only=values_only)

    def stats(self) -> dict[str, Any]:
        """Sums over the servers, and under `servers` what each of them says."""
        return remote_saving.merged_stats([link.action("stats", {}) for link in self._links])

    def close(self) -> None:
        """Say good-bye to the servers, so that nobody waits for this trainer; after `give_up` it counts as lost."""
        if self._closed:
            return
        self._closed = True
        self._heartbeats.stop()
        self._lanes.close()
        if not self.given_up:
            self._say_good_bye(self._links, {})
        for link in self._links:
            link.client.close()

    # --- calls that only servers can answer

    def push_step(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        fresh: Mapping[str, F32] | None = None,
    ) -> Pending[None]:
        """Apply a step's gradients of several tables and blocks, one message per server."""
        return self._push("push of a step", self._step_items(sparse, dense), steps, fresh)

    def sync_push(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        fresh: Mapping[str, F32] | None = None,
    ) -> Pending[int]:
        """Hand in this trainer's part of the present round; the answer, the round's number, comes when it is applied.

        Servers sum the parts of all trainers, in their order, and make one step of every rule. One part per trainer.
        """
        wanted = self._wanted(fresh)

        def number(frames: list[Frame]) -> int:
            rounds = {frame.header.get("round") for frame in frames}
            if len(rounds) != 1:
                raise StoreError(
                    f"servers are at different rounds: {sorted(map(str, rounds))}; trainers must join together"
                )
            wanted.fill(frames)
            return int(rounds.pop() or 0)

        messages = self._messages("sync", self._step_items(sparse, dense), steps=steps, wanted=wanted)
        return self._send("sync push", messages, number)

    def leave_rounds(self) -> None:
        """This trainer has no more rows: rounds go on without it until all have left; then everybody is in again.

        Those who come back do so together: `join_rounds`, then a barrier before the first push.
        """
        for link in self._links:
            link.action("leave", {**self._identity(), "for_good": False})

    def join_rounds(self) -> None:
        for link in self._links:
            link.action("join", self._identity())

    def lost_trainers(self) -> list[str]:
        return list(self._links[0].action("stats", {})["lost"])

    def not_begun(self) -> list[int]:
        return list(self._links[0].action("stats", {})["not_begun"])

    def begins_empty(self) -> bool:
        return not self._has_sent and not any(link.action("stats", {})["loaded"] for link in self._links)

    def geo_pull(self, table: str, keys: U64) -> Pending[F32]:
        """Rows as `pull` gives them; from now on this trainer is told when others change them."""
        return self._pull(table, keys, {"op": "pull", "create": True, "subscribe": True})

    def geo_exchange(
        self, sparse: Mapping[str, KeyedRows], dense: Mapping[str, F32] | None = None
    ) -> Pending[GeoAnswer]:
        """Add deltas to rows and blocks, and bring back what others have changed."""
        items = self._step_items(sparse, dense)
        extra = 4 * sum(item.values.size for item in items if item.values is not None)

        def answer(frames: list[Frame]) -> GeoAnswer:
            return _geo_answer(items, [read_parts(frame.header, frame.body) for frame in frames])

        return self._send("geo exchange", self._messages("geo", items, answer_bytes=extra), answer)

    def reduce(self, name: str, payload: Mapping[str, Any], timeout: float | None = None) -> list[Any]:
        """Every trainer hands in plain data under this name; all get everyone's, in the order of the trainers."""
        return self._meetings.meet("reduce", name, payload, self._seconds(timeout))

    def send_letter(self, box: str, to: int, body: Bytes, *, last: bool = False) -> Pending[None]:
        """Leave bytes for another trainer to take; the answer comes when a server has them."""

        def nothing(frames: list[Frame]) -> None:
            return None

        header = {"op": "put_letter", "box": box, "to": to, "last": last}
        return self._send(f"letter to worker {to}", {to % self.servers: (header, body, 0)}, nothing)

    def take_letter(self, box: str, number: int, expected: Sequence[int]) -> Letter | None:
        """This trainer's letter `number` (from 0) of a box, or None where it has not come within a second.

        expected: the trainers that still have letters for us; one that is lost is an error.
        """
        header = {"op": "take_letter", "box": box, "number": number, "expected": list(expected)}

        def letter(frames: list[Frame]) -> Letter | None:
            (frame,) = frames
            if "sender" not in frame.header:
                return None
            return Letter(int(frame.header["sender"]), frame.header.get("last") is True, frame.body.copy())

        server = self.config.worker % self.servers
        return self._send(f"letters of {box!r}", {server: (header, EMPTY, LETTER_BYTES)}, letter).wait()

    def report(self, status: Mapping[str, Any]) -> None:
        """What `stats` shows of this trainer from the next heartbeat on: step, rows_per_s, staleness, …"""
        self._heartbeats.status = dict(status)

    def give_up(self, error: BaseException | None) -> None:
        """No more signs of life, and word to the servers why.

        So a script may end with `stop_worker` whatever happens, and is not taken for one that has run out of rows.
        """
        if self.given_up or self._closed:
            return
        self.given_up = True
        self._heartbeats.silence()
        self._say_good_bye(
            self._links,
            {
                "failed": "it ended without fleet.stop_worker()" if error is None else _reason(error),
                "own_error": error is not None and _is_own(error),
                "no_error": error is None,
            },
        )

    def _say_good_bye(self, links: Sequence[ServerLink], how: Mapping[str, Any]) -> None:
        request = {**self._identity(), "for_good": True, **how}

        def part_from(link: ServerLink) -> None:
            with contextlib.suppress(StoreError):  # a server that is gone needs no good-bye
                link.action("leave", request, min(GOOD_BYE_SECONDS, self.config.timeout / 4))

        on_all(links, part_from)

    def stop_servers(self) -> None:
        """This trainer is done; servers end when all are."""
        if self.given_up:
            return
        for link in self._links:
            link.action("stop", self._identity())

    # --- inside

    def _register(self, identity: Mapping[str, Any]) -> None:
        """At all servers or, after an error, at none: our number must be free for another try."""
        about, registered = f"process {os.getpid()} on {socket.gethostname()}", list[ServerLink]()
        try:
            # The servers that are up hear of us while we wait for the others: or they would take us for dead.
            with contextlib.ExitStack() as heartbeats:
                for link in self._links:
                    link.register(self.incarnation, about)
                    registered.append(link)
                    heartbeats.callback(Heartbeats([link], identity, self.config.heartbeat).stop)
        except BaseException as error:
            self._say_good_bye(registered, {"failed": _reason(error)})
            for link in self._links:
                link.client.close()
            raise

    def _identity(self) -> dict[str, Any]:
        return {"worker": self.config.worker, "incarnation": self.incarnation}

    def _seconds(self, timeout: float | None) -> float | None:
        if timeout is not None and timeout <= 0:
            raise StoreError(f"timeout={timeout} must be above 0 seconds")
        return timeout

    def _spec(self, table: str) -> TableSpec:
        try:
            return self._specs[table]
        except KeyError:
            known = ", ".join(self._specs) or "none"
            raise StoreError(f"there is no table {table!r}; there are: {known} (create_table makes one)") from None

    def _block(self, name: str) -> Block:
        try:
            return self._blocks[name]
        except KeyError:
            known = ", ".join(self._blocks) or "none"
            raise StoreError(f"there is no dense block {name!r}; there are: {known} (create_dense makes one)") from None

    def _row_item(self, table: str, keys: U64, values: F32 | None) -> RowItem:
        spec = self._spec(table)
        return RowItem.of(spec.name, spec.dim, keys, values, self.servers)

    def _dense_item(self, name: str, values: F32) -> DenseItem:
        block = self._block(name)
        return DenseItem(block, block.checked("gradients", values))

    def _step_items(self, sparse: Mapping[str, KeyedRows], dense: Mapping[str, F32] | None) -> list[Item]:
        items: list[Item] = [self._row_item(table, rows.keys, rows.rows) for table, rows in sparse.items()]
        return items + [self._dense_item(name, grads) for name, grads in (dense or {}).items()]

    def _wanted(self, fresh: Mapping[str, F32] | None) -> WantedBlocks:
        blocks = [(self._block(name), out) for name, out in (fresh or {}).items()]
        for block, out in blocks:
            block.checked("out", out)
        return WantedBlocks(blocks)

    def _messages(
        self, op: str, items: Sequence[Item], *, steps: int = 0, answer_bytes: int = 0, wanted: WantedBlocks = NOTHING
    ) -> dict[int, Message]:
        self._has_sent = True
        messages: dict[int, Message] = {}
        for server in range(self.servers):
            described, body = pack(items, server, self._room)
            header = {"op": op, "parts": described, "steps": steps, **wanted.header}
            messages[server] = (header, body, answer_bytes + wanted.bytes_of(server))
        return messages

    def _room(self, server: int, size: int) -> Bytes:
        return self._lanes.mine().room(server, size)

    def _pull(self, table: str, keys: U64, header: Mapping[str, Any]) -> Pending[F32]:
        item = self._row_item(table, keys, None)
        messages: dict[int, Message] = {}
        for server, count in enumerate(item.split.counts):
            if count:
                described, body = pack([item], server, self._room)
                messages[server] = ({**header, "parts": described}, body, 4 * count * item.dim)

        def rows(frames: list[Frame]) -> F32:
            out = np.empty((len(item.keys), item.dim), np.float32)
            for server, frame in zip(messages, frames, strict=True):
                count = item.split.counts[server]
                out[item.split.places(server)] = floats_of(frame, count * item.dim).reshape(count, item.dim)
            return out

        return self._send(f"pull from {table!r}", messages, rows)

    def _push(
        self, operation: str, items: Sequence[Item], steps: int = 0, fresh: Mapping[str, F32] | None = None
    ) -> Pending[None]:
        wanted = self._wanted(fresh)
        return self._send(operation, self._messages("push", items, steps=steps, wanted=wanted), wanted.fill)

    def _send(self, operation: str, messages: Mapping[int, Message], finish: Callable[[list[Frame]], T]) -> Pending[T]:
        calls = self._lanes.mine().send(operation, messages) if messages else []
        return Joined(calls, finish, self.config.timeout)


def _is_own(error: BaseException) -> bool:
    """Whether the error is this trainer's own, not that it was interrupted or cut off."""
    return isinstance(error, Disagreement) or not isinstance(error, StoreError | KeyboardInterrupt)


def _reason(error: BaseException) -> str:
    return f"exit status {error.code}" if isinstance(error, SystemExit) else str(error) or type(error).__name__


def _geo_answer(items: Sequence[Item], answers: Sequence[Any]) -> GeoAnswer:
    """Servers answer per item: the values of what was sent, and for tables then the changed rows."""
    sent: dict[str, F32] = {}
    changed: dict[str, KeyedRows] = {}
    dense: dict[str, F32] = {}
    cursors = [iter(parts) for parts in answers]
    for item in items:
        if isinstance(item, DenseItem):
            dense[item.block.name] = np.concatenate([next(cursor).floats for cursor in cursors])
            continue
        values = np.empty((len(item.keys), item.dim), np.float32)
        for server, cursor in enumerate(cursors):
            count = item.split.counts[server]
            values[item.split.places(server)] = next(cursor).floats.reshape(count, item.dim)
        news = [next(cursor) for cursor in cursors]
        sent[item.name] = values
        changed[item.name] = KeyedRows(
            np.concatenate([part.keys for part in news]), np.concatenate([part.rows(item.dim) for part in news])
        )
    return GeoAnswer(sent, changed, dense)


__all__ = ["GeoAnswer", "RemoteConfig", "RemoteStore"]
