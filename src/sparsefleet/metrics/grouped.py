"""GroupedClicks: sums by group (a user, a value of a slot) and bucket of probability, in bounded memory.

Legend: E entries, each a (group, bucket) that was met; of samples with weights a (group, bucket, band of weights).

An entry counts samples without and with a click, predicted probabilities and log losses, all as whole numbers; samples
with weights count by them, in units of their band (`metrics/bands.py`). So parts of a data set, of threads and of
processes, merge exactly, in any order. Memory grows with the entries. Where there are more than `most` pairs of group
and bucket, half of the groups are left out, chosen by a hash of the group: what is left is a fair sample of all groups,
each of them complete, and the same one whoever counted which part, and whatever all weights are multiplied by.
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
from sparsefleet.metrics.bands import LOWEST, TOP, WIDTH, banded

MOST = 2_000_000
"""Pairs of group and bucket. An entry takes 43 bytes in memory, and in a message about 17, or 4 where only ranks are
counted."""
BUCKETS, REACH = 4096, 12.0
"""Probabilities of log odds -12 to 12 (0.000006 to 0.999994) are told apart in so many steps of equal width."""
PENDING = 200_000
"""Samples that are kept one by one before they are summed up; so many are counted at once, too."""
PLAIN = 0
"""The band of samples without weights: they count 1, their predictions and losses in parts (`CLICK_PARTS`)."""
FINE = 4
"""With weights, predictions and losses are rounded to 2**-FINE of the last bit of their sample's weight."""
LARGEST = 2**61
"""Sums up to here can be added up in 64 bits, with those of `PENDING` samples more."""
ENTRY, LAYOUT = 43, 2
"""Bytes, and which bytes they are. Layout 1 was without bands, in one unit for all weights."""

_NEGATIVE, _POSITIVE, _PREDICTED, _LOSS = range(4)
U8 = npt.NDArray[np.uint8]
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
        self._groups: U64 = np.empty(0, np.uint64)
        self._buckets: U16 = np.empty(0, np.uint16)
        self._bands: U8 = np.empty(0, np.uint8)
        self._sums: I64 = np.empty((0, 4), np.int64)
        self._pending: list[tuple[U64, U16, U8, I64]] = []
        self._waiting = 0

    def count(
        self, groups: U64, probabilities: F32, labels: F32, weights: F32 | None = None, *, ranks_only: bool = False
    ) -> None:
        """[B] each. A sample of weight 2 counts as two of them. Samples without a label, or whose prediction is no
        probability, are left out.

        ranks_only: for AUCs alone, without sums of predictions and losses, whose digits make messages long.
        """
        for at in range(0, len(groups), PENDING):
            part = slice(at, at + PENDING)
            mine = None if weights is None else weights[part]
            self._count(groups[part], probabilities[part], labels[part], mine, ranks_only)

    def _count(self, groups: U64, probabilities: F32, labels: F32, weights: F32 | None, ranks_only: bool) -> None:
        good = (probabilities >= 0) & (probabilities <= 1) & ((labels == 0) | (labels == 1))
        if weights is not None:
            good &= np.isfinite(weights) & (weights >= 0)
        if self.halvings:
            good &= _kept(groups, self.halvings)
        p = probabilities[good].astype(np.float64)
        clicked = labels[good] == 1
        q = np.clip(p, 1e-7, 1 - 1e-7)
        if weights is None:
            bands = np.full(len(p), PLAIN, np.uint8)
            parts = np.ones(len(p), np.int64)
            scale, shift = np.full(len(p), CLICK_PARTS, np.float64), np.zeros(len(p), np.int32)
        else:
            exact = banded(weights[good])
            bands, parts = exact.band.astype(np.uint8), exact.parts()
            scale, shift = np.ldexp(exact.digits, FINE), exact.shift
        sums = np.zeros((len(p), 4), np.int64)
        sums[:, _NEGATIVE], sums[:, _POSITIVE] = ~clicked * parts, clicked * parts
        if not ranks_only:
            sums[:, _PREDICTED] = np.rint(p * scale).astype(np.int64) << shift
            sums[:, _LOSS] = np.rint(-np.log(np.where(clicked, q, 1 - q)) * scale).astype(np.int64) << shift
        odds = np.log(q) - np.log1p(-q)
        steps = np.clip((odds + REACH) * (BUCKETS / (2 * REACH)), 0, BUCKETS - 1).astype(np.uint16)
        self._add(groups[good].copy(), steps, bands, sums)

    def merge(self, other: GroupedClicks) -> None:
        if self.most != other.most:
            raise ConfigError(f"sums of at most {self.most} and {other.most} entries cannot be merged")
        other._sum_up()
        while self.halvings < other.halvings:
            self._halve()
        chosen = _kept(other._groups, self.halvings) if self.halvings else np.ones(len(other._groups), np.bool_)
        self._add(other._groups[chosen], other._buckets[chosen], other._bands[chosen], other._sums[chosen])
        self._sum_up()  # these sums may be large: not another's on top of them

    def _add(self, groups: U64, buckets: U16, bands: U8, sums: I64) -> None:
        self._pending.append((groups, buckets, bands, sums))
        self._waiting += len(groups)
        if self._waiting >= PENDING:
            self._sum_up()

    def _sum_up(self) -> None:
        if self._pending:
            groups = np.concatenate([self._groups, *(part[0] for part in self._pending)])
            buckets = np.concatenate([self._buckets, *(part[1] for part in self._pending)])
            bands = np.concatenate([self._bands, *(part[2] for part in self._pending)])
            sums = np.concatenate([self._sums, *(part[3] for part in self._pending)])
            self._pending, self._waiting = [], 0
            order = np.lexsort((bands, buckets, groups) if bands.any() else (buckets, groups))
            groups, buckets, bands = groups[order], buckets[order], bands[order]
            first = _firsts(groups, buckets, bands)
            self._groups, self._buckets, self._bands = groups[first], buckets[first], bands[first]
            self._sums = np.add.reduceat(sums[order], first, axis=0) if len(first) else sums
            if self._sums.max(initial=0) > LARGEST:
                raise ConfigError(
                    "this metric cannot hold so many samples of about the same prediction in one group: its sums would "
                    "leave 64 bits; measure parts of the data"
                )
        while self.halvings < 64 and len(self._groups) > self.most and self._pairs() > self.most:
            self._halve()

    def _pairs(self) -> int:
        """Of group and bucket; an entry each, but where their samples' weights are of several bands."""
        return len(_firsts(self._groups, self._buckets)) if self._bands.any() else len(self._groups)

    def _halve(self) -> None:
        self._sum_pending_first()
        self.halvings += 1
        kept = _kept(self._groups, self.halvings)
        self._groups, self._buckets = self._groups[kept], self._buckets[kept]
        self._bands, self._sums = self._bands[kept], self._sums[kept]

    def _sum_pending_first(self) -> None:
        if self._pending:
            self._sum_up()

    def counts(self, groups: U64) -> npt.NDArray[np.bool_]:
        """Whether samples of these groups are counted, or left out to bound memory."""
        return _kept(groups, self.halvings) if self.halvings else np.ones(len(groups), np.bool_)

    def _weighed(self) -> tuple[U64, U16, F64]:
        """Group, bucket and sums of each pair that was met; a weight of 1 counts 1."""
        self._sum_up()
        if not self._bands.any():
            return self._groups, self._buckets, self._sums / _PLAIN_UNITS
        # Multiplied by powers of two, which rounds nothing; and no product of two such sums is out of a float's range.
        units = (WIDTH * self._bands.astype(np.int32) - LOWEST)[:, None] - np.array([0, 0, FINE, FINE], np.int32)
        sums = np.where((self._bands == PLAIN)[:, None], self._sums / _PLAIN_UNITS, np.ldexp(self._sums * 1.0, units))
        first = _firsts(self._groups, self._buckets)
        return self._groups[first], self._buckets[first], np.add.reduceat(sums, first, axis=0)

    def by_group(self) -> GroupTable:
        """What each group came to, in the order of the groups."""
        groups, _, sums = self._weighed()
        starts = _firsts(groups)
        totals = np.add.reduceat(sums, starts, axis=0) if len(starts) else np.empty((0, 4))
        # Of each pair: samples without a click of its group in lower buckets, and half of those in its own.
        negatives, of_group = sums[:, _NEGATIVE], totals[:, _NEGATIVE]
        lengths = np.diff(np.append(starts, len(groups)))
        if self._bands.any():
            # The running sum goes through all groups: a group of large weights must not round those of small ones away.
            size = -np.frexp(of_group)[1]
            negatives, of_group = np.ldexp(negatives, np.repeat(size, lengths)), np.ldexp(of_group, size)
        running = np.cumsum(negatives)
        before = np.repeat(running[starts] - negatives[starts], lengths)
        below = running - negatives - before + negatives / 2
        won = below * sums[:, _POSITIVE]
        wins = np.add.reduceat(won, starts) if len(starts) else np.empty(0)
        pairs = of_group * totals[:, _POSITIVE]
        auc = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
        return GroupTable(groups[starts], totals, auc)

    def by_bucket(self) -> tuple[F64, F64, F64]:
        """Samples, clicks and the sum of predictions of each bucket that was met, the lowest first; of all groups.

        Where samples have weights, by weight.
        """
        _, buckets, sums = self._weighed()
        order = np.argsort(buckets, kind="stable")
        buckets, sums = buckets[order], sums[order]
        starts = _firsts(buckets)
        totals = np.add.reduceat(sums, starts, axis=0) if len(starts) else np.empty((0, 4))
        return totals[:, _NEGATIVE] + totals[:, _POSITIVE], totals[:, _POSITIVE], totals[:, _PREDICTED]

    def to_dict(self) -> dict[str, Any]:
        self._sum_up()
        raw = b"".join(
            array.tobytes()
            for array in (
                self._groups.astype("<u8"),
                self._buckets.astype("<u2"),
                self._sums.T.astype("<i8"),
                self._bands,
            )
        )
        return {
            "entries": base64.b64encode(zlib.compress(raw, 1)).decode(),
            "most": self.most,
            "halvings": self.halvings,
            "layout": LAYOUT,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        try:
            made = cls(int(data["most"]))
            made.halvings = int(data["halvings"])
            raw = zlib.decompress(base64.b64decode(data["entries"]))
            if data.get("layout") != LAYOUT:
                raise ValueError("an earlier release counted these; measure again")
            entries = len(raw) // ENTRY
            if len(raw) != entries * ENTRY or not 0 <= made.halvings <= 64:
                raise ValueError(f"{len(raw)} bytes, {made.halvings} halvings")
            made._groups = np.frombuffer(raw, "<u8", entries).astype(np.uint64)
            made._buckets = np.frombuffer(raw, "<u2", entries, 8 * entries).astype(np.uint16)
            made._sums = np.frombuffer(raw, "<i8", 4 * entries, 10 * entries).reshape(4, entries).T.astype(np.int64)
            made._bands = np.frombuffer(raw, np.uint8, entries, 42 * entries).copy()
            if (
                made._bands.max(initial=0) > TOP
                or not 0 <= made._sums.min(initial=0) <= made._sums.max(initial=0) <= LARGEST
            ):
                raise ValueError("sums or bands out of range")
            return made
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise ConfigError(f"these are not sums that to_dict wrote: {error!r}") from error


_PLAIN_UNITS = np.array([1, 1, CLICK_PARTS, CLICK_PARTS], np.float64)


def _firsts(*columns: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Of sorted columns, where another combination of values begins."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = False
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


class GroupTable:
    """What groups came to: an entry of each array is a group's. Samples and clicks by weight, where they have one."""

    def __init__(self, groups: U64, totals: F64, auc: F64) -> None:
        self.groups, self.auc = groups, auc
        self.samples = totals[:, _NEGATIVE] + totals[:, _POSITIVE]
        self.clicks, self.predicted, self.log_loss = totals[:, _POSITIVE], totals[:, _PREDICTED], totals[:, _LOSS]
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
