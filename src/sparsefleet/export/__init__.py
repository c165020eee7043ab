"""Bundles: what serving needs of a trained model, in one folder. See FORMAT.md.

Names are loaded when they are first used: reading a bundle (`Bundle`) must not wait for torch, which only writing
one (`export_checkpoint`, `export_model`) needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsefleet.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparsefleet.export.bundle import Bundle
    from sparsefleet.export.exporting import Exported, export_checkpoint, export_model

_HOMES = {"Bundle": "bundle", "Exported": "exporting", "export_checkpoint": "exporting", "export_model": "exporting"}

__all__ = ["Bundle", "Exported", "export_checkpoint", "export_model"]


__getattr__ = lazy_names(__name__, _HOMES)
