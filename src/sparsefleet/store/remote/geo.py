"""RemoteGeo: exchanges of differences with the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, U64, Mark
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import OneOf, Pending
from sparsefleet.store.geo import GeoAnswer, GeoStore
from sparsefleet.store.remote.calls import Calls
from sparsefleet.store.remote.packing import DenseItem, Item
from sparsefleet.store.wire import Frame, read_parts


class RemoteGeo(GeoStore):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def begins_empty(self) -> bool:
        servers = self._stats()
        return not self._calls.has_sent and not any(stats["loaded"] or stats["used_before"] for stats in servers)

    def loads(self) -> int:
        return sum(int(stats["loads"]) for stats in self._stats())

    def _stats(self) -> list[dict[str, Any]]:
        return [link.action("stats", {}) for link in self._calls.connection.links]

    def pull(self, table: str, keys: U64) -> Pending[F32]:
        rows = self._calls.pull({table: keys}, {"op": "pull", "create": True, "subscribe": True})
        return OneOf(rows, table)

    def exchange(
        self,
        sparse: Mapping[str, KeyedRows],
        dense: Mapping[str, F32] | None = None,
        marks: Sequence[Mark] = (),
    ) -> Pending[GeoAnswer]:
        items = self._calls.step_items(sparse, dense)
        extra = 4 * sum(item.values.size for item in items if item.values is not None)

        def answer(frames: list[Frame]) -> GeoAnswer:
            return _geo_answer(items, [read_parts(frame.header, frame.body) for frame in frames])

        messages = self._calls.messages("geo", items, marks=marks, answer_bytes=extra)
        return self._calls.send("geo exchange", messages, answer)


def _geo_answer(items: Sequence[Item], answers: Sequence[Any]) -> GeoAnswer:
    """Servers answer per item: a block's values, a table's changed rows."""
    changed: dict[str, KeyedRows] = {}
    dense: dict[str, F32] = {}
    cursors = [iter(parts) for parts in answers]
    for item in items:
        if isinstance(item, DenseItem):
            dense[item.block.name] = np.concatenate([next(cursor).floats for cursor in cursors])
            continue
        news = [next(cursor) for cursor in cursors]
        changed[item.name] = KeyedRows(
            np.concatenate([part.keys for part in news]), np.concatenate([part.rows(item.dim) for part in news])
        )
    return GeoAnswer(changed, dense)
