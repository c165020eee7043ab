"""The cross layers of DCN-v2: x_{l+1} = x_0 * (W x_l + b) + x_l.

Legend: B samples, d features.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsefleet.core.batch import F32
from sparsefleet.kernels.tower import TowerSpace
from sparsefleet.nn.deep import initialise
from sparsefleet.nn.precision import tower_in_half
from sparsefleet.nn.tower import DenseTower, ParameterGradient, Workspace, empty, own_nodes, plain, take_workspace


class CrossLayers(nn.Module):
    """[B, d] -> [B, d]. `rank` above 0: W = U V with inner width `rank`, which is cheaper for a wide d.

    In training, layers of full matrices are one autograd node, whose buffers are kept from step to step; with `rank`,
    in scoring, for an exporter and layer by layer, torch goes from layer to layer.
    """

    def __init__(self, features: int, layers: int, rank: int = 0) -> None:
        super().__init__()
        inner = nn.ModuleList()
        for _ in range(layers):
            parts = [DenseTower([features, features])] if not rank else [nn.Linear(features, rank, bias=False)]
            inner.append(nn.Sequential(*parts, *([DenseTower([rank, features])] if rank else [])))
        self.layers = inner
        self._full = not rank
        self._free: list[Workspace[_Space]] = []
        initialise(self)

    def forward(self, first: torch.Tensor) -> torch.Tensor:
        if self._full and own_nodes(first) and torch.is_grad_enabled():
            linear = [each for each in self.layers.modules() if isinstance(each, nn.Linear)]
            parameters = [p for each in linear for p in (each.weight, each.bias)]
            if all(map(plain, parameters)):
                out: torch.Tensor = _Cross.apply(first, self._free, tower_in_half(), *parameters)  # type: ignore[no-untyped-call]
                return out
        x = first
        for layer in self.layers:
            x = torch.addcmul(x, first, layer(x))
        return x

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": []}  # a copy of the module makes its own buffers


class _Space:
    """Buffers of one forward and backward pass."""

    def __init__(self, samples: int, features: int, layers: int) -> None:
        self.products = [TowerSpace(samples, [features, features]) for _ in range(layers)]
        self.inputs: list[F32] = [np.empty((samples, features), np.float32) for _ in range(layers)]
        """What each layer takes; the first place is for the batch's own array."""
        self.made: list[F32] = [np.empty((samples, features), np.float32) for _ in range(layers)]
        """W x + b of each layer."""
        self.scratch, self.grad, self.below = np.empty((3, samples, features), np.float32)
        """Backward: of a product, and the gradients of a layer's output and of its product's input."""


class _Cross(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: torch.Tensor, free: list[Workspace[_Space]], half: bool, *parameters: torch.Tensor
    ) -> torch.Tensor:
        rows: F32 = first.detach().float().contiguous().numpy()
        weights, biases = ([each.detach().numpy() for each in parameters[part::2]] for part in range(2))
        sizes = (*rows.shape, len(weights))
        workspace = take_workspace(free, sizes, partial(_Space, *sizes))
        space, out = workspace.space, empty(*rows.shape)
        space.inputs[0] = rows
        following = [*space.inputs[1:], out.numpy()]
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            taken, made = space.inputs[layer], space.made[layer]
            space.products[layer].forward(taken, [weight], [bias], made, half)
            np.multiply(rows, made, out=following[layer])
            following[layer] += taken
        ctx.workspace, ctx.free, ctx.half, ctx.parameters, ctx.weights = workspace, free, half, parameters, weights
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        workspace: Workspace[_Space] | None = ctx.workspace
        if workspace is None:
            raise RuntimeError("backward through the same CrossLayers output twice: its buffers are in use again")
        space = workspace.space
        gradients = [ParameterGradient(p, workspace, index) for index, p in enumerate(ctx.parameters)]
        buffers: list[F32] = [gradient.buffer.numpy() for gradient in gradients]
        rows, grad_first = space.inputs[0], empty(*space.inputs[0].shape)
        of_first: F32 = grad_first.numpy()
        np.copyto(space.grad, grad.float().numpy())
        of_first[:] = 0
        for layer in reversed(range(len(ctx.weights))):
            np.multiply(space.grad, space.made[layer], out=space.scratch)
            of_first += space.scratch
            np.multiply(space.grad, rows, out=space.scratch)
            to_weight, to_bias = buffers[2 * layer : 2 * layer + 2]
            space.products[layer].backward(
                space.inputs[layer], [ctx.weights[layer]], space.scratch, [to_weight], [to_bias], space.below, ctx.half
            )
            space.grad += space.below
        of_first += space.grad
        for gradient in gradients:
            gradient.hand_over()
        ctx.free.append(workspace)
        ctx.workspace = None
        return (grad_first, None, None, *[None] * len(gradients))
