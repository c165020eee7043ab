"""What `kernels.table` does, in plain NumPy; float32 in the order of rules.cpp, so the bits are equal.

Denormals are zero in updates, `take` and `rebase`; first values are made in plain IEEE arithmetic.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.table_rows import touched_after
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.kernels.table import F64, NOTING, U32, Bools, Scanned

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(x: U64) -> U64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def init_rows(seed: int, keys: U64, dim: int, kind: int, a: float, b: float) -> F32:
    base = mix64(mix64(keys + np.uint64(GOLDEN)) ^ np.uint64(seed))
    draws = np.arange(1, dim + 2, dtype=np.uint64) * np.uint64(GOLDEN)  # one more: normal values come in pairs
    bits = mix64(base[:, None] + draws[None, :])
    if kind == 0:
        low, last = np.float32(a), np.nextafter(np.float32(b), np.float32(a))
        unit = (bits[:, :dim] >> np.uint64(40)).astype(np.float64) * 2.0**-24
        return np.minimum((a + (b - a) * unit).astype(np.float32), np.maximum(low, last))
    if kind == 1:
        even, odd = np.arange(dim) // 2 * 2, np.arange(dim) // 2 * 2 + 1
        u1 = ((bits[:, even] >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
        u2 = (bits[:, odd] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        angle = 2.0 * math.pi * u2
        turned = np.where(np.arange(dim) % 2 == 0, np.cos(angle), np.sin(angle))
        normal: F32 = (a + b * (np.sqrt(-2.0 * np.log(u1)) * turned)).astype(np.float32)
        return normal
    return np.full((len(keys), dim), a, np.float32)


# Each rule changes values [U, D] and state [U, S] in place. f holds the hyperparameters as float32.


def _sgd(w: F32, s: F32, g: F32, lr: np.float32, f: Sequence[np.float32]) -> None:
    w -= lr * (g + f[0] * w)


def _adagrad(w: F32, s: F32, g: F32, lr: np.float32, f: Sequence[np.float32]) -> None:
    grad = g + f[1] * w
    s += grad * grad
    w -= lr * grad / (np.sqrt(s) + f[0])


def _rowwise_adagrad(w: F32, s: F32, g: F32, lr: np.float32, f: Sequence[np.float32]) -> None:
    grad = g + f[1] * w
    squares = np.cumsum(grad.astype(np.float64) ** 2, axis=1)[:, -1:]  # cumsum adds in order, sum does not
    s += (squares / grad.shape[1]).astype(np.float32)
    w -= lr * grad / (np.sqrt(s) + f[0])


def _ftrl(w: F32, s: F32, g: F32, lr: np.float32, f: Sequence[np.float32]) -> None:
    if not lr > 0:
        return
    dim, (l1, l2, beta) = w.shape[1], f[:3]
    z, n = s[:, :dim], s[:, dim:]
    grown = n + g * g
    root = np.sqrt(grown)
    z += g - (root - np.sqrt(n)) / lr * w
    n[...] = grown
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = (np.copysign(l1, z) - z) / ((beta + root) / lr + l2)
    w[...] = np.where(np.abs(z) <= l1, np.float32(0), moved)


RULES: dict[int, Callable[[F32, F32, F32, np.float32, Sequence[np.float32]], None]] = {
    0: _sgd,
    1: _adagrad,
    2: _rowwise_adagrad,
    4: _ftrl,
}
ADAM, FTRL = 3, 4


def _check(kind: int, step: int) -> None:
    if kind < 0 or (kind & ~NOTING) not in {*RULES, ADAM}:
        raise ValueError(f"rule kind {kind} does not exist")
    if step < 1:
        raise ValueError("step must be 1 or above")


def _update(kind: int, lr: float, hyper: F64, step: int, w: F32, s: F32, g: F32) -> None:
    _check(kind, step)
    with flushed():
        if kind & NOTING:
            _update(kind & ~NOTING, lr, hyper, step, w, s[:, : s.shape[1] - w.shape[1]], g)
        elif kind == ADAM:
            _adam(w, s, g, lr, hyper, step)
        else:
            RULES[kind](w, s, g, np.float32(lr), _constants(hyper))


def _constants(hyper: F64) -> list[np.float32]:
    return [*np.asarray(hyper, np.float32), *[np.float32(0)] * 6]


def _follow(kind: int, lr: float, hyper: F64, w: F32, s: F32, target: F32) -> None:
    """Values [U, D] become what others made of them. FTRL makes values of z alone: it becomes what gives them."""
    rate = np.float32(lr)
    if kind & ~NOTING == FTRL and rate > 0:
        dim, (l1, l2, beta) = w.shape[1], _constants(hyper)[:3]
        z, n = s[:, :dim], s[:, dim : 2 * dim]
        with np.errstate(divide="ignore", invalid="ignore"):
            total = target * ((beta + np.sqrt(n)) / rate + l2)
        # Where l1 holds a value at 0, a target of a rounding error must not undo what z has gathered.
        moved = (target != w) & ((np.abs(z) > l1) | (np.abs(total) > l1 * np.float32(2.0**-10)))
        settled = np.where(target == 0, np.copysign(l1, z), -(total + np.copysign(l1, target)))
        z[...] = np.where(moved, settled, z)
    w[...] = target


def _adam(w: F32, s: F32, g: F32, lr: float, hyper: F64, step: int) -> None:
    beta1, beta2, eps, decay = [*map(float, hyper), 0.0][:4]
    dim, f32 = w.shape[1], np.float32
    m, v = s[:, :dim], s[:, dim:]
    grad = g + f32(decay) * w
    m += f32(1.0 - beta1) * (grad - m)
    v[...] = f32(beta2) * v + f32(1.0 - beta2) * (grad * grad)
    rate, inverse_root = f32(lr / (1.0 - beta1**step)), f32(1.0 / math.sqrt(1.0 - beta2**step))
    w -= rate * m / (np.sqrt(v) * inverse_root + f32(eps))


LOOK_EVERY, STILL, NOTHING = 16, np.float32(2.0**-30), np.float32(2.0**-40)
"""Steps between two looks whether a row comes to rest, and what counts as that: native idle.h."""
DECAY_AT = {0: 0, 1: 1, 2: 1, ADAM: 3}
"""Where weight decay stands among the hyperparameters of the rules whose steps can be caught up."""


class IdleSteps:
    """What steps do to a row that they bring no gradient for: one after the other, each as the rule with zeros."""

    def __init__(self, kind: int, hyper: F64) -> None:
        if kind not in DECAY_AT:
            raise ValueError(f"rule kind {kind} has no steps without a gradient that could be caught up")
        self.kind, self.hyper = kind, hyper
        self.decay = [*np.asarray(hyper, np.float32), *[np.float32(0)] * 6][DECAY_AT[kind]]
        self.rates: list[float] = []

    def note(self, first: int, last: int, lr: float) -> None:
        if first != len(self.rates) + 1 or last < first:
            raise ValueError("steps are noted in order, without gaps")
        self.rates += [lr] * (last - first + 1)

    def expect(self, step: int) -> None:
        if step > len(self.rates):
            raise ValueError("an exact table does not know this step yet")

    def rests(self, row: _Row) -> bool:
        """Whether the row does not move until its next gradient."""
        moving = self.decay * row.values != 0
        if self.kind == ADAM:
            moving |= row.state[:, : row.values.shape[1]] != 0
        return not moving.any()

    def catch_up(self, row: _Row, to: int) -> None:
        """Move the row to step `to`, or to where it comes to rest; Adam's squares go on from there when it wakes."""
        none = np.zeros_like(row.values)
        with flushed():
            if row.touched >= to or (self.kind == ADAM and self.rests(row)):
                return
            for step in range(row.touched + 1, to + 1):
                if self.kind != ADAM and self.decay == 0:
                    break
                _update(self.kind, self.rates[step - 1], self.hyper, step, row.values, row.state, none)
                if self.kind == ADAM and step % LOOK_EVERY == 0:
                    self._settle(row, step)
                    if self.rests(row):
                        row.touched = step
                        return
            row.touched = to

    def _settle(self, row: _Row, step: int) -> None:
        dim, (_, beta2, eps) = row.values.shape[1], map(float, self.hyper[:3])
        w, m, v = row.values, row.state[:, :dim], row.state[:, dim:]
        inverse_root = np.float32(1.0 / math.sqrt(1.0 - beta2**step))
        still = np.abs(m) <= STILL * (np.sqrt(v) * inverse_root + np.float32(eps))
        if self.decay != 0:
            still &= np.abs(w) <= NOTHING
            w[still] = 0
        m[still] = 0

    def wake(self, row: _Row, to: int) -> None:
        """As `catch_up`, and a row that rests gets its squares of step `to`: a gradient is about to come."""
        self.catch_up(row, to)
        if self.kind == ADAM and row.touched < to:
            v = row.state[:, row.values.shape[1] :]
            with flushed():
                v[...] = (float(self.hyper[1]) ** (to - row.touched) * v.astype(np.float64)).astype(np.float32)


class BlockLocks:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def apply_rule(
    kind: int, lr: float, hyper: F64, step: int, values: F32, state: F32, grads: F32, locks: BlockLocks
) -> None:
    with locks.lock:
        _update(kind, lr, hyper, step, values[None], state[None], grads[None])


def shift_block(
    kind: int, lr: float, hyper: F64, step: int, values: F32, state: F32, deltas: F32, locks: BlockLocks
) -> None:
    _check(kind, step)
    with locks.lock, flushed():
        _follow(kind, lr, hyper, values[None], state[None], (values + deltas)[None])


@dataclass
class _Row:
    values: F32
    """[1, D]"""
    state: F32
    """[1, S]"""
    seen: int
    touched: int


class RowTable:
    """A dictionary from key to row number, and rows in lists."""

    def __init__(
        self,
        dim: int,
        state_width: int,
        seed: int,
        kind: int,
        a: float,
        b: float,
        initial_state: float = 0.0,
        notes: bool = False,
        idle: tuple[int, F64] | None = None,
    ) -> None:
        if notes and state_width < dim:
            raise ValueError("a table that notes needs a float of state for each value")
        self._idle = IdleSteps(*idle) if idle is not None else None
        self.dim, self.state_width, self.initial_state, self._notes = dim, state_width, initial_state, notes
        self._init = (seed, kind, a, b)
        self._lock = threading.Lock()
        self._rows: dict[int, _Row] = {}
        self._cut: list[tuple[int, _Row]] | None = None
        """What of an open cut is not read yet, by key."""

    def note_steps(self, first: int, last: int, lr: float) -> None:
        self._exact().note(first, last, lr)

    def forget_steps(self) -> None:
        self._exact().rates.clear()

    def _exact(self) -> IdleSteps:
        if self._idle is None:
            raise ValueError("this table is not exact: it has no use for steps")
        return self._idle

    def _row(self, key: int, clock: int) -> _Row:
        """The key's row; one that is missing is created."""
        if key in self._rows:
            return self._rows[key]
        seed, kind, a, b = self._init
        values = init_rows(seed, np.array([key], np.uint64), self.dim, kind, a, b)
        state = np.full((1, self.state_width), self.initial_state, np.float32)
        if self._notes:
            state[:, -self.dim :] = values
        return self._rows.setdefault(key, _Row(values, state, 0, clock if self._idle is None else 0))

    def pull(self, keys: U64, out: F32, create: bool, clock: int = 0) -> int:
        if self._idle is not None:
            self._idle.expect(clock)
        with self._lock:
            misses = 0
            for i, key in enumerate(keys.tolist()):
                missing = key not in self._rows
                misses += missing
                if missing and not create:
                    out[i] = 0.0
                    continue
                row = self._row(key, clock)
                if self._idle is not None:
                    self._idle.catch_up(row, clock)
                out[i] = row.values[0]
            return misses

    def push(
        self,
        keys: U64,
        grads: F32,
        kind: int,
        lr: float,
        hyper: F64,
        step: int,
        counts: U32 | None = None,
        clock: int = 0,
    ) -> None:
        self._expect_rule(kind)
        if self._idle is not None:
            self._idle.expect(clock)
        with self._lock:
            for i, key in enumerate(keys.tolist()):
                row = self._row(key, clock)
                if self._idle is not None:
                    self._idle.wake(row, clock - 1)
                _update(kind, lr, hyper, step, row.values, row.state, grads[i : i + 1])
                row.seen = min(row.seen + (1 if counts is None else int(counts[i])), 2**32 - 1)
                row.touched = clock if self._idle is None else max(row.touched, clock)

    def insert(self, keys: U64, values: F32, state: F32, seen: U32, touched: U32) -> None:
        with self._lock:
            for i, key in enumerate(keys.tolist()):
                row = _Row(values[i : i + 1].copy(), state[i : i + 1].copy(), int(seen[i]), int(touched[i]))
                self._rows[key] = row

    def take(self, keys: U64, shares: float, out: F32, counts: U32) -> None:
        self._expect_noted()
        with self._lock:
            for i, key in enumerate(keys.tolist()):
                out[i] = counts[i] = 0
                if key in self._rows:
                    counts[i], self._rows[key].seen = self._rows[key].seen, 0
                    row = self._rows[key]
                    told = row.state[:, -self.dim :]
                    with flushed():
                        out[i] = (row.values[0] - told[0]) / np.float32(shares)
                        told[0] += out[i]

    def rebase(self, keys: U64, values: F32, create: bool, kind: int, lr: float, hyper: F64, step: int) -> None:
        self._expect_noted()
        self._expect_rule(kind)
        _check(kind, step)
        with self._lock:
            for i, key in enumerate(keys.tolist()):
                if create or key in self._rows:
                    row = self._row(key, 0)
                    with flushed():
                        target = values[i : i + 1] + (row.values - row.state[:, -self.dim :])
                        _follow(kind, lr, hyper, row.values, row.state, target)
                    row.state[:, -self.dim :] = values[i : i + 1]

    def _expect_noted(self) -> None:
        if not self._notes:
            raise ValueError("this table does not note what was changed")

    def _expect_rule(self, kind: int) -> None:
        if bool(kind & NOTING) != self._notes:
            raise ValueError(
                "this table notes what was changed; the rule does not"
                if self._notes
                else "this table does not note what was changed; the rule does"
            )

    def contains(self, keys: U64) -> Bools:
        return np.array([key in self._rows for key in keys.tolist()], np.bool_)

    def scan(self, cursor: int, max_rows: int, clock: int = 0) -> Scanned:
        with self._lock:
            return self._scanned(self._copies()[cursor : cursor + max_rows], cursor, clock)

    def begin_cut(self) -> int:
        """The native table copies a row only when somebody is about to change it; what comes out is the same."""
        with self._lock:
            if self._cut is not None:
                raise ValueError("a cut of this table is open already")
            self._cut = self._copies()
            return len(self._cut)

    def scan_cut(self, max_rows: int, clock: int = 0, since: int | None = None) -> Scanned:
        with self._lock:
            if self._cut is None:
                raise ValueError("there is no open cut of this table")
            if since is not None:  # before copies are caught up, which would say that all rows were touched
                later = touched_after(np.array([row.touched for _, row in self._cut], np.uint32), since)
                self._cut = [row for row, changed in zip(self._cut, later.tolist(), strict=True) if changed]
            rows, self._cut = self._cut[:max_rows], self._cut[max_rows:]
        return self._scanned(rows, 0, clock)._replace(cursor=0)

    def end_cut(self) -> None:
        self._cut = None

    def _copies(self) -> list[tuple[int, _Row]]:
        return [
            (key, replace(row, values=row.values.copy(), state=row.state.copy())) for key, row in self._rows.items()
        ]

    def _scanned(self, rows: list[tuple[int, _Row]], cursor: int, clock: int) -> Scanned:
        if self._idle is not None:
            self._idle.expect(clock)
            for _, row in rows:
                self._idle.catch_up(row, clock)
        return Scanned(
            np.array([key for key, _ in rows], np.uint64),
            np.concatenate([np.empty((0, self.dim), np.float32), *[row.values for _, row in rows]]),
            np.concatenate([np.empty((0, self.state_width), np.float32), *[row.state for _, row in rows]]),
            np.array([row.seen for _, row in rows], np.uint32),
            np.array([row.touched for _, row in rows], np.uint32),
            cursor + len(rows),
        )

    def __len__(self) -> int:
        return len(self._rows)

    def memory_bytes(self) -> int:
        return len(self._rows) * (16 + 4 * (self.dim + self.state_width))

    def clear(self) -> None:
        if self._cut is not None:
            raise ValueError("a table cannot be cleared while a cut of it is open")
        self._rows.clear()
