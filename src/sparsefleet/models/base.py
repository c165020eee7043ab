"""The contracts of a model that a checkpoint can bring back without holding code.

`Rebuildable` is the least: a name, settings as plain data, and the way back. `SchemaModel` fills both in for a class
that is made of what a schema says (`ModelInputs`) and of a dataclass of settings: all of ours but CTRDNN, and the
easiest way to a model of your own that every command takes (`--model my_model.py:MyNet`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.models.settings import Settings


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

    @classmethod
    def from_schema(cls, schema: Schema, **settings: Any) -> Self:
        """A new model for samples of this schema: what `--model file.py:Class` calls.

        `settings` are what a user gave with `--set name=value`. Their types are those of the dataclass `cls.Settings`
        where there is one, else those that the arguments of this method are annotated with (text, if with none).
        """
        raise ConfigError(
            f"{cls.__qualname__} does not say how it is made from a schema: give it a classmethod "
            "from_schema(cls, schema, …), or derive it from sparsefleet.models.SchemaModel (docs/models.md)"
        )


@dataclass(frozen=True)
class ModelInputs:
    """What a model has to know of its samples."""

    slots: tuple[str, ...]
    """The names of the slots, in order."""
    dense_features: int = 0
    """How many numbers a sample has."""
    labels: tuple[str, ...] = ("label",)
    """The names of the labels, in order."""

    @staticmethod
    def of(schema: Schema) -> ModelInputs:
        return ModelInputs(schema.slot_names, len(schema.dense), schema.labels)


class SchemaModel(Rebuildable):
    """A model made of `ModelInputs` and settings. A subclass has `Settings`, and `__init__(self, inputs, settings)`.

    class MyNet(SchemaModel):
        @dataclass(frozen=True)
        class Settings(models.Settings):
            width: int = setting(64, "Width of the layer.")

        def __init__(self, inputs, settings=None):
            super().__init__(inputs, settings)
            …
    """

    Settings: ClassVar[type[Settings]] = Settings
    settings: Any
    summary: ClassVar[str] = ""
    """What it is, in a line."""
    reference: ClassVar[str] = ""
    """Where it was published."""
    many_labels: ClassVar[bool] = False
    """Whether its output is [B, L], a logit for each label of the schema; else [B], and the schema has one label."""

    def __init__(self, inputs: ModelInputs, settings: Any = None) -> None:
        super().__init__()
        self.inputs, self.settings = inputs, self.Settings() if settings is None else settings
        if not inputs.slots:
            raise ConfigError(f"{type(self).__qualname__} needs at least one slot; the schema has none")
        if len(inputs.labels) > 1 and not self.many_labels:
            raise ConfigError(
                f"{type(self).__qualname__} learns one label; the schema has {', '.join(inputs.labels)}: choose a "
                "model for several labels (sparsefleet models), or keep one label in the schema"
            )

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """What nn/objective.py goes by."""
        return self.inputs.labels if self.many_labels else None

    def describe(self) -> dict[str, Any]:
        return {
            "slots": list(self.inputs.slots),
            "dense_features": self.inputs.dense_features,
            "labels": list(self.inputs.labels),
            "settings": self.settings.to_dict(),
        }

    @classmethod
    def build(cls, description: Mapping[str, Any]) -> Self:
        slots, labels = (tuple(map(str, description[name])) for name in ("slots", "labels"))
        inputs = ModelInputs(slots, int(description["dense_features"]), labels)
        return cls(inputs, cls.Settings.from_dict(description["settings"]))

    @classmethod
    def from_schema(cls, schema: Schema, **settings: Any) -> Self:
        return cls(ModelInputs.of(schema), cls.Settings(**settings))
