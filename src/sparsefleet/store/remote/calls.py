"""Calls: tables and blocks as a client knows them, and calls on them: split over the servers, sent, joined.

Legend: U keys of a call, D values a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import U32, KeyedRows
from sparsefleet.core.leases import to_progress
from sparsefleet.store.base import Pending
from sparsefleet.store.remote.callers import Joined, Message
from sparsefleet.store.remote.connection import Connection
from sparsefleet.store.remote.packing import (
    NOTHING,
    Block,
    DenseItem,
    Item,
    RowItem,
    WantedBlocks,
    floats_there,
    joined_rows,
    pack,
)
from sparsefleet.store.wire import Frame
from sparsefleet.store.wire.coarse import ENCODINGS, EXACT
from sparsefleet.store.wire.frames import Bytes
from sparsefleet.table.spec import TableSpec

T = TypeVar("T")


class Calls:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.servers = len(connection.links)
        self.specs: dict[str, TableSpec] = {}
        self.blocks: dict[str, Block] = {}
        self.has_sent = False
        """Whether this trainer has changed anything on the servers."""
        self.encoding = ENCODINGS[connection.config.dense_wire]
        """How gradients and fresh values of dense blocks travel with a step."""
        self._coarse = {} if self.encoding is EXACT else {"dense": self.encoding.name}

    @property
    def slow_network(self) -> bool:
        """Whether a network is what a step waits for: who says so lets dense parameters travel in fewer bits."""
        return self.encoding is not EXACT and not self.connection.callers.mine().shares_memory(0)

    def send(
        self, operation: str, messages: Mapping[int, Message], finish: Callable[[list[Frame]], T], first: int = 0
    ) -> Pending[T]:
        """Send each server its message; `finish` makes the result of the answers, in the servers' order.

        first: how many messages are to arrive before the others are sent.
        """
        calls = self.connection.callers.mine().send(operation, messages, first) if messages else []
        return Joined(calls, finish, self.connection.config.timeout)

    def room(self, server: int, size: int) -> Bytes:
        return self.connection.callers.mine().room(server, size)

    def pull(self, asked: Mapping[str, U64], header: Mapping[str, Any]) -> Pending[dict[str, F32]]:
        """The rows of all these tables, in one message to each server that has some of them."""
        items = [self.row_item(table, keys, None) for table, keys in asked.items()]
        messages: dict[int, Message] = {}
        for server in range(self.servers):
            floats = floats_there(items, server)
            if floats:
                described, body = pack(items, server, self.room)
                messages[server] = ({**header, "parts": described}, body, 4 * floats)

        def rows(frames: list[Frame]) -> dict[str, F32]:
            return dict(zip(asked, joined_rows(items, dict(zip(messages, frames, strict=True))), strict=True))

        return self.send(f"pull from {named(asked)}", messages, rows)

    def messages(
        self,
        op: str,
        items: Sequence[Item],
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        answer_bytes: int = 0,
        wanted: WantedBlocks = NOTHING,
        asked: Sequence[RowItem] = (),
    ) -> dict[int, Message]:
        """A message to every server that changes what it holds. `asked`: rows to come with a push's answer."""
        self.has_sent = True
        also: dict[str, Any] = {}
        if asked:
            items, also = [*items, *asked], {"pulls": len(asked)}
        messages: dict[int, Message] = {}
        for server in range(self.servers):
            described, body = pack(items, server, self.room)
            header = {"op": op, "parts": described, "steps": steps, **also, **self._coarse, **wanted.header(server)}
            if marks and server == 0:  # who holds the leases
                header["marks"] = to_progress(marks)
            rows = 4 * floats_there(asked, server)
            messages[server] = (header, body, answer_bytes + wanted.bytes_of(server) + rows)
        return messages

    def rows_behind(self, frames: Sequence[Frame], wanted: WantedBlocks, asked: Sequence[RowItem]) -> list[F32]:
        """Of answers to such messages: fill the wanted blocks, and return the rows that were asked for."""
        ends = [frame.body.nbytes - 4 * floats_there(asked, server) for server, frame in enumerate(frames)]
        if min(ends) < 0:
            raise StoreError(f"an answer to a push and a pull from {named(item.name for item in asked)} lacks its rows")
        wanted.fill([Frame(frame.header, frame.body[:end]) for frame, end in zip(frames, ends, strict=True)])
        rows = [Frame(frame.header, frame.body[end:]) for frame, end in zip(frames, ends, strict=True)]
        return joined_rows(asked, dict(enumerate(rows)))

    def step_items(self, sparse: Mapping[str, KeyedRows], dense: Mapping[str, F32] | None) -> list[Item]:
        items: list[Item] = [self.row_item(table, rows.keys, rows.rows, rows.counts) for table, rows in sparse.items()]
        for name, gradients in (dense or {}).items():
            block = self.block(name)
            rest = self.connection.callers.mine().memory.rest(block) if self.encoding.differences else None
            items.append(DenseItem(block, block.checked("gradients", gradients), self.encoding, rest))
        return items

    def row_item(self, table: str, keys: U64, values: F32 | None, counts: U32 | None = None) -> RowItem:
        spec = self.specs.get(table)
        if spec is None:
            known = ", ".join(self.specs) or "none"
            raise StoreError(f"there is no table {table!r}; there are: {known} (create_table makes one)")
        return RowItem.of(spec.name, spec.dim, keys, values, self.servers, counts)

    def block(self, name: str) -> Block:
        try:
            return self.blocks[name]
        except KeyError:
            known = ", ".join(self.blocks) or "none"
            raise StoreError(f"there is no dense block {name!r}; there are: {known} (create_dense makes one)") from None

    def wanted(self, fresh: Mapping[str, F32] | None) -> WantedBlocks:
        blocks = [(self.block(name), out) for name, out in (fresh or {}).items()]
        for block, out in blocks:
            block.checked("out", out)
        if self.encoding is EXACT or not blocks:
            return WantedBlocks(blocks)
        return WantedBlocks(blocks, self.encoding, self.connection.callers.mine().memory)


def named(tables: Iterable[str]) -> str:
    return ", ".join(map(repr, tables))
