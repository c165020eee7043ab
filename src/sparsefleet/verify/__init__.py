"""Is online what offline is? `verify` compares a checkpoint with every place that serves it; `replay` sends logged
requests again and compares the scores.

Names are loaded when they are first used: `replay` must not wait for torch, which only the checkpoint's network needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsefleet.verify.replay import ReplayConfig, replay
    from sparsefleet.verify.report import Report
    from sparsefleet.verify.run import VerifyConfig, verify

_HOMES = {"Report": "report", "ReplayConfig": "replay", "VerifyConfig": "run", "replay": "replay", "verify": "run"}

__all__ = ["ReplayConfig", "Report", "VerifyConfig", "replay", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
