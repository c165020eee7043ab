"""fleet.util: small things that trainers do together. (A module `util` would take the place of `fleet.util`.)"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.core.errors import ConfigError
from sparsefleet.crew import Crew
from sparsefleet.data.files import expanded
from sparsefleet.data.split import Path, split_files

Array = npt.NDArray[Any]
_MODES: dict[str, Callable[[Sequence[Array]], Array]] = {
    "sum": lambda parts: np.sum(parts, axis=0),
    "max": lambda parts: np.max(parts, axis=0),
    "min": lambda parts: np.min(parts, axis=0),
}


class Util:
    """All trainers make the same calls, in the same order; in one process every call returns what it was given."""

    def __init__(self, crew: Callable[[], Crew]) -> None:
        self._crew = crew

    def all_reduce(self, input: Any, mode: str = "sum", comm_world: str = "worker") -> Any:
        """The sum, maximum or minimum over all trainers of a number, a list or an array, place by place."""
        if mode not in _MODES:
            raise ConfigError(f"all_reduce: mode={mode!r}; choose {', '.join(_MODES)}")
        parts = self._gather("all_reduce", input, comm_world)
        if len({part.shape for part in parts}) > 1:
            shapes = ", ".join(f"{list(part.shape)} of trainer {index}" for index, part in enumerate(parts))
            raise ConfigError(f"all_reduce: all trainers must give the same shape; got {shapes}")
        result = _MODES[mode](parts)
        return result.item() if np.ndim(input) == 0 else result

    def all_gather(self, input: Any, comm_world: str = "worker") -> list[Any]:
        """What every trainer gave, in the order of the trainers."""
        parts = self._gather("all_gather", input, comm_world)
        return [part.item() if part.ndim == 0 else part for part in parts]

    def barrier(self, comm_world: str = "worker") -> None:
        """Return when every trainer has come here."""
        _check_world(comm_world)
        self._crew().barrier("util barrier")

    def get_file_shard(self, files: Sequence[Path]) -> list[str]:
        """Whole files of this trainer; `fleet.split_files` also cuts files, so that shares are even."""
        crew, files = self._crew(), expanded(files)
        if 0 < len(files) < crew.size:
            raise ConfigError(
                f"get_file_shard: {len(files)} file(s) for {crew.size} trainers, and it gives whole files, of which "
                "some would get none: write fleet.split_files(files), which cuts files, or give more of them"
            )
        return split_files(files, crew.index, crew.size, cuttable=False)

    def print_on_rank(self, message: str, rank_id: int) -> None:
        """Print, on one trainer only."""
        if self._crew().index == rank_id:
            print(message, flush=True)

    def _gather(self, what: str, given: Any, comm_world: str) -> list[Array]:
        _check_world(comm_world)
        array = np.asarray(given)
        if array.dtype.kind not in "biuf":
            raise ConfigError(f"{what}({given!r:.60}): give a number, a list of numbers or an array of them")
        described = {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "bytes": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
        }
        return [_array(part) for part in self._crew().reduce(f"util {what}", described)]


def _array(part: Any) -> Array:
    return np.frombuffer(base64.b64decode(part["bytes"]), np.dtype(part["dtype"])).reshape(part["shape"])


def _check_world(comm_world: str) -> None:
    if comm_world != "worker":
        raise ConfigError(f"comm_world={comm_world!r}: here trainers meet, and nobody else; write 'worker'")
