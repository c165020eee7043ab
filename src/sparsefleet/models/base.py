"""Rebuildable: the contract of a model that a checkpoint can bring back without holding code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn


class ModelLoss:
    """The loss of a model, by name: for `optimizer.minimize(model.loss)` and for fetch lists. Not callable."""

    name = "loss"

    def __init__(self, model: nn.Module) -> None:
        self.model = model


class Rebuildable(nn.Module, ABC):
    """A model that can be made again from plain data. `models/registry.py` has the table of those that we ship.

    A checkpoint keeps `name` and what `describe` returns, never code. A class of your own that is not in the table is
    kept as "custom" with the path of its class; whoever rebuilds it gives the class (`registry.build(saved, MyModel)`).
    """

    if TYPE_CHECKING:
        loss: Any
    else:

        @property
        def loss(self) -> ModelLoss:
            """What `optimizer.minimize` takes. A model with its own loss defines `loss(output, labels)` instead."""
            return ModelLoss(self)

    name: ClassVar[str]
    """What a checkpoint calls this very class. A subclass does not inherit it, for it may compute something else. A
    subclass that computes just what its base does may repeat the base's name, and comes back as the base.
    """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """All that `build` needs, as plain JSON data; the keys "name" and "class" are taken."""

    @classmethod
    @abstractmethod
    def build(cls, description: Mapping[str, Any]) -> Self:
        """The model that `describe` described, with fresh weights.

        KeyError, TypeError and ValueError mean that the description is damaged, and reach the user as CheckpointError.
        """
