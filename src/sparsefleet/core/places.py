"""Places: where Fluid's programs compute. Here it is always the processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from sparsefleet.core.errors import ConfigError


@dataclass(frozen=True)
class CPUPlace:
    """`Trainer(CPUPlace())` takes the optimizer of `fleet.distributed_optimizer`, or one told to minimize."""


def CUDAPlace(device_id: int = 0) -> NoReturn:
    raise ConfigError("CUDAPlace: SparseFleet trains on processors; write CPUPlace()")
