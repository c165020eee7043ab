"""Bundles: what serving needs of a trained model, in one folder. See FORMAT.md.

Names are loaded when they are first used: reading a bundle (`Bundle`) must not wait for torch, which only writing
one (`export_checkpoint`, `export_model`) needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsefleet.export.bundle import Bundle
    from sparsefleet.export.exporting import Exported, export_checkpoint, export_model

_HOMES = {"Bundle": "bundle", "Exported": "exporting", "export_checkpoint": "exporting", "export_model": "exporting"}

__all__ = ["Bundle", "Exported", "export_checkpoint", "export_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
