"""fluid.framework: programs, which stand for a model where they can mean only one, and are refused elsewhere."""

from __future__ import annotations

from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.places import CPUPlace, CUDAPlace
from sparsefleet.fleet.old_shapes import MAIN_PROGRAM, STARTUP_PROGRAM, MainProgram, StartupProgram

__all__ = ["CPUPlace", "CUDAPlace", "default_main_program", "default_startup_program"]

_INSTEAD = {
    "Program": "a model is a torch.nn.Module: make one more for scoring, sf.CTRDNN(), and hand it over as program",
    "program_guard": "make a model, sf.CTRDNN(), in the place of the network inside it",
    "Variable": "tensors are torch's",
    "Parameter": "parameters are torch's; rows of tables are sf.nn.SparseEmbedding's",
}


def default_main_program() -> MainProgram:
    """Stands for the model whose loss an optimizer was told to minimize."""
    return MAIN_PROGRAM


def default_startup_program() -> StartupProgram:
    """Stands for the making of parameters: running it does nothing."""
    return STARTUP_PROGRAM


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise ConfigError(f"fluid.framework.{name} is not here: {_INSTEAD[name]} (docs/from-paddle.md)")
    raise AttributeError(f"fluid.framework has no {name!r}")
