"""Readers, formats and batching: from files, pipes and Python objects to batches.

Names are loaded when they are first used: `sparsefleet.data.generator` is imported by pipe commands, once per
file, and must not wait for numpy.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sparsefleet.data.base import BatchStream, Epoch, Reader
    from sparsefleet.data.dataset_factory import DatasetFactory
    from sparsefleet.data.feeder import Feeder
    from sparsefleet.data.generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator
    from sparsefleet.data.in_memory import InMemoryDataset
    from sparsefleet.data.py_reader import PyReader
    from sparsefleet.data.queue_dataset import QueueDataset

_HOMES = {
    "BatchStream": "base",
    "DatasetFactory": "dataset_factory",
    "Epoch": "base",
    "Feeder": "feeder",
    "InMemoryDataset": "in_memory",
    "MultiSlotDataGenerator": "generator",
    "MultiSlotStringDataGenerator": "generator",
    "PyReader": "py_reader",
    "QueueDataset": "queue_dataset",
    "Reader": "base",
}

__all__ = [
    "BatchStream",
    "DatasetFactory",
    "Epoch",
    "Feeder",
    "InMemoryDataset",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "PyReader",
    "QueueDataset",
    "Reader",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
