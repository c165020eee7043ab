"""DenseTower: a stack of fully connected layers with relu between them, as fast as the processor allows.

What stands between plain torch and the processor on this network, as measured (benchmarks/local.md): fresh memory for
every activation and gradient (page faults), bias and relu as passes of their own, and the autograd graph's work per
layer. So the whole tower is one autograd node that keeps its buffers from step to step and writes parameter gradients
straight to where the trainer wants them. The arithmetic is that of `nn.Linear` and `relu`.

Legend: B rows, `sizes` = widths from input to output, L = len(sizes) - 1 layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.core.errors import ConfigError

GRADIENT_TARGET = "gradient_target"
"""A parameter's attribute of this name, where set, is the tensor that its gradient is to be written into."""


class DenseTower(nn.Module):
    """[B, sizes[0]] -> [B, sizes[-1]]: linear layers, relu after all but the last."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise ConfigError(f"sizes={tuple(sizes)}: a tower needs at least an input and an output width, all above 0")
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self._free: list[_Workspace] = []

    def linear_layers(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parameters = [p for layer in self.linear_layers() for p in (layer.weight, layer.bias)]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            half = torch.is_autocast_enabled("cpu")
            out: torch.Tensor = _Tower.apply(x, self._free, half, *parameters)  # type: ignore[no-untyped-call]
            return out
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        last: torch.Tensor = self.layers[-1](x)
        return last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": []}  # a copy of the module makes its own buffers


class _Workspace:
    """Buffers of one forward and backward pass over B rows."""

    def __init__(self, rows: int, weights: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        self.key = (rows, dtype)
        self.activations = [torch.empty(rows, w.shape[0], dtype=dtype) for w in weights]
        self.deltas = [torch.empty(rows, w.shape[1], dtype=dtype) for w in weights]
        self.ones = torch.ones(rows, dtype=dtype)
        self.weights = [torch.empty_like(w, dtype=dtype) for w in weights] if dtype != torch.float32 else []
        self._gradients: dict[int, torch.Tensor] = {}

    def gradient_buffer(self, index: int, parameter: torch.Tensor) -> torch.Tensor:
        if index not in self._gradients:
            self._gradients[index] = torch.empty_like(parameter, dtype=self.key[1])
        return self._gradients[index]


# Whole passes as TorchScript: called from Python they run without the GIL, start to end. As separate operations a pass
# gives it away and takes it back some thirty times, and two training threads spend their time handing it to each other.


@torch.jit.script
def _forward(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor], out: list[torch.Tensor]) -> None:
    h = x
    for i in range(len(weights)):
        torch.addmm(biases[i], h, weights[i].t(), out=out[i])
        h = out[i]
        if i < len(weights) - 1:
            h.relu_()


@torch.jit.script
def _backward(
    x: torch.Tensor,
    delta: torch.Tensor,
    weights: list[torch.Tensor],
    activations: list[torch.Tensor],
    deltas: list[torch.Tensor],
    weight_gradients: list[torch.Tensor],
    bias_gradients: list[torch.Tensor],
    ones: torch.Tensor,
    to_input: bool,
) -> None:
    for k in range(len(weights)):
        i = len(weights) - 1 - k
        below = activations[i - 1] if i > 0 else x
        torch.mm(delta.t(), below, out=weight_gradients[i])
        torch.mv(delta.t(), ones, out=bias_gradients[i])
        if i > 0 or to_input:
            torch.mm(delta, weights[i], out=deltas[i])
            delta = deltas[i]
        if i > 0:
            delta.masked_fill_(below == 0, 0.0)  # relu's own derivative


class _Tower(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, free: list[_Workspace], half: bool, *parameters: torch.Tensor
    ) -> torch.Tensor:
        weights, biases = list(parameters[0::2]), list(parameters[1::2])
        dtype = torch.bfloat16 if half else torch.float32
        space = _take(free, len(x), weights, dtype)
        x = x.detach().to(dtype)
        if half:
            for copy, weight in zip(space.weights, weights, strict=True):
                copy.copy_(weight.detach())
            weights, biases = space.weights, [bias.to(dtype) for bias in biases]
        _forward(x, [w.detach() for w in weights], [b.detach() for b in biases], space.activations)
        ctx.x, ctx.space, ctx.free, ctx.parameters, ctx.half = x, space, free, parameters, half
        out = space.activations[-1]
        # The caller may keep the result; the buffer will be written again.
        return out.float() if half else out.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        space: _Workspace = ctx.space
        parameters: tuple[torch.Tensor, ...] = ctx.parameters
        weights = parameters[0::2]
        gradients = [_Gradient(p, space, index) for index, p in enumerate(parameters)]
        _backward(
            ctx.x,
            grad.to(space.ones.dtype),
            space.weights if ctx.half else [w.detach() for w in weights],
            space.activations,
            space.deltas,
            [gradient.buffer for gradient in gradients[0::2]],
            [gradient.buffer for gradient in gradients[1::2]],
            space.ones,
            ctx.needs_input_grad[0],
        )
        for gradient in gradients:
            gradient.hand_over()
        ctx.free.append(space)
        ctx.space = None
        grad_x = space.deltas[0].float() if ctx.needs_input_grad[0] else None
        return (grad_x, None, None, *[None] * len(parameters))


def _take(free: list[_Workspace], rows: int, weights: Sequence[torch.Tensor], dtype: torch.dtype) -> _Workspace:
    """A free workspace of this size, or a new one: a second forward before the first's backward gets its own."""
    for index, space in enumerate(free):
        if space.key == (rows, dtype):
            return free.pop(index)
    if len(free) > 4:  # sizes that come no more, such as an epoch's short last batch
        free.pop(0)
    return _Workspace(rows, weights, dtype)


class _Gradient:
    """Where a parameter's gradient is computed, and how it gets to the parameter."""

    def __init__(self, parameter: torch.Tensor, space: _Workspace, index: int) -> None:
        self._parameter = parameter
        # Straight into its target where nothing has to be added or converted, else into a buffer in between.
        self._direct = parameter.requires_grad and parameter.grad is None and space.key[1] == torch.float32
        self.buffer = _target(parameter) if self._direct else space.gradient_buffer(index, parameter)

    def hand_over(self) -> None:
        """parameter.grad = (or +=) the gradient, in the parameter's precision."""
        parameter = self._parameter
        if self._direct:
            parameter.grad = self.buffer
        elif parameter.grad is not None:
            parameter.grad += self.buffer
        elif parameter.requires_grad:
            parameter.grad = _target(parameter).copy_(self.buffer)


def _target(parameter: torch.Tensor) -> torch.Tensor:
    target: torch.Tensor | None = getattr(parameter, GRADIENT_TARGET, None)
    return torch.empty_like(parameter) if target is None else target
