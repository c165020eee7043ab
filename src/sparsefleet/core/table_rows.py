"""TableRows: rows of a sparse table on their way to or from disk or another process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import ConfigError

U32 = npt.NDArray[np.uint32]


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
    """[U] how often each key has been met."""

    def __post_init__(self) -> None:
        count = len(self.keys)
        for name, array, dtype, axes in (
            ("keys", self.keys, np.uint64, 1),
            ("values", self.values, np.float32, 2),
            ("state", self.state, np.float32, 2),
            ("seen", self.seen, np.uint32, 1),
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
        return TableRows(self.keys[which], self.values[which], self.state[which], self.seen[which])
