"""Plain twins of `serving.kernels.tower`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.export.kernels.reference.bundle_rows import lookup_rows
from sparsefleet.kernels.reference.rows import pool_forward, select_slots, unique_keys
from sparsefleet.serving.kernels.request import PlainRequests
from sparsefleet.serving.kernels.tower import BodiesScored, MappedTable


class ServedTower:
    """Equal to the native one but for the last bits: sums are made in another order."""

    def __init__(self, weights: Sequence[F32], biases: Sequence[F32], column: int) -> None:
        self._weights, self._biases, self._column = weights, biases, column
        self.width = weights[0].shape[1]

    def probabilities(self, x: F32) -> F32:
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            x = np.maximum(x @ weight.T + bias, np.float32(0))  # NaN stays NaN
        logits = x @ self._weights[-1].T + self._biases[-1]
        z = logits[:, 0] if logits.shape[1] == 1 else logits[:, self._column] - logits[:, 1 - self._column]
        small = np.exp(-np.abs(z))
        found: F32 = np.where(z < 0, small, np.float32(1)) / (1 + small)
        return found


class MappedNetwork:
    def __init__(
        self, tower: ServedTower, tables: Sequence[MappedTable], slots: int, dense: int, dense_column: int
    ) -> None:
        self._tower, self._tables, self._slots, self._at = (
            tower,
            tables,
            slots,
            slice(dense_column, dense_column + dense),
        )

    def score(self, keys: U64, offsets: I64, dense: F32) -> tuple[F32, int, int]:
        x = np.empty((len(dense), self._tower.width), np.float32)
        x[:, self._at] = dense
        asked = missed = 0
        for data, layout, chosen, embeddings in self._tables:
            bag_keys, bags, slots = keys, offsets, self._slots
            if chosen:
                bag_keys, bags = select_slots(keys, offsets, slots, np.array(chosen, np.int32))
                slots = len(chosen)
            unique, inverse = unique_keys(bag_keys)
            rows, found = lookup_rows(data, layout, unique)
            asked, missed = asked + len(unique), missed + int(np.count_nonzero(~found))
            for places, mean, column in embeddings:
                pooled = x[:, column : column + len(places) * layout.dim]
                pool_forward(rows, inverse, bags, slots, np.array(places, np.int32), mean, pooled)
        return self._tower.probabilities(x), asked, missed

    def score_bodies(self, requests: PlainRequests, bodies: Sequence[bytes], most: Sequence[int]) -> BodiesScored:
        found: list[F32 | None] = [None for _ in bodies]
        plain = []
        for at, (body, limit) in enumerate(zip(bodies, most, strict=True)):
            parsed = requests.parse(body)
            if parsed is not None and 0 < len(parsed[0]) <= limit:
                plain.append((at, *parsed))
        if not plain:
            return BodiesScored(found, 0, 0)
        bags = np.concatenate([np.diff(offsets) for _, _, _, offsets in plain])
        keys = np.concatenate([keys for _, _, keys, _ in plain])
        dense = np.concatenate([dense for _, dense, _, _ in plain])
        scores, asked, missed = self.score(keys, np.concatenate([[0], np.cumsum(bags)]), dense)
        starts = np.cumsum([len(dense) for _, dense, _, _ in plain])[:-1]
        for (at, *_), part in zip(plain, np.split(scores, starts), strict=True):
            found[at] = part
        return BodiesScored(found, asked, missed)
