"""DenseBlock: a model's trainable parameters as one flat array, and its copies that share it.

The store keeps and updates the flat values; every copy of the model looks into the same memory, so an update shows in
all of them at once. Gradients are not shared: each copy has a flat array of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import ConfigError
from sparsefleet.nn.tower import GRADIENT_TARGET

CACHE_LINE = 64
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one parameter lies in the block."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class DenseBlock:
    def __init__(self, model: nn.Module) -> None:
        """Move the model's trainable parameters into one array; the model goes on using them there."""
        pieces, start = [], 0
        for name, parameter in _trainable(model):
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise ConfigError(
                    f"parameter {name!r} is {parameter.dtype} on {parameter.device}; dense parameters must be float32 "
                    "on the CPU (precision='bf16' computes in bfloat16 and keeps float32 parameters)"
                )
            pieces.append(Piece(name, tuple(parameter.shape), start, start + parameter.numel()))
            start += parameter.numel()
        self.pieces = tuple(pieces)
        self.values: F32 = _at_a_cache_line(start)
        for piece, (_, parameter) in zip(self.pieces, _trainable(model), strict=True):
            self.values[piece.start : piece.stop] = parameter.detach().reshape(-1).numpy()
        self.share_with(model)

    def share_with(self, model: nn.Module) -> None:
        """Make this copy of the model look into the block."""
        for parameter, view in zip(self._parameters_of(model), self.views(self.values), strict=True):
            parameter.data = view

    def gradients_for(self, model: nn.Module) -> Gradients:
        """A flat gradient array for this copy of the model."""
        return Gradients(self._parameters_of(model), self)

    def views(self, flat: F32) -> list[torch.Tensor]:
        whole = torch.from_numpy(flat)
        return [whole[piece.start : piece.stop].view(piece.shape) for piece in self.pieces]

    def _parameters_of(self, model: nn.Module) -> list[nn.Parameter]:
        found = _trainable(model)
        if [(name, tuple(p.shape)) for name, p in found] != [(piece.name, piece.shape) for piece in self.pieces]:
            raise ConfigError("this model's trainable parameters differ from those the dense block was made from")
        return [parameter for _, parameter in found]


class Gradients:
    """The flat gradient of one copy of the model, filled by `collect` after backward."""

    def __init__(self, parameters: Sequence[nn.Parameter], block: DenseBlock) -> None:
        self.flat: F32 = _at_a_cache_line(len(block.values))
        self._parameters = tuple(parameters)
        self._targets = block.views(self.flat)
        for parameter, target in zip(self._parameters, self._targets, strict=True):
            setattr(parameter, GRADIENT_TARGET, target)  # DenseTower writes there and saves a copy

    def reset(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def collect(self) -> F32:
        for parameter, target in zip(self._parameters, self._targets, strict=True):
            if parameter.grad is None:
                target.zero_()
            elif parameter.grad is not target:
                target.copy_(parameter.grad)
        return self.flat


def _at_a_cache_line(count: int) -> F32:
    """Zeros that begin at a cache line: matrix products read weights where they stand if their rows do (gemm.cpp)."""
    room: F32 = np.zeros(count + CACHE_LINE // 4, np.float32)
    start = -room.ctypes.data % CACHE_LINE // 4
    return room[start : start + count]


def _trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
