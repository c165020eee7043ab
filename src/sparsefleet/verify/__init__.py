"""Is online what offline is? `verify` compares a checkpoint with every place that serves it; `replay` sends logged
requests again and compares the scores.

Names are loaded when they are first used: `replay` must not wait for torch, which only the checkpoint's network needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsefleet.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparsefleet.verify.replay import ReplayConfig, replay
    from sparsefleet.verify.report import Report
    from sparsefleet.verify.run import VerifyConfig, verify

_HOMES = {"Report": "report", "ReplayConfig": "replay", "VerifyConfig": "run", "replay": "replay", "verify": "run"}

__all__ = ["ReplayConfig", "Report", "VerifyConfig", "replay", "verify"]


__getattr__ = lazy_names(__name__, _HOMES)
