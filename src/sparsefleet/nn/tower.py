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
        if dtype != torch.float32:
            self.weights = [torch.empty_like(w, dtype=dtype) for w in weights]
            self.gradients = [torch.empty_like(w, dtype=dtype) for w in weights]


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
        h = x
        for out, weight, bias in zip(space.activations, weights, biases, strict=True):
            torch.addmm(bias, h, weight.t(), out=out)
            h = out if out is space.activations[-1] else out.relu_()
        ctx.x, ctx.space, ctx.free, ctx.parameters, ctx.half = x, space, free, parameters, half
        # The caller may keep the result; the buffer will be written again.
        return h.float() if half else h.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        space: _Workspace = ctx.space
        parameters: tuple[torch.Tensor, ...] = ctx.parameters
        delta = grad.to(space.ones.dtype)
        for index in reversed(range(len(space.activations))):
            weight, bias = parameters[2 * index], parameters[2 * index + 1]
            below = space.activations[index - 1] if index else ctx.x
            if ctx.half:
                torch.mm(delta.t(), below, out=space.gradients[index])
                _give(weight, space.gradients[index])
                _give(bias, delta.sum(0, dtype=torch.float32))
            else:
                _matmul_into(weight, delta.t(), below)
                _matmul_into(bias, delta.t(), space.ones)
            if index or ctx.needs_input_grad[0]:
                used = space.weights[index] if ctx.half else weight.detach()
                delta = torch.mm(delta, used, out=space.deltas[index])
            if index:
                torch.ops.aten.threshold_backward.grad_input(delta, below, 0, grad_input=delta)
        ctx.free.append(space)
        ctx.space = None
        grad_x = delta.float() if ctx.needs_input_grad[0] else None
        return (grad_x, None, None, *[None] * len(parameters))


def _take(free: list[_Workspace], rows: int, weights: Sequence[torch.Tensor], dtype: torch.dtype) -> _Workspace:
    """A free workspace of this size, or a new one: a second forward before the first's backward gets its own."""
    for index, space in enumerate(free):
        if space.key == (rows, dtype):
            return free.pop(index)
    if len(free) > 4:  # sizes that come no more, such as an epoch's short last batch
        free.pop(0)
    return _Workspace(rows, weights, dtype)


def _matmul_into(parameter: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """parameter.grad = (or +=) a @ b, without a temporary."""
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = _target(parameter)
        torch.matmul(a, b, out=parameter.grad)
    else:
        parameter.grad += torch.matmul(a, b)


def _give(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """parameter.grad = (or +=) gradient, in the parameter's precision."""
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = _target(parameter).copy_(gradient)
    else:
        parameter.grad += gradient


def _target(parameter: torch.Tensor) -> torch.Tensor:
    target: torch.Tensor | None = getattr(parameter, GRADIENT_TARGET, None)
    return torch.empty_like(parameter) if target is None else target
