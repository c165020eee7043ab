"""A model in training: its dense parameters as one block, its copies for threads, and its place in a store."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.communicator import Parameters
from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.nn.dense_block import DenseBlock
from sparsefleet.nn.embedding import attach as attach_source
from sparsefleet.nn.embedding import tables
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.base import ParameterStore
from sparsefleet.store.partial import plan_of
from sparsefleet.table.spec import TableSpec

DENSE = "dense"
"""The name of the model's dense block in the store."""


@dataclass(frozen=True)
class PartialLoad:
    """What a partial load made of a checkpoint, in words; as a text, three lines."""

    path: str
    taken: tuple[str, ...]
    left: tuple[str, ...]
    """In the checkpoint, and not taken."""
    afresh: tuple[str, ...]
    """In the model, and not filled; and optimizers that start anew."""

    def __str__(self) -> str:
        parts = (("taken", self.taken), ("left", self.left), ("starts afresh", self.afresh))
        return "\n".join(f"{self.path}: {word}: {', '.join(names) or 'nothing'}" for word, names in parts)


class SharedModel:
    """A model whose dense parameters lie in one flat block, and copies of it that share them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.block = DenseBlock(model)

    def copies(self, count: int) -> list[nn.Module]:
        """The model itself, and copies that share its parameters and buffers."""
        attach_source(self.model, None)  # what a copy reads from is its own
        return [self.model, *(self._copy() for _ in range(count - 1))]

    def copy_for_looking(self) -> nn.Module:
        """A copy that shares parameters and buffers, and changes none of them: in evaluation mode."""
        attach_source(self.model, None)
        return self._copy().eval()

    @contextmanager
    def scored(self) -> Iterator[None]:
        """For a while, the dense parameters as all trainers of the job should score them: here, its own."""
        yield

    def _copy(self) -> nn.Module:
        twin = copy.deepcopy(self.model)
        self.block.share_with(twin)
        for original, module in zip(self.model.modules(), twin.modules(), strict=True):
            module._buffers.update(original._buffers)
            for name, parameter in original._parameters.items():
                if parameter is not None and not parameter.requires_grad:
                    module._parameters[name] = parameter
        return twin


class BoundModel(SharedModel):
    """A model bound to a store: its tables and its block are there, and updates show in the model."""

    def __init__(
        self,
        model: nn.Module,
        store: ParameterStore,
        optimizer: UpdateRule,
        seed: int,
        kept: Callable[[UpdateRule], UpdateRule] = lambda rule: rule,
    ) -> None:
        """kept: a rule as the store is to have it (`Workplace.kept_by_store`)."""
        specs = {
            name: TableSpec(name, users[0].dim, users[0].optimizer or optimizer, users[0].initializer, seed)
            for name, users in tables(model).items()
        }
        for spec in specs.values():
            store.create_table(replace(spec, rule=kept(spec.rule)))
        super().__init__(model)
        self._store = store
        layout = [(piece.name, piece.shape) for piece in self.block.pieces]
        store.create_dense(DENSE, self.block.values, kept(optimizer), layout)
        if buffers := store.start_buffers():
            self.load_buffers(buffers)
        self.parameters = Parameters(specs, DENSE, self.block.values, optimizer)

    @contextmanager
    def scored(self) -> Iterator[None]:
        """For a while, the dense parameters as the store has them.

        A trainer's own have moved on (geo), or have not heard of the others' last steps (async): with them, every
        trainer would score another model.
        """
        values = self.block.values
        own = values.copy()
        self.refresh()
        try:
            yield
        finally:
            values[:] = own

    def refresh(self) -> None:
        """Take the dense parameters that the store has."""
        if len(self.block.values):
            self._store.pull_dense(DENSE, self.block.values).wait()

    def other(self, model: nn.Module) -> SharedModel:
        """Another model, to be scored with its own dense parameters and with the rows of this one's tables."""
        if missing := sorted(tables(model).keys() - self.parameters.tables.keys()):
            raise ConfigError(
                f"this model has tables that the trainer's model has not: {', '.join(missing)}; "
                "there are no rows to score it with"
            )
        return SharedModel(model)

    def buffers(self) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint must hold besides tables and the block: buffers and frozen parameters, copied."""
        return {name: tensor.detach().numpy().copy() for name, tensor in self._untrained().items()}

    def partial_load(self, checkpoint: Checkpoint, *, values_only: bool = False) -> PartialLoad:
        """Take the buffers that fit; and what the store has taken, in words."""
        layout = [(piece.name, piece.shape) for piece in self.block.pieces]
        blocks = [(DENSE, layout, self.parameters.dense_rule)]
        plan = plan_of(checkpoint, self.parameters.tables.values(), blocks, values_only=values_only)
        mine, saved = self._untrained(), checkpoint.buffers()
        fitting = [name for name, tensor in mine.items() if name in saved and saved[name].shape == tuple(tensor.shape)]
        for name in fitting:
            mine[name].copy_(torch.from_numpy(saved[name].copy()))
        return PartialLoad(
            str(checkpoint.location),
            (*plan.taken, *(f"buffer {name}" for name in fitting)),
            (*plan.left, *(f"buffer {name}" for name in saved if name not in fitting)),
            (*plan.afresh, *(f"buffer {name}" for name in mine if name not in fitting)),
        )

    def load_buffers(self, saved: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take buffers from a checkpoint; those of another name or shape are an error."""
        mine = self._untrained()
        if set(mine) != set(saved):
            raise CheckpointError(
                f"buffers differ: only in the model: {sorted(set(mine) - set(saved))}; "
                f"only in the checkpoint: {sorted(set(saved) - set(mine))}"
            )
        for name, tensor in mine.items():
            if tuple(tensor.shape) != saved[name].shape:
                raise CheckpointError(
                    f"buffer {name!r} is {tuple(tensor.shape)} in the model and {saved[name].shape} in the checkpoint"
                )
            tensor.copy_(torch.from_numpy(saved[name].copy()))

    def statistics(self) -> dict[str, list[float]]:
        """What batch norms have seen of the samples, as plain data: each trainer of a job has seen others."""
        return {name: tensor.tolist() for name, tensor in _statistics(self.model).items()}

    def agree_on(self, statistics: Sequence[Mapping[str, list[float]]]) -> None:
        """Take the mean of all trainers' statistics: then all of them score, and save, the same model."""
        for name, tensor in _statistics(self.model).items():
            tensor.copy_(torch.tensor([part[name] for part in statistics], dtype=torch.float64).mean(0))

    def _untrained(self) -> dict[str, torch.Tensor]:
        trained = {piece.name for piece in self.block.pieces}
        return {name: tensor for name, tensor in self.model.state_dict().items() if name not in trained}


def _statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """Running means and variances of all batch norms, by name."""
    return {
        f"{name}.{buffer}": tensor
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for buffer, tensor in module.named_buffers(recurse=False)
        if tensor.is_floating_point()
    }
