"""RemoteStore: parameters on N servers, over Arrow Flight. The same contract as LocalStore.

A call is split over the servers, sent at once, and joined when waited for. After a cut connection, calls that were not
answered are sent again: pushes count once, and a repeated pull may see later pushes of the same caller, never fewer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy.typing as npt

from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import Layout, OneOf, ParameterStore, Pending, RunFacts
from sparsefleet.store.remote import checkpoints
from sparsefleet.store.remote.callers import Message
from sparsefleet.store.remote.calls import Calls, named
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.connection import Connection
from sparsefleet.store.remote.crew import LETTER_BYTES, RemoteCrew
from sparsefleet.store.remote.geo import RemoteGeo
from sparsefleet.store.remote.link import on_all
from sparsefleet.store.remote.packing import Block, DenseItem, floats_of, pack
from sparsefleet.store.remote.rounds import RemoteRounds
from sparsefleet.store.wire import Frame
from sparsefleet.store.wire.arrays import read_arrays
from sparsefleet.store.wire.frames import EMPTY
from sparsefleet.table.spec import TableSpec


class RemoteStore(ParameterStore):
    holds_pushes = True

    def __init__(self, config: RemoteConfig, why: str | None = None) -> None:
        """Connect to all servers, waiting for those that are not up yet, and register this trainer.

        why: in a job that heals, what ended this trainer's part in the attempt before.
        """
        self.connection = Connection(config, why)
        self.config = self.connection.config
        self._links = self.connection.links
        self._calls = Calls(self.connection)
        self.crew = RemoteCrew(self._calls)
        """The other trainers on these servers."""
        self._rounds, self._geo = RemoteRounds(self._calls), RemoteGeo(self._calls)
        self._frozen: checkpoints.FrozenServers | None = None

    @property
    def servers(self) -> int:
        return len(self._links)

    @property
    def rounds(self) -> RemoteRounds:
        return self._rounds

    @property
    def geo(self) -> RemoteGeo:
        return self._geo

    # --- making tables and blocks

    def create_table(self, spec: TableSpec) -> None:
        known = self._calls.specs.get(spec.name)
        if known is not None:
            known.check_same(spec)
        checkpoints.create_table(self._links, self.connection.identity, spec)
        self._calls.specs[spec.name] = spec

    def start_buffers(self) -> dict[str, npt.NDArray[Any]]:
        def arrays(frames: list[Frame]) -> dict[str, npt.NDArray[Any]]:
            return read_arrays(frames[0].header.get("arrays"), frames[0].body.copy())

        message: Message = ({"op": "start_buffers"}, EMPTY, LETTER_BYTES)
        return self._calls.send("buffers of the start", {0: message}, arrays).wait()

    def start_samples(self) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        def samples(frames: list[Frame]) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
            schema = frames[0].body.tobytes()
            return frames[0].header.get("inputs"), json.loads(schema) if schema else None

        message: Message = ({"op": "start_inputs"}, EMPTY, LETTER_BYTES)
        return self._calls.send("inputs of the start", {0: message}, samples).wait()

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
            described, body = pack([item], server, self._calls.room)
            message = {**header, "parts": described, "create": created or server == 0}
            sent = self.connection.callers.mine().send(f"create_dense {name!r}", {server: (message, body, len(body))})
            frame = sent[0].wait(self.config.timeout)
            start, stop = block.cut(server)
            values[start:stop] = floats_of(frame, stop - start)
            created = created or (server == 0 and frame.header.get("created") is True)
        self._calls.blocks[name] = block

    # --- moving parameters

    def pull(self, table: str, keys: U64, *, create: bool = True) -> Pending[F32]:
        return OneOf(self._calls.pull({table: keys}, {"op": "pull", "create": create}), table)

    def pull_all(self, asked: Mapping[str, U64]) -> Pending[dict[str, F32]]:
        """One message per server."""
        return self._calls.pull(asked, {"op": "pull", "create": True})

    def pull_dense(self, name: str, out: F32) -> Pending[None]:
        wanted = self._calls.wanted({name: out})
        item = DenseItem(self._calls.block(name), None)
        messages: dict[int, Message] = {}
        for server in range(self.servers):
            described, body = pack([item], server, self._calls.room)
            messages[server] = ({"op": "pull", "parts": described}, body, wanted.bytes_of(server))
        return self._calls.send(f"pull of dense block {name!r}", messages, wanted.fill)

    def push_step(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
    ) -> Pending[None]:
        """One message per server."""
        wanted = self._calls.wanted(fresh)
        messages = self._calls.messages(
            "push", self._calls.step_items(sparse, dense), steps=steps, marks=marks, wanted=wanted
        )
        return self._calls.send("push of a step", messages, wanted.fill)

    def push_and_pull(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None,
        asked: Mapping[str, U64],
        *,
        steps: int = 0,
        marks: Sequence[Mark] = (),
        fresh: Mapping[str, F32] | None = None,
    ) -> Pending[dict[str, F32]]:
        """One message per server."""
        calls = self._calls
        wanted, pulled = calls.wanted(fresh), [calls.row_item(table, keys, None) for table, keys in asked.items()]
        items = calls.step_items(sparse, dense)
        messages = calls.messages("push", items, steps=steps, marks=marks, wanted=wanted, asked=pulled)

        def rows(frames: list[Frame]) -> dict[str, F32]:
            return dict(zip(asked, calls.rows_behind(frames, wanted, pulled), strict=True))

        return calls.send(f"push of a step, and pull from {named(asked)}", messages, rows)

    # --- checkpoints

    def hold(self) -> AbstractContextManager[object]:
        self._frozen = checkpoints.FrozenServers(self._links, self.connection.identity)
        return self._frozen

    def cut(self) -> checkpoints.RemoteCut:
        assert self._frozen is not None, "a cut is named inside hold()"
        return self._frozen.cut()

    def load(self, path: str, *, values_only: bool = False, partial: bool = False) -> RunFacts:
        identity = self.connection.identity
        return checkpoints.load(self._links, identity, path, values_only=values_only, partial=partial)

    def lower_rates(self, factor: float) -> None:
        on_all(
            self._links,
            lambda link: link.action(
                "lower_rates", {**self.connection.identity, "factor": factor}, self.config.timeout
            ),
        )

    def stats(self) -> dict[str, Any]:
        """Sums over the servers, and under `servers` what each of them says."""
        return checkpoints.merged_stats([link.action("stats", {}) for link in self._links])

    def close(self) -> None:
        self.connection.close()
