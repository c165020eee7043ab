"""What the dense network computes in: float32, or bfloat16 where this machine gains by it.

Parameters, tables and sums are float32 either way. With bf16, `DenseTower` multiplies with its own kernels, and all
other layers under torch's autocast. Both are tried once per process: a processor may have the instructions and be
slower with them, and torch's own bfloat16 fails on some virtual machines ("could not create a primitive").
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels import levels
from sparsefleet.kernels.tower import half_speedup

logger = logging.getLogger(__name__)

PRECISIONS = ("float32", "bf16")
WORTH = 1.05
"""Below this, bfloat16 is not worth its rounding."""


@dataclass(frozen=True, slots=True)
class Half:
    """What this machine does when it is asked for bfloat16."""

    tower: bool
    """DenseTower's products are bfloat16."""
    autocast: bool
    """torch's own layers compute under autocast."""
    note: str | None
    """What a user should know, in one line."""


_thread = threading.local()


def tower_in_half() -> bool:
    """Whether DenseTower is to multiply in bfloat16 now, in this thread."""
    cast = torch.is_autocast_enabled("cpu")  # by `computing_in` or by the model itself, which may switch it off too
    if not cast and not getattr(_thread, "half", False):
        return False
    machine = this_machine()
    return machine.tower and (cast or not machine.autocast)


def is_half(precision: str) -> bool:
    """Whether bfloat16 is asked for; what is neither that nor float32 is refused."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision={precision!r} is not a precision; choose {' or '.join(PRECISIONS)}")
    return precision == "bf16"


def computing_in(precision: str) -> AbstractContextManager[object]:
    """Inside, this thread's dense networks compute in `precision`, as far as this machine gains by it."""
    if not is_half(precision):
        return nullcontext()
    half = this_machine()
    return _InHalf(half.autocast) if half.tower else nullcontext()


@lru_cache(maxsize=1)
def this_machine() -> Half:
    """Found out once, by trying; told once, where it is not what was asked for."""
    half = decide(levels.chosen, half_speedup, torch_bf16_error)
    if half.note:
        logger.warning("%s", half.note)
    return half


def decide(choice: levels.Choice, speedup: Callable[[], float], torch_error: Callable[[], str | None]) -> Half:
    if not choice.half:
        note = f"bf16: this processor (level {choice.level}) gains nothing by it; computing in float32"
        return Half(False, False, note)
    measured = speedup()
    if measured < WORTH:
        return Half(
            False, False, f"bf16: {measured:.2f} times as fast as float32 on this processor; computing in float32"
        )
    error = torch_error()
    if error is not None:
        note = f"bf16: torch's own bfloat16 does not work here ({error}); layers other than DenseTower stay float32"
        return Half(True, False, note)
    return Half(True, True, None)


@lru_cache(maxsize=1)
def torch_bf16_error() -> str | None:
    """Why torch's own layers cannot compute in bfloat16 here; None if they can."""
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=torch.bfloat16):
            # Large enough that torch takes its library of kernels (oneDNN), which is what fails.
            nn.Linear(64, 64)(torch.ones(64, 64, requires_grad=True)).sum().backward()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


class _InHalf:
    def __init__(self, autocast: bool) -> None:
        self._autocast = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()

    def __enter__(self) -> None:
        self._before = getattr(_thread, "half", False)
        _thread.half = True
        self._autocast.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._autocast.__exit__(*error)
        _thread.half = self._before
