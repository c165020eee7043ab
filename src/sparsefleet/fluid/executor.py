"""fluid.Executor: trains and scores in the shape of Fluid's calls; the work is a Trainer's."""

from __future__ import annotations

import gc
from typing import Any

from torch import nn

from sparsefleet.checkpoint import latest
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.notes import note
from sparsefleet.core.places import CPUPlace
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.data.base import Reader
from sparsefleet.fleet.old_shapes import StartupProgram, model_of
from sparsefleet.fleet.optimizer import DistributedOptimizer
from sparsefleet.optim.base import UpdateRule
from sparsefleet.train import FetchHandler, FitResult, Trainer
from sparsefleet.train.loaded_to_score import forget, loaded_to_score, remember

__all__ = ["Executor", "FetchHandler"]


class Executor:
    """`train_from_dataset(program, dataset, …)`: program is the model, or main_program after `minimize(model.loss)`."""

    def __init__(self, place: CPUPlace | None = None) -> None:
        if place is not None and not isinstance(place, CPUPlace):
            raise ConfigError(f"Executor({place!r:.60}): write Executor(CPUPlace())")

    def run(self, program: Any = None, feed: Any = None, fetch_list: Any = None, **settings: Any) -> list[Any]:
        """Only the startup program runs, and does nothing: parameters are made when training begins."""
        if isinstance(program, StartupProgram) and feed is None:
            note("exe.run(startup_program) is not needed: parameters are made when training begins")
            return []
        raise ConfigError(
            "exe.run(program, feed=…, fetch_list=…): there are no programs to run step by step. Write "
            "exe.train_from_dataset(program, dataset, fetch_list=['auc']), or Trainer(optimizer).fit(model, "
            "sf.PyReader(schema, samples)); a FetchHandler with period_batches=1 sees every step"
        )

    def train_from_dataset(
        self, program: Any = None, dataset: Reader | None = None, scope: None = None, thread: int = 0, **settings: Any
    ) -> FitResult:
        """One pass over the dataset; settings as those of `Trainer.train_from_dataset`."""
        model, data = model_of(program, "train_from_dataset"), _dataset("train_from_dataset", dataset)
        return self.trainer().train_from_dataset(model, data, scope=scope, thread=thread, **_plain(settings))

    def infer_from_dataset(
        self, program: Any = None, dataset: Reader | None = None, scope: None = None, thread: int = 0, **settings: Any
    ) -> dict[str, float]:
        """Score a dataset; settings as those of `Trainer.infer_from_dataset`.

        A model that was loaded beside the one in training has rows of its own.
        """
        model, data = model_of(program, "infer_from_dataset"), _dataset("infer_from_dataset", dataset)
        loaded = loaded_to_score(model)
        if loaded is not None and PROCESS_ROLE.part_of_job:
            note(
                "a model that is loaded beside the one in training is scored by each process alone, on its own samples"
            )
        trainer = self.trainer() if loaded is None else loaded.trainer
        return trainer.infer_from_dataset(model, data, scope=scope, thread=thread, **_plain(settings))

    def close(self) -> None:
        """As in Fluid; what is open is closed by `fleet.stop_worker()` and the process's end."""

    def trainer(self) -> Trainer:
        """Who trains in this process: of the distributed optimizer, or of the rule that was told to minimize."""
        optimizer = PROCESS_ROLE.optimizer
        if isinstance(optimizer, DistributedOptimizer):
            return optimizer.trainer or Trainer(optimizer)
        if not isinstance(optimizer, UpdateRule):
            raise ConfigError("there is no optimizer yet: call optimizer.minimize(model.loss) before")
        if not isinstance(PROCESS_ROLE.trainer, Trainer):
            PROCESS_ROLE.trainer = Trainer(optimizer)
        return PROCESS_ROLE.trainer

    def load(self, dirname: str, program: Any) -> None:
        """`fluid.io.load_persistables`: into the model that is trained, to train on; into another one, to score it.

        Before there is an optimizer it is to score, too: whoever trains the model then takes the checkpoint over.
        """
        model = model_of(program, "load_persistables")
        if PROCESS_ROLE.optimizer is not None and self._is_trained(model):
            self.trainer().load(model, dirname)
            return
        forget(model)
        gc.collect()  # a model that was scored before, its trainer and all their rows hold each other
        trainer, path = Trainer(), str(latest(dirname))
        trainer.load(model, path, values_only=True)
        remember(model, trainer, path)

    def _is_trained(self, model: nn.Module) -> bool:
        """Whether it is the model in training, or, before anything is trained, the one that will be."""
        trainer = self.trainer()
        candidates = (trainer.in_training, PROCESS_ROLE.model, trainer.own_model)
        return next((one for one in candidates if one is not None), model) is model


def _dataset(call: str, dataset: Reader | None) -> Reader:
    if not isinstance(dataset, Reader):
        raise ConfigError(f"{call}: dataset={dataset!r:.60}; give a dataset of fluid.DatasetFactory(), or any reader")
    return dataset


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Fluid's None for an empty list."""
    return {name: value for name, value in settings.items() if not (name == "fetch_list" and value is None)}
