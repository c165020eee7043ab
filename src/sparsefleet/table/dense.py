"""DenseTable: the dense parameters of a model as one flat block, with the rule that updates them.

Legend: n values in the block. State is in segments of n floats one after the other (Adam: m, then v).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import StoreError
from sparsefleet.kernels import table as kernels
from sparsefleet.optim.base import UpdateRule
from sparsefleet.optim.sgd import SGD


@dataclass(frozen=True, slots=True, eq=False)
class DenseCut:
    """A dense block at one moment: copies, which nobody changes."""

    name: str
    rule: UpdateRule
    values: F32
    state: F32
    step: int

    def __len__(self) -> int:
        return len(self.values)


class DenseTable:
    """Adopts the array it is given: updates happen in it, and whoever holds it sees them at once.

    Threads may push at the same time and no update is lost. Readers do not lock: they may see one part of the
    block before an update and another after it (Hogwild).
    """

    def __init__(self, name: str, values: F32, rule: UpdateRule) -> None:
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.ndim != 1:
            came = f"{values.dtype} of shape {list(values.shape)}" if isinstance(values, np.ndarray) else type(values)
            raise StoreError(f"dense block {name!r}: values must be one flat array of float32; got {came}")
        if not values.flags.c_contiguous or not values.flags.writeable:
            raise StoreError(
                f"dense block {name!r}: values are updated in place, so they must be contiguous and writable"
            )
        self.name, self.values = name, values
        self.rule = rule.for_dense()
        self.state: F32 = np.full(self.rule.state_width(len(values)), self.rule.initial_state(), np.float32)
        self._hyper = np.array(self.rule.hyperparameters(), np.float64)
        self._locks = kernels.BlockLocks()
        self._step_lock = threading.Lock()
        self._step = self._fresh_at = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def step(self) -> int:
        """Pushes so far; the rule's clock."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        if step < 0:
            raise StoreError(f"dense block {self.name!r}: step={step} must be 0 or above")
        with self._step_lock:
            self._step = step

    def begin_at(self, step: int) -> None:
        """The schedule goes on from this step, with state that begins here: its own clock, Adam's, begins at 0."""
        self.step = self._fresh_at = step

    @property
    def memory_bytes(self) -> int:
        return self.values.nbytes + self.state.nbytes

    def begin_cut(self) -> DenseCut:
        """The block as it is now. The caller sees to it that no push is half-way meanwhile."""
        return DenseCut(self.name, self.rule, self.values.copy(), self.state.copy(), self.step)

    def add(self, deltas: F32) -> None:
        """Add what others have changed to the values, none of the other updates lost; no step.

        State stays, but FTRL's, which values are made of: it follows them.
        """
        if len(self.state):
            rule, step = self.rule, max(self._step, 1)
            kind, rate, hyper = rule.kind, rule.rate(step), self._hyper
        else:
            kind, rate, hyper, step = SGD.kind, 0.0, np.empty(0, np.float64), 1
        kernels.shift_block(kind, rate, hyper, step, self.values, self.state, deltas, self._locks)

    def push(self, grads: F32) -> None:
        """One step of the rule."""
        if not isinstance(grads, np.ndarray) or grads.dtype != np.float32 or grads.shape != self.values.shape:
            came = f"{grads.dtype} of shape {list(grads.shape)}" if isinstance(grads, np.ndarray) else type(grads)
            raise StoreError(
                f"dense block {self.name!r} has {len(self.values)} values: gradients must be float32 of "
                f"shape [{len(self.values)}]; got {came}"
            )
        with self._step_lock:
            self._step += 1
            step = self._step
        rule = self.rule
        kernels.apply_rule(
            rule.kind,
            rule.rate(step),
            self._hyper,
            step - self._fresh_at,
            self.values,
            self.state,
            np.ascontiguousarray(grads),
            self._locks,
        )
