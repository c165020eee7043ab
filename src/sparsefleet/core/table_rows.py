"""TableRows: rows of a sparse table on their way to or from disk or another process."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import ConfigError

U32 = npt.NDArray[np.uint32]

_UNTOLD: U32 = np.empty(0, np.uint32)


def touched_after(touched: U32, clock: int) -> npt.NDArray[np.bool_]:
    """Which rows were touched after this reading of their table's clock, as for the rows that changed since a cut.

    The clock goes round after 2^32 ticks, so it is compared by difference, which holds for a reading that is less than
    2^31 ticks old. A row that was not touched for 2^31 ticks counts as touched: too often, never too seldom.
    """
    ticks: U32 = touched - np.uint32(clock % 2**32)  # unsigned: goes round by itself
    return np.asarray((ticks != 0) & (ticks < np.uint32(2**31)))


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """U rows of D values and S floats of state. Keys are unique; element i of a field belongs to keys[i]."""

    keys: U64
    """[U]"""
    values: F32
    """[U, D]"""
    state: F32
    """[U, S]; S is 0 where the rule has no state or it was left out."""
    seen: U32
    """[U] how often each key has been met in training."""
    touched: U32 = field(default_factory=lambda: _UNTOLD)
    """[U] the clock of each row's last push, or of its creation, modulo 2^32; 0 where nobody told. `touched_after`
    compares."""

    def __post_init__(self) -> None:
        count = len(self.keys)
        if self.touched is _UNTOLD:
            object.__setattr__(self, "touched", np.zeros(count, np.uint32))
        for name, array, dtype, axes in (
            ("keys", self.keys, np.uint64, 1),
            ("values", self.values, np.float32, 2),
            ("state", self.state, np.float32, 2),
            ("seen", self.seen, np.uint32, 1),
            ("touched", self.touched, np.uint32, 1),
        ):
            if array.dtype != dtype or array.ndim != axes or len(array) != count:
                wanted = f"[{count}]" if axes == 1 else f"[{count}, width]"
                raise ConfigError(
                    f"table rows: {name} must be {np.dtype(dtype)} of shape {wanted}; got {array.dtype} {array.shape}"
                )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def dim(self) -> int:
        return int(self.values.shape[1])

    @property
    def state_width(self) -> int:
        return int(self.state.shape[1])

    def select(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> TableRows:
        """The rows under a mask or in the given order, copied."""
        return TableRows(self.keys[which], self.values[which], self.state[which], self.seen[which], self.touched[which])
