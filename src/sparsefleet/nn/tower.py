"""DenseTower: a stack of fully connected layers with relu between them, as fast as the processor allows.

What stands between plain torch and the processor on this network, as measured (benchmarks/local.md): matrix products at
three quarters of the core's peak, fresh memory for every activation and gradient (page faults), bias and relu as passes
of their own, and the autograd graph's work per layer. So the whole tower is one autograd node over our own kernel
(`kernels.tower`), which keeps its buffers from step to step, writes parameter gradients straight to where the trainer
wants them, and runs without the GIL from start to end. The arithmetic is that of `nn.Linear` and `relu`; with bf16
(`nn.precision`) the products are bfloat16 and all else stays float32. Scoring takes the same kernels as training.

Legend: B rows, `sizes` = widths from input to output.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn import functional

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.tower import TowerSpace
from sparsefleet.nn.precision import tower_in_half

SHARED_ROWS = 128
"""Fewer rows than this are not worth a thread of their own."""
SCORED_ROWS = 1024
"""At a time, by one thread."""

GRADIENT_TARGET = "gradient_target"
"""A parameter's attribute of this name, where set, is the tensor that its gradient is to be written into."""


_MANNER = threading.local()

Space = TypeVar("Space")
"""Buffers that a kernel writes to."""


@contextlib.contextmanager
def layer_by_layer() -> Iterator[None]:
    """In this thread, towers call their layers one by one, as torch does: for whoever looks at what a layer makes."""
    _MANNER.layer_by_layer = True
    try:
        yield
    finally:
        _MANNER.layer_by_layer = False


class DenseTower(nn.Module):
    """[B, sizes[0]] -> [B, sizes[-1]]: linear layers, relu after all but the last."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise ConfigError(f"sizes={tuple(sizes)}: a tower needs at least an input and an output width, all above 0")
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self._free: list[Workspace[TowerSpace]] = []

    def linear_layers(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = self.linear_layers()
        parameters = [p for layer in layers for p in (layer.weight, layer.bias)]
        if own_nodes(x) and all(map(plain, parameters)):
            if x.shape[-1:] != (layers[0].in_features,):
                raise ConfigError(
                    f"this DenseTower takes rows of {layers[0].in_features} values; the input is {list(x.shape)}"
                )
            if x.dim() != 2:
                return self(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], layers[-1].out_features)  # type: ignore[no-any-return]
            half = tower_in_half()
            if not torch.is_grad_enabled():
                return self._scored(x, half, parameters)
            out: torch.Tensor = _Tower.apply(x, self._free, half, *parameters)  # type: ignore[no-untyped-call]
            return out
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        last: torch.Tensor = self.layers[-1](x)
        return last

    def _scored(self, x: torch.Tensor, half: bool, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Without gradients, on as many threads as torch would use. A row has the same bits whoever computes it."""
        arrays: list[F32] = [parameter.detach().numpy() for parameter in parameters]
        rows: F32 = x.detach().float().contiguous().numpy()
        out = empty(len(x), parameters[-1].shape[0])
        threads = max(1, min(torch.get_num_threads(), len(x) // SHARED_ROWS))
        # Blocks of one size, but for the last: a long input takes no more room than a short one.
        block = max(1, min(SCORED_ROWS, -(-len(x) // threads)))

        def score(begin: int) -> None:
            mine = slice(begin, min(begin + block, len(x)))
            workspace = _space(self._free, mine.stop - begin, parameters[0::2])
            workspace.space.forward(rows[mine], arrays[0::2], arrays[1::2], out[mine].numpy(), half)
            self._free.append(workspace)

        begins = range(0, len(x), block)
        if threads == 1:
            for begin in begins:
                score(begin)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(score, begins))
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": []}  # a copy of the module makes its own buffers


class Workspace(Generic[Space]):
    """Buffers of one forward and backward pass of a kernel over inputs of one size."""

    def __init__(self, size: Hashable, space: Space) -> None:
        self.size, self.space = size, space
        self._gradients: dict[int, torch.Tensor] = {}

    def gradient_buffer(self, index: int, parameter: torch.Tensor) -> torch.Tensor:
        if index not in self._gradients:
            self._gradients[index] = torch.empty_like(parameter)
        return self._gradients[index]


class _Tower(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, free: list[Workspace[TowerSpace]], half: bool, *parameters: torch.Tensor
    ) -> torch.Tensor:
        arrays: list[F32] = [parameter.detach().numpy() for parameter in parameters]
        workspace = _space(free, len(x), parameters[0::2])
        rows: F32 = x.detach().float().contiguous().numpy()
        out = empty(len(x), parameters[-1].shape[0])
        workspace.space.forward(rows, arrays[0::2], arrays[1::2], out.numpy(), half)
        ctx.rows, ctx.workspace, ctx.free, ctx.half = rows, workspace, free, half
        ctx.parameters, ctx.weights = parameters, arrays[0::2]
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        workspace: Workspace[TowerSpace] = ctx.workspace
        if workspace is None:
            raise RuntimeError("backward through the same DenseTower output twice: its buffers are in use again")
        gradients = [ParameterGradient(p, workspace, index) for index, p in enumerate(ctx.parameters)]
        buffers: list[F32] = [gradient.buffer.numpy() for gradient in gradients]
        grad_x = empty(*ctx.rows.shape) if ctx.needs_input_grad[0] else None
        workspace.space.backward(
            ctx.rows,
            ctx.weights,
            grad.float().contiguous().numpy(),
            buffers[0::2],
            buffers[1::2],
            None if grad_x is None else grad_x.numpy(),
            ctx.half,
        )
        for gradient in gradients:
            gradient.hand_over()
        ctx.free.append(workspace)
        ctx.workspace = None
        return (grad_x, None, None, *[None] * len(gradients))


def empty(*shape: int) -> torch.Tensor:
    """For a kernel to write to: float32, whatever torch's default is."""
    return torch.empty(shape, dtype=torch.float32)


def traced(x: torch.Tensor) -> bool:
    """Whether this call is to become a graph, for an exporter or a compiler."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or type(x) is not torch.Tensor or torch.compiler.is_compiling()


def own_nodes(x: torch.Tensor) -> bool:
    """Whether parts of a network may be autograd nodes of ours; else they are torch's operations, one by one."""
    return not traced(x) and not getattr(_MANNER, "layer_by_layer", False)


def plain(parameter: torch.Tensor) -> bool:
    """What the kernel can read where it stands."""
    return parameter.dtype == torch.float32 and parameter.device.type == "cpu" and parameter.is_contiguous()


def _space(free: list[Workspace[TowerSpace]], rows: int, weights: Sequence[torch.Tensor]) -> Workspace[TowerSpace]:
    widths = [weights[0].shape[1], *(weight.shape[0] for weight in weights)]
    return take_workspace(free, rows, lambda: TowerSpace(rows, widths))


def take_workspace(free: list[Workspace[Space]], size: Hashable, make: Callable[[], Space]) -> Workspace[Space]:
    """A free workspace of this size, or a new one: a second forward before the first's backward gets its own."""
    for workspace in list(free):
        if workspace.size == size:
            try:
                free.remove(workspace)
            except ValueError:  # another thread was faster
                continue
            return workspace
    if len(free) > 4:  # sizes that come no more, such as an epoch's short last batch
        del free[:1]
    return Workspace(size, make())


class ParameterGradient:
    """Where a parameter's gradient is computed, and how it gets to the parameter."""

    def __init__(self, parameter: torch.Tensor, workspace: Workspace[Any], index: int) -> None:
        self._parameter = parameter
        # Straight into its target where nothing has to be added, else into a buffer in between.
        self._direct = parameter.requires_grad and parameter.grad is None
        self.buffer = _target(parameter) if self._direct else workspace.gradient_buffer(index, parameter)

    def hand_over(self) -> None:
        """parameter.grad = (or +=) the gradient."""
        if self._direct:
            self._parameter.grad = self.buffer
        elif self._parameter.grad is not None:
            self._parameter.grad += self.buffer


def _target(parameter: torch.Tensor) -> torch.Tensor:
    target: torch.Tensor | None = getattr(parameter, GRADIENT_TARGET, None)
    return torch.empty_like(parameter) if target is None else target
