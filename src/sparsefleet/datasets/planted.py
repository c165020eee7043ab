"""The planted model: Criteo-like rows whose true click probabilities are known.

Legend: B rows of a block, 13 integers, 26 categories, z a standardised value.

Row i of a stream depends on (seed, stream, i) alone, so neither the number of parts nor the number of rows
changes it. Effects depend on (seed, column, value) alone, so all streams of one seed share them.

    logit = bias + category effects + smooth effects of the log-integers + pairwise interactions

Each of the three is scaled to a fixed share of the logit on a calibration stream. That makes every seed
equally hard: about what is known of the real set. Interactions are what a linear model cannot learn; the
effects of rare values are what nobody learns from few rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]

BLOCK_ROWS = 1 << 16
"""Rows drawn at a time. Part of what defines the data: another size gives other rows."""

CLICK_RATE = 0.256
TRAIN, TEST, CALIBRATION = 0, 1, 2
"""Streams of rows; they share the effects and nothing else."""

CATEGORY_SCALE, INTEGER_SCALE, INTERACTION_SCALE = 1.0, 0.8, 0.72
"""Standard deviation of each part of the logit."""


@dataclass(frozen=True, slots=True)
class IntegerColumn:
    """A count with a log-normal body and tail."""

    median: float
    p95: float
    missing: float
    """Share of blanks."""
    missing_with: str
    """Columns with the same group and share are blank together, as in the real set."""
    linear: float
    """Effect on the logit of the standardised log-count."""
    curved: float
    """Effect of its bend."""
    minimum: int = 0

    @property
    def mu(self) -> float:
        return float(np.log(self.median + 1))

    @property
    def sigma(self) -> float:
        return float((np.log(self.p95 + 1) - self.mu) / 1.645)


@dataclass(frozen=True, slots=True)
class CategoryColumn:
    """One dominant value, and a Zipf-like rest."""

    cardinality: int
    top: float
    """Share of the most frequent value among those present."""
    exponent: float = 1.05
    """Of the rank-frequency law of the rest."""
    missing: float = 0.0
    missing_with: str = ""


# Medians, 95th percentiles and blanks are close to those of the real set's 45.8 million rows.
INTEGERS = (
    IntegerColumn(1, 14, 0.454, "a", 0.55, -0.10),
    IntegerColumn(2, 560, 0.0, "", -0.25, 0.12, minimum=-3),
    IntegerColumn(6, 88, 0.215, "b", -0.15, 0.05),
    IntegerColumn(4, 26, 0.217, "c", -0.20, -0.08),
    IntegerColumn(2800, 93000, 0.026, "d", -0.45, -0.10),
    IntegerColumn(32, 440, 0.224, "e", -0.50, 0.10),
    IntegerColumn(3, 66, 0.043, "f", 0.45, -0.10),
    IntegerColumn(7, 41, 0.001, "g", -0.10, -0.05),
    IntegerColumn(38, 420, 0.043, "f", 0.10, -0.10),
    IntegerColumn(0.6, 3, 0.454, "a", 0.30, 0.05),
    IntegerColumn(1, 10, 0.043, "f", 0.55, -0.12),
    IntegerColumn(0.3, 4, 0.765, "h", 0.15, 0.0),
    IntegerColumn(4, 28, 0.217, "c", -0.45, 0.05),
)

CATEGORIES = (
    CategoryColumn(1460, 0.50, 1.2),
    CategoryColumn(583, 0.11, 0.9),
    CategoryColumn(10131227, 0.023, missing=0.034, missing_with="i"),
    CategoryColumn(2202608, 0.035, missing=0.034, missing_with="i"),
    CategoryColumn(305, 0.67, 1.3),
    CategoryColumn(24, 0.45, 1.4, missing=0.12, missing_with="j"),
    CategoryColumn(12517, 0.02, 0.85),
    CategoryColumn(633, 0.59, 1.3),
    CategoryColumn(3, 0.897, 4.0),
    CategoryColumn(93145, 0.22, 1.0),
    CategoryColumn(5683, 0.027, 0.8),
    CategoryColumn(8351593, 0.023, missing=0.034, missing_with="i"),
    CategoryColumn(3194, 0.027, 0.75),
    CategoryColumn(27, 0.35, 1.7),
    CategoryColumn(14992, 0.018, 0.9),
    CategoryColumn(5461306, 0.023, missing=0.034, missing_with="i"),
    CategoryColumn(10, 0.46, 1.2),
    CategoryColumn(5652, 0.033, 0.8),
    CategoryColumn(2173, 0.62, 1.2, missing=0.44, missing_with="k"),
    CategoryColumn(4, 0.34, 0.2, missing=0.44, missing_with="k"),
    CategoryColumn(7046547, 0.023, missing=0.034, missing_with="i"),
    CategoryColumn(18, 0.60, 1.5, missing=0.763, missing_with="l"),
    CategoryColumn(15, 0.44, 1.4),
    CategoryColumn(286181, 0.04, 0.95, missing=0.034, missing_with="i"),
    CategoryColumn(105, 0.24, 1.1, missing=0.44, missing_with="k"),
    CategoryColumn(142572, 0.09, 0.95, missing=0.44, missing_with="k"),
)

# Zero-based columns. Category pairs multiply latent numbers of the two values; the others multiply by the
# log-integer.
CATEGORY_PAIRS = ((1, 9), (13, 16), (5, 22), (0, 7), (12, 13), (16, 17), (19, 22))
MIXED_PAIRS = ((4, 13), (10, 16), (5, 22), (12, 5), (6, 0))
INTEGER_PAIRS = ((5, 12), (4, 10), (1, 6))

# How an effect's spread shrinks with its value's rank: (1 + rank / SHRINK_RANK) ** -SHRINK_POWER.
SHRINK_RANK, SHRINK_POWER = 150.0, 0.35

_EFFECT, _LATENT, _VALUE = 1, 2, 3
"""What a hash is drawn for."""


def mix64(x: U64) -> U64:
    """SplitMix64's finaliser: a bijection of 64-bit words that scatters them."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mix32(x: U32) -> U32:
    """A bijection of 32-bit words, so that different ranks never share a value."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _salt(*words: int) -> np.uint64:
    state = np.zeros(1, np.uint64)
    for word in words:
        state = mix64(state + np.uint64(word & 0xFFFFFFFFFFFFFFFF) + np.uint64(0x9E3779B97F4A7C15))
    return np.uint64(state[0])


def bell(hashes: U64) -> F64:
    """Nearly normal numbers (mean 0, deviation 1) from 64-bit hashes: the sum of their four quarters.

    Sums of integers, so exactly the same on every machine.
    """
    low = np.uint64(0xFFFF)
    total = (hashes & low) + ((hashes >> np.uint64(16)) & low) + ((hashes >> np.uint64(32)) & low)
    total += hashes >> np.uint64(48)
    numbers: F64 = (total.astype(np.float64) - 131070.0) * (3.0**0.5 / 65536.0)
    return numbers


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one stream, with the truth about them."""

    labels: npt.NDArray[np.int8]
    integers: I64
    """[13, B]; anything where missing."""
    integers_missing: Mask
    """[13, B]"""
    values: U32
    """[26, B]; the text is their 8 hexadecimal digits; anything where missing."""
    values_missing: Mask
    """[26, B]"""
    probabilities: F64
    """True probability of a click."""

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, start: int, stop: int) -> Block:
        cut = slice(start, stop)
        return Block(
            self.labels[cut],
            self.integers[:, cut],
            self.integers_missing[:, cut],
            self.values[:, cut],
            self.values_missing[:, cut],
            self.probabilities[cut],
        )


class _Draws:
    """Uniform numbers of one block.

    From Philox's raw words, which are the same in every NumPy release; its Generator's numbers may not be.
    """

    def __init__(self, seed: int, stream: int, block: int) -> None:
        self._bits = np.random.Philox(
            key=np.array([seed, stream], np.uint64), counter=np.array([0, 0, 0, block], np.uint64)
        )

    def uniform(self) -> F64:
        raw: U64 = self._bits.random_raw(BLOCK_ROWS)
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal_pair(self) -> tuple[F64, F64]:
        """Box-Muller."""
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform()))
        angle = (2.0 * np.pi) * self.uniform()
        return radius * np.cos(angle), radius * np.sin(angle)


def _power_law(column: CategoryColumn, shift: float, share: F64 | float) -> F64:
    """Inverse of the distribution with density (rank + shift) ** -exponent over 1..cardinality."""
    low, high = 1.0 + shift, column.cardinality + shift
    if column.exponent == 1.0:
        return np.asarray(low * (high / low) ** share - shift)
    power = 1.0 - column.exponent
    return np.asarray((low**power + share * (high**power - low**power)) ** (1.0 / power) - shift)


@cache
def _shift(column: CategoryColumn) -> float:
    """Flattens the head of the power law, so that rank 1 gets at most 3/4 of rank 0's share."""
    most = 0.75 * column.top / (1.0 - column.top)
    low, high = 0.0, 1000.0
    if most >= 1.0 or _power_law(column, 0.0, most) >= 2.0:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _power_law(column, middle, most) >= 2.0 else (middle, high)
    return round(high, 6)


def _ranks(column: CategoryColumn, u: F64) -> I64:
    """Ranks from 0: `top` of them 0, the rest by a shifted power law over 1..cardinality-1."""
    rest = np.maximum(u - column.top, 0.0) / (1.0 - column.top)
    ranks = np.minimum(_power_law(column, _shift(column), rest).astype(np.int64), column.cardinality - 1)
    return np.where(u < column.top, 0, np.maximum(ranks, 1))


class PlantedModel:
    """Draws the rows of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def blocks(self, stream: int, rows: int) -> Iterator[Block]:
        """The first `rows` rows of the stream."""
        for block in range(-(-rows // BLOCK_ROWS)):
            yield self.block(stream, block).rows(0, min(BLOCK_ROWS, rows - block * BLOCK_ROWS))

    def block(self, stream: int, index: int) -> Block:
        """Block number `index` of the stream, always BLOCK_ROWS long."""
        draws, integers, integers_missing, values, values_missing, parts = self._drawn(stream, index)
        scales, bias = self._calibration
        logit = bias + sum(scale * part for scale, part in zip(scales, parts, strict=True))
        probabilities = 1.0 / (1.0 + np.exp(-logit))
        labels = (draws.uniform() < probabilities).astype(np.int8)
        return Block(labels, integers, integers_missing, values, values_missing, probabilities)

    def calibrate(self) -> None:
        """Do what the first block would otherwise do; worth it before several threads ask for blocks."""
        assert self._calibration

    @cached_property
    def _calibration(self) -> tuple[tuple[float, float, float], float]:
        """Scale of each part, and the bias, from a block that no one trains or tests on.

        Rounded, so that the last bit of a sum, which may differ between machines, cannot change the data.
        """
        *_, parts = self._drawn(CALIBRATION, 0)
        wanted = (CATEGORY_SCALE, INTEGER_SCALE, INTERACTION_SCALE)
        scales = tuple(round(float(want / part.std()), 6) for want, part in zip(wanted, parts, strict=True))
        logit = sum(scale * part for scale, part in zip(scales, parts, strict=True))
        low, high = -20.0, 20.0
        for _ in range(60):
            middle = (low + high) / 2
            if float(np.mean(1.0 / (1.0 + np.exp(-(logit + middle))))) < CLICK_RATE:
                low = middle
            else:
                high = middle
        assert len(scales) == 3
        return scales, round(low, 6)

    def _drawn(self, stream: int, index: int) -> tuple[_Draws, I64, Mask, U32, Mask, tuple[F64, F64, F64]]:
        draws = _Draws(self.seed, stream, index)
        groups = sorted({c.missing_with for c in (*INTEGERS, *CATEGORIES)} - {""})
        blank_draws = {group: draws.uniform() for group in groups}

        integers, integers_missing, standardised, smooth = self._integers(draws, blank_draws)

        values = np.empty((len(CATEGORIES), BLOCK_ROWS), np.uint32)
        values_missing = np.zeros((len(CATEGORIES), BLOCK_ROWS), np.bool_)
        needed = {c for pair in CATEGORY_PAIRS for c in pair} | {c for _, c in MIXED_PAIRS}
        latent: dict[int, F64] = {}
        effects = np.zeros(BLOCK_ROWS)
        for c, column in enumerate(CATEGORIES):
            ranks = _ranks(column, draws.uniform())
            values[c] = mix32(ranks.astype(np.uint32) ^ np.uint32(_salt(_VALUE, c) >> np.uint64(32)))
            wide = values[c].astype(np.uint64)
            spread = (1.0 + ranks / SHRINK_RANK) ** -SHRINK_POWER
            if column.missing:
                values_missing[c] = blank_draws[column.missing_with] < column.missing
                # A blank is a value like any other: outside the 32-bit values, as frequent as the top one.
                wide = np.where(values_missing[c], np.uint64(1 << 32), wide)
                spread = np.where(values_missing[c], 1.0, spread)
            effects += spread * bell(mix64(wide ^ _salt(self.seed, _EFFECT, c)))
            if c in needed:
                latent[c] = spread * bell(mix64(wide ^ _salt(self.seed, _LATENT, c)))

        products = np.zeros(BLOCK_ROWS)
        for a, b in CATEGORY_PAIRS:
            products += latent[a] * latent[b]
        for i, c in MIXED_PAIRS:
            products += 0.8 * standardised[i] * latent[c]
        for i, j in INTEGER_PAIRS:
            products += 0.6 * standardised[i] * standardised[j]
        return draws, integers, integers_missing, values, values_missing, (effects, smooth, products)

    def _integers(self, draws: _Draws, blank_draws: dict[str, F64]) -> tuple[I64, Mask, list[F64], F64]:
        shape = (len(INTEGERS), BLOCK_ROWS)
        integers, missing = np.empty(shape, np.int64), np.zeros(shape, np.bool_)
        smooth = np.zeros(BLOCK_ROWS)
        standardised: list[F64] = []
        activity, *noises = [z for _ in range((len(INTEGERS) + 2) // 2) for z in draws.normal_pair()]
        for i, column in enumerate(INTEGERS):
            # Counts of one impression rise and fall together a little: how active its user is.
            z = 0.4 * activity + np.sqrt(1 - 0.4**2) * noises[i]
            counts = np.exp(np.minimum(column.mu + column.sigma * z, 40.0)) - 0.5
            integers[i] = np.maximum(counts, 0.0 if column.minimum == 0 else -1.0).astype(np.int64)
            if column.minimum < 0:
                below = counts < 0
                integers[i] = np.where(below, np.where(z < -2.9, -3, np.where(z < -1.9, -2, -1)), integers[i])
            # The effect is that of the count as written, which is all that a model can see.
            seen = np.log1p(np.maximum(integers[i], 0))
            x = np.clip((seen - column.mu) / column.sigma, -3.0, 3.0)
            bend = x * x - 1.0
            if column.missing:
                missing[i] = blank_draws[column.missing_with] < column.missing
                x = np.where(missing[i], 0.0, x)
                bend = np.where(missing[i], 1.5, bend)
            standardised.append(x)
            smooth += column.linear * x + column.curved * bend
        return integers, missing, standardised, smooth
