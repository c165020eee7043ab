"""The kernels of every level that this machine runs, side by side in one process.

`sparsefleet.kernels.text` and its neighbours call the chosen level. `face("text", "baseline")` is that module over
again, calling another.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

import pytest

from sparsefleet.kernels import _native, levels


@cache
def face(name: str, level: str) -> ModuleType:
    spec = importlib.util.find_spec(f"sparsefleet.kernels.{name}")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._native = _native.kernels(level)
    return module


def lack(level: levels.Level) -> str | None:
    """Why a level cannot be tried here; None: it can."""
    if level.name not in _native.built_levels():
        return "it was not built"
    return levels.missing(level, levels.this_processor())


def others(name: str) -> list[object]:
    """Parameters for a test that takes `kernels`: all levels but the chosen one, which tests have anyway."""
    return [
        pytest.param(face(name, level), id=level) for level in levels.chosen.available if level != levels.chosen.level
    ]


EVERY_LEVEL = [
    pytest.param(
        level.name, marks=pytest.mark.skipif(why is not None, reason=f"level {level.name} is not tried here: {why}")
    )
    for level in levels.LEVELS
    for why in [lack(level)]
]
