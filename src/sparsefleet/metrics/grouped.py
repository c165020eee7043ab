"""GroupedClicks: sums by group (a user, a value of a slot) and bucket of probability, in bounded memory.

Legend: E entries, each a (group, bucket) that was met.

An entry counts samples without and with a click, predicted probabilities and log losses, all as whole numbers; samples
with weights count by them, in parts of a weight of 1. So parts of a data set, of threads and of processes, merge
exactly, in any order. Memory grows with the entries. Where they are more than `most`, half of the groups are left out,
chosen by a hash of the group: what is left is a fair sample of all groups, each of them complete, and the same one
whoever counted which part.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, I64, U64
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.rows import CLICK_PARTS
from sparsefleet.metrics.weighted import PARTS

MOST = 2_000_000
"""Entries; each takes 42 bytes in memory, and in a message about 17, or 4 where only ranks are counted."""
BUCKETS, REACH = 4096, 12.0
"""Probabilities of log odds -12 to 12 (0.000006 to 0.999994) are told apart in so many steps of equal width."""
PENDING = 200_000
"""Samples that are kept one by one before they are summed up."""

_NEGATIVE, _POSITIVE, _PREDICTED, _LOSS = range(4)
U16 = npt.NDArray[np.uint16]
F64 = npt.NDArray[np.float64]


class GroupedClicks:
    """Not for several threads at once."""

    def __init__(self, most: int = MOST) -> None:
        if most < 1:
            raise ConfigError(f"most={most} must be 1 or above")
        self.most = most
        self.halvings = 0
        """Of 2**halvings groups one is counted."""
        self.unit = 1
        """What a sample without a weight counts: 1, or `PARTS` once samples had weights."""
        self._groups: U64 = np.empty(0, np.uint64)
        self._buckets: U16 = np.empty(0, np.uint16)
        self._sums: I64 = np.empty((0, 4), np.int64)
        self._pending: list[tuple[U64, U16, I64]] = []
        self._waiting = 0

    def count(
        self, groups: U64, probabilities: F32, labels: F32, weights: F32 | None = None, *, ranks_only: bool = False
    ) -> None:
        """[B] each. A sample of weight 2 counts as two of them. Samples without a label, or whose prediction is no
        probability, are left out.

        ranks_only: for AUCs alone, without sums of predictions and losses, whose digits make messages long.
        """
        good = (probabilities >= 0) & (probabilities <= 1) & ((labels == 0) | (labels == 1))
        if weights is not None:
            good &= np.isfinite(weights) & (weights >= 0)
            self._count_in(PARTS)
        if self.halvings:
            good &= _kept(groups, self.halvings)
        p = probabilities[good].astype(np.float64)
        exact = np.ones(len(p)) if weights is None else weights[good].astype(np.float64)
        parts = np.rint(exact * self.unit).astype(np.int64)
        clicked = labels[good] == 1
        q = np.clip(p, 1e-7, 1 - 1e-7)
        sums = np.empty((len(p), 4), np.int64)
        sums[:, _NEGATIVE], sums[:, _POSITIVE] = ~clicked * parts, clicked * parts
        sums[:, _PREDICTED] = 0 if ranks_only else np.rint(p * exact * CLICK_PARTS)
        sums[:, _LOSS] = 0 if ranks_only else np.rint(-np.log(np.where(clicked, q, 1 - q)) * exact * CLICK_PARTS)
        odds = np.log(q) - np.log1p(-q)
        steps = np.clip((odds + REACH) * (BUCKETS / (2 * REACH)), 0, BUCKETS - 1).astype(np.uint16)
        self._add(groups[good].copy(), steps, sums)

    def merge(self, other: GroupedClicks) -> None:
        if self.most != other.most:
            raise ConfigError(f"sums of at most {self.most} and {other.most} entries cannot be merged")
        unit = max(self.unit, other.unit)
        self._count_in(unit)
        other._count_in(unit)
        other._sum_up()
        while self.halvings < other.halvings:
            self._halve()
        chosen = _kept(other._groups, self.halvings) if self.halvings else slice(None)
        self._add(other._groups[chosen].copy(), other._buckets[chosen].copy(), other._sums[chosen].copy())

    def _count_in(self, unit: int) -> None:
        """From now on; what was counted before counts the same."""
        if unit != self.unit:
            self._sum_up()
            self._sums[:, [_NEGATIVE, _POSITIVE]] *= unit // self.unit
            self.unit = unit

    def _add(self, groups: U64, buckets: U16, sums: I64) -> None:
        self._pending.append((groups, buckets, sums))
        self._waiting += len(groups)
        if self._waiting >= PENDING:
            self._sum_up()

    def _sum_up(self) -> None:
        if self._pending:
            groups = np.concatenate([self._groups, *(part[0] for part in self._pending)])
            buckets = np.concatenate([self._buckets, *(part[1] for part in self._pending)])
            sums = np.concatenate([self._sums, *(part[2] for part in self._pending)])
            self._pending, self._waiting = [], 0
            order = np.lexsort((buckets, groups))
            groups, buckets = groups[order], buckets[order]
            new = np.ones(len(groups), bool)
            new[1:] = (groups[1:] != groups[:-1]) | (buckets[1:] != buckets[:-1])
            first = np.flatnonzero(new)
            self._groups, self._buckets = groups[first], buckets[first]
            self._sums = np.add.reduceat(sums[order], first, axis=0) if len(first) else sums
        while len(self._groups) > self.most and self.halvings < 64:
            self._halve()

    def _halve(self) -> None:
        self._sum_pending_first()
        self.halvings += 1
        kept = _kept(self._groups, self.halvings)
        self._groups, self._buckets, self._sums = self._groups[kept], self._buckets[kept], self._sums[kept]

    def _sum_pending_first(self) -> None:
        if self._pending:
            self._sum_up()

    def counts(self, groups: U64) -> npt.NDArray[np.bool_]:
        """Whether samples of these groups are counted, or left out to bound memory."""
        return _kept(groups, self.halvings) if self.halvings else np.ones(len(groups), np.bool_)

    def by_group(self) -> GroupTable:
        """What each group came to, in the order of the groups."""
        self._sum_up()
        groups, sums = self._groups, self._sums
        starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])) if len(groups) else _NONE
        totals = np.add.reduceat(sums, starts, axis=0) if len(starts) else np.empty((0, 4), np.int64)
        # Of each entry: samples without a click of its group in lower buckets, and half of those in its own.
        negatives = sums[:, _NEGATIVE].astype(np.float64)
        running = np.cumsum(negatives)
        before = np.repeat(running[starts] - negatives[starts], np.diff(np.append(starts, len(groups))))
        below = running - negatives - before + negatives / 2
        won = below * sums[:, _POSITIVE]
        wins = np.add.reduceat(won, starts) if len(starts) else np.empty(0)
        pairs = totals[:, _NEGATIVE].astype(np.float64) * totals[:, _POSITIVE]
        auc = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
        return GroupTable(groups[starts], totals, auc, self.unit)

    def by_bucket(self) -> tuple[F64, F64, F64]:
        """Samples, clicks and the sum of predictions of each bucket that was met, the lowest first; of all groups.

        Where samples have weights, by weight.
        """
        self._sum_up()
        order = np.argsort(self._buckets, kind="stable")
        buckets, sums = self._buckets[order], self._sums[order]
        starts = np.flatnonzero(np.concatenate([[True], buckets[1:] != buckets[:-1]])) if len(buckets) else _NONE
        totals = np.add.reduceat(sums, starts, axis=0) if len(starts) else np.empty((0, 4), np.int64)
        samples, clicks = (totals[:, _NEGATIVE] + totals[:, _POSITIVE]) / self.unit, totals[:, _POSITIVE] / self.unit
        return samples, clicks, totals[:, _PREDICTED] / CLICK_PARTS

    def to_dict(self) -> dict[str, Any]:
        self._sum_up()
        raw = b"".join(
            array.tobytes()
            for array in (self._groups.astype("<u8"), self._buckets.astype("<u2"), self._sums.T.astype("<i8"))
        )
        return {
            "entries": base64.b64encode(zlib.compress(raw, 1)).decode(),
            "most": self.most,
            "halvings": self.halvings,
            **({} if self.unit == 1 else {"unit": self.unit}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        try:
            made = cls(int(data["most"]))
            made.halvings = int(data["halvings"])
            made.unit = int(data.get("unit", 1))
            raw = zlib.decompress(base64.b64decode(data["entries"]))
            entries = len(raw) // 42
            if len(raw) != entries * 42 or not 0 <= made.halvings <= 64 or made.unit not in (1, PARTS):
                raise ValueError(f"{len(raw)} bytes, {made.halvings} halvings, unit {made.unit}")
            made._groups = np.frombuffer(raw, "<u8", entries).astype(np.uint64)
            made._buckets = np.frombuffer(raw, "<u2", entries, 8 * entries).astype(np.uint16)
            made._sums = np.frombuffer(raw, "<i8", 4 * entries, 10 * entries).reshape(4, entries).T.astype(np.int64)
            return made
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise ConfigError(f"these are not sums that to_dict wrote: {error!r}") from error


_NONE: npt.NDArray[np.intp] = np.empty(0, np.intp)


class GroupTable:
    """What groups came to: an entry of each array is a group's. Samples and clicks by weight, where they have one."""

    def __init__(self, groups: U64, totals: I64, auc: F64, unit: int = 1) -> None:
        self.groups, self.auc = groups, auc
        self.samples = (totals[:, _NEGATIVE] + totals[:, _POSITIVE]) / unit
        self.clicks = totals[:, _POSITIVE] / unit
        self.predicted = totals[:, _PREDICTED] / CLICK_PARTS
        self.log_loss = totals[:, _LOSS] / CLICK_PARTS
        """Summed."""

    def mean_auc(self) -> float:
        """Of the groups that have both kinds of samples, weighted by their samples; NaN where none has."""
        both = ~np.isnan(self.auc)
        samples = self.samples[both]
        return float((self.auc[both] * samples).sum() / samples.sum()) if both.any() else math.nan


def _kept(groups: U64, halvings: int) -> npt.NDArray[np.bool_]:
    """Whether a group is in the sample: its hash has so many zeros in front."""
    mixed = groups * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    kept: npt.NDArray[np.bool_] = (mixed >> np.uint64(64 - halvings)) == 0 if halvings < 64 else mixed == 0
    return kept
