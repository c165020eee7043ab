"""RemoteRounds: this trainer's part in the rounds of sync, which the servers gather."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sparsefleet.core.batch import F32, Mark
from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import Pending
from sparsefleet.store.norms import clip_factor
from sparsefleet.store.remote.callers import Message
from sparsefleet.store.remote.calls import Calls
from sparsefleet.store.remote.checkpoints import FrozenServers
from sparsefleet.store.remote.link import on_all
from sparsefleet.store.remote.packing import RowItem, WantedBlocks
from sparsefleet.store.rounds import Asked, Rounds
from sparsefleet.store.wire import Frame

T = TypeVar("T")
WAVE_BYTES = 64 << 10
"""Less is there before a receipt could be."""


class RemoteRounds(Rounds):
    in_one_message = True

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def push(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
        factor: float | None = None,
    ) -> Pending[int]:
        """The answer is the round's number. Servers sum the parts in the order of the trainers; one part a trainer."""
        wanted = self._calls.wanted(fresh)

        def number(frames: list[Frame]) -> int:
            found = _same_round(frames)
            wanted.fill(frames)
            return found

        messages = self._messages(sparse, dense, steps, marks, wanted, factor)
        return self._send("sync push", messages, number)

    def push_and_pull(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None,
        asked: Asked,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
        factor: float | None = None,
    ) -> Pending[list[dict[str, F32]]]:
        """One message per server."""
        wanted = self._calls.wanted(fresh)
        pulled = [self._calls.row_item(table, keys, None) for one in asked for table, keys in one.items()]

        def rows(frames: list[Frame]) -> list[dict[str, F32]]:
            _same_round(frames)
            found = iter(self._calls.rows_behind(frames, wanted, pulled))
            return [{table: next(found) for table in one} for one in asked]

        messages = self._messages(sparse, dense, steps, marks, wanted, factor, pulled)
        return self._send("sync push and pull", messages, rows)

    def _messages(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None,
        steps: int,
        marks: Sequence[Mark],
        wanted: WantedBlocks,
        factor: float | None,
        asked: Sequence[RowItem] = (),
    ) -> dict[int, Message]:
        items = self._calls.step_items(sparse, dense) if factor is None else []
        messages = self._calls.messages("sync", items, steps=steps, marks=marks, wanted=wanted, asked=asked)
        # With a factor, the servers hold the gradients since they were asked for their norm.
        return messages if factor is None else _with(messages, held=factor)

    def _send(self, operation: str, messages: Mapping[int, Message], finish: Callable[[list[Frame]], T]) -> Pending[T]:
        """In two waves where that pays: the first half of the servers get theirs before the others' is sent.

        Else all trainers send, then all servers answer, and a network stands idle in one direction or the other.
        So the first half's answers travel while the second half's messages do.
        """
        first = len(messages) // 2
        large = sum(len(body) for _, body, _ in list(messages.values())[:first]) >= WAVE_BYTES
        if not large or not self._calls.slow_network:
            return self._calls.send(operation, messages, finish)
        waves = {
            server: ({**header, "receipt": True} if place < first else header, body, answer)
            for place, (server, (header, body, answer)) in enumerate(messages.items())
        }
        return self._calls.send(operation, waves, finish, first)

    def clip_factor(
        self, sparse: Mapping[str, KeyedRows], dense: Mapping[str, F32] | None, max_norm: float
    ) -> Pending[float]:
        def factor(frames: list[Frame]) -> float:
            return clip_factor(math.fsum(float(frame.header["squares"]) for frame in frames), max_norm)

        messages = self._calls.messages("norm", self._calls.step_items(sparse, dense))
        return self._calls.send("norm of a sync push", _with(messages, clip_norm=max_norm), factor)

    def join(self) -> None:
        connection = self._calls.connection
        if not connection.late:
            for link in connection.links:
                link.action("join", connection.identity)
            return
        # The others are at work. All servers must take us in with the same round: while they are frozen, their open
        # rounds are the same one, and ours is the next.
        with FrozenServers(connection.links, connection.identity):
            on_all(connection.links, lambda link: link.action("join", {**connection.identity, "late": True}))
        connection.late = False

    def leave(self) -> None:
        """When all have left, everybody is in again. Those who come back do so together: `join`, then a barrier."""
        for link in self._calls.connection.links:
            link.action("leave", {**self._calls.connection.identity, "for_good": False})


def _same_round(frames: Sequence[Frame]) -> int:
    """The round that all servers have applied."""
    rounds = {frame.header.get("round") for frame in frames}
    if len(rounds) != 1:
        raise StoreError(f"servers are at different rounds: {sorted(map(str, rounds))}; trainers must join together")
    return int(rounds.pop() or 0)


def _with(messages: Mapping[int, Message], **more: float) -> dict[int, Message]:
    """The messages with more in their headers."""
    return {server: ({**header, **more}, body, answer) for server, (header, body, answer) in messages.items()}
