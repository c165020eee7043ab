"""When gradients and rows move: one contract (`base`), one file per mode."""

from __future__ import annotations

from collections.abc import Mapping

from sparsefleet.communicator.async_ import AsyncCommunicator
from sparsefleet.communicator.base import Communicator, CommunicatorConfig, Lane, Parameters, StepGradients
from sparsefleet.communicator.direct import DirectCommunicator
from sparsefleet.communicator.geo import GeoCommunicator
from sparsefleet.communicator.half_async import HalfAsyncCommunicator
from sparsefleet.communicator.sync import SyncCommunicator

MODES: Mapping[str, type[Communicator]] = {
    "sync": SyncCommunicator,
    "half_async": HalfAsyncCommunicator,
    "async": AsyncCommunicator,
    "geo": GeoCommunicator,
}
"""What `mode` may be."""

__all__ = [
    "MODES",
    "AsyncCommunicator",
    "Communicator",
    "CommunicatorConfig",
    "DirectCommunicator",
    "GeoCommunicator",
    "HalfAsyncCommunicator",
    "Lane",
    "Parameters",
    "StepGradients",
    "SyncCommunicator",
]
