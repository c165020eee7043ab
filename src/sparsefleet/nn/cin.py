"""The compressed interaction network of xDeepFM: products of vectors, value by value, compressed layer after layer.

Legend: B samples, S slots, D values of a vector, H maps of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.layers import Interactions
from sparsefleet.nn.deep import initialise
from sparsefleet.nn.tower import DenseTower, ParameterGradient, Workspace, empty, own_nodes, plain, take_workspace


class CompressedInteractions(nn.Module):
    """[B, S, D] -> [B, sum of H]: each layer's maps, summed over the D values.

    A layer multiplies each of its H maps with each of the S vectors and mixes the H * S products into the next maps.
    All layers are one autograd node over our own kernel, which never has the products of a whole batch in memory; it is
    float32 with bf16 too. For an exporter and layer by layer, vectors are turned to [B * D, S]: mixing is one matrix
    product then.
    """

    def __init__(self, slots: int, maps: Sequence[int]) -> None:
        super().__init__()
        self._slots = slots
        before = [slots, *maps[:-1]]
        self.mixing = nn.ModuleList(DenseTower([width * slots, made]) for width, made in zip(before, maps, strict=True))
        self._free: list[Workspace[Interactions]] = []
        initialise(self)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        layers = [layer for mix in self.mixing if isinstance(mix, DenseTower) for layer in mix.linear_layers()]
        parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
        if own_nodes(vectors) and all(map(plain, parameters)):
            if vectors.dim() != 3 or vectors.shape[1] != self._slots:
                raise ConfigError(
                    f"CompressedInteractions of {self._slots} slots take [samples, {self._slots}, values of a vector]; "
                    f"the input is {list(vectors.shape)}"
                )
            made: torch.Tensor = _Interactions.apply(vectors, self._free, torch.is_grad_enabled(), *parameters)  # type: ignore[no-untyped-call]
            return made
        dim = vectors.shape[2]
        first = vectors.transpose(1, 2).flatten(0, 1)  # [B * D, S]
        x, out = first, []
        for mix in self.mixing:
            products = (x.unsqueeze(2) * first.unsqueeze(1)).flatten(1)  # [B * D, H * S]
            x = mix(products)
            out.append(x.unflatten(0, (-1, dim)).sum(1))
        return torch.cat(out, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": []}  # a copy of the module makes its own buffers


class _Interactions(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, vectors: torch.Tensor, free: list[Workspace[Interactions]], learns: bool, *parameters: torch.Tensor
    ) -> torch.Tensor:
        arrays: list[F32] = [parameter.detach().numpy() for parameter in parameters]
        maps = [len(bias) for bias in arrays[1::2]]
        samples, slots, dim = vectors.shape
        workspace = take_workspace(free, vectors.shape, lambda: Interactions(samples, slots, dim, maps))
        values: F32 = vectors.detach().float().contiguous().numpy()
        out = empty(samples, sum(maps))
        workspace.space.forward(values, arrays[0::2], arrays[1::2], out.numpy())
        if learns:
            ctx.values, ctx.workspace, ctx.free, ctx.parameters = values, workspace, free, parameters
        else:
            free.append(workspace)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        workspace: Workspace[Interactions] = ctx.workspace
        if workspace is None:
            raise RuntimeError("backward through the same interactions twice: their buffers are in use again")
        gradients = [ParameterGradient(p, workspace, index) for index, p in enumerate(ctx.parameters)]
        buffers: list[F32] = [gradient.buffer.numpy() for gradient in gradients]
        weights: list[F32] = [parameter.detach().numpy() for parameter in ctx.parameters[0::2]]
        grad_vectors = empty(*ctx.values.shape)
        workspace.space.backward(
            ctx.values, weights, grad.float().contiguous().numpy(), buffers[0::2], buffers[1::2], grad_vectors.numpy()
        )
        for gradient in gradients:
            gradient.hand_over()
        ctx.free.append(workspace)
        ctx.workspace = None
        return (grad_vectors, None, None, *[None] * len(gradients))
