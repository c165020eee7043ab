"""Of a model that was filled to be scored, as `fluid.io.load_persistables` does it: by which trainer, and from where.

A model's rows are in its trainer's store. A model that is loaded before there is an optimizer, or beside the one in
training, gets a trainer of its own; who works with the model later asks here, lest dense parameters of the checkpoint
meet other rows.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from sparsefleet.train.trainer import Trainer

_NAME = "_sparsefleet_loaded_to_score"
"""An attribute of the model: kept anywhere else, the trainer would keep its model, and all its rows, for ever."""


class LoadedToScore:
    def __init__(self, model: nn.Module, trainer: Trainer, path: str) -> None:
        self.trainer, self.path = trainer, path
        self.model = weakref.ref(model)

    def __deepcopy__(self, memo: Any) -> None:
        """Copies of the model are models by themselves."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def loaded_to_score(model: nn.Module) -> LoadedToScore | None:
    found = vars(model).get(_NAME)
    return found if isinstance(found, LoadedToScore) and found.model() is model else None


def remember(model: nn.Module, trainer: Trainer, path: str) -> None:
    vars(model)[_NAME] = LoadedToScore(model, trainer, path)


def forget(model: nn.Module) -> None:
    vars(model).pop(_NAME, None)
