"""When gradients and rows move: one contract (`base`), one file per mode."""

from sparsefleet.communicator.base import Communicator, Lane, StepGradients
from sparsefleet.communicator.direct import DirectCommunicator

__all__ = ["Communicator", "DirectCommunicator", "Lane", "StepGradients"]
