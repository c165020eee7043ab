"""RemoteRounds: this trainer's part in the rounds of sync, which the servers gather."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sparsefleet.core.batch import F32, Mark
from sparsefleet.core.errors import StoreError
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import Pending
from sparsefleet.store.norms import clip_factor
from sparsefleet.store.remote.callers import Message
from sparsefleet.store.remote.calls import Calls
from sparsefleet.store.remote.checkpoints import FrozenServers
from sparsefleet.store.remote.link import on_all
from sparsefleet.store.rounds import Rounds
from sparsefleet.store.wire import Frame


class RemoteRounds(Rounds):
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
            rounds = {frame.header.get("round") for frame in frames}
            if len(rounds) != 1:
                raise StoreError(
                    f"servers are at different rounds: {sorted(map(str, rounds))}; trainers must join together"
                )
            wanted.fill(frames)
            return int(rounds.pop() or 0)

        items = self._calls.step_items(sparse, dense) if factor is None else []
        messages = self._calls.messages("sync", items, steps=steps, marks=marks, wanted=wanted)
        if factor is not None:  # the servers hold the gradients since they were asked for their norm
            messages = {
                server: ({**header, "held": factor}, body, answer)
                for server, (header, body, answer) in messages.items()
            }
        return self._calls.send("sync push", messages, number)

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


def _with(messages: Mapping[int, Message], **more: float) -> dict[int, Message]:
    """The messages with more in their headers."""
    return {server: ({**header, **more}, body, answer) for server, (header, body, answer) in messages.items()}
