"""fluid.io: saving and loading in the shape of Fluid's calls."""

from __future__ import annotations

from typing import Any

from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.data.py_reader import PyReader
from sparsefleet.fleet.old_shapes import MainProgram, check_feeds_and_targets, check_no_filename, old_arguments
from sparsefleet.fleet.serving_model import save_bundle
from sparsefleet.fluid.executor import Executor

__all__ = ["PyReader", "load_persistables", "save_inference_model", "save_persistables"]


_INSTEAD = {
    "save_params": "save_persistables(executor, path): a checkpoint has parameters, rows and optimizer state; "
    "fleet.save_inference_model(path, format='checkpoint') leaves the state out",
    "load_params": "load_persistables(executor, path, model), or trainer.load(model, path, values_only=True) without "
    "optimizer state",
    "save_vars": "save_persistables(executor, path)",
    "load_vars": "trainer.load(model, path, partial=True), which takes what fits",
    "load_inference_model": "sf.Predictor(path) scores with what save_inference_model has written, as sparsefleet "
    "serve does",
    "DataLoader": "fluid.io.PyReader(feed_list=inputs, capacity=64), or a dataset of fluid.DatasetFactory()",
}


def save_persistables(
    *arguments: Any, executor: Any = None, dirname: Any = None, main_program: Any = None, filename: None = None
) -> None:
    """A checkpoint of the model that this process trains. Of several trainers one calls it, as in Fluid."""
    check_no_filename("save_persistables", filename)
    if len(arguments) == 4 and arguments[3] is None:
        arguments = arguments[:3]
    path, _ = old_arguments("save_persistables", arguments, executor, dirname, main_program)
    _executor(executor, arguments).trainer().save(path)


def save_inference_model(
    *arguments: Any,
    executor: Any = None,
    dirname: Any = None,
    feeded_var_names: Any = None,
    target_vars: Any = None,
    main_program: Any = None,
) -> None:
    """A bundle, for `sparsefleet serve`, of the model that this process trains.

    Positions as in Fluid, (path, feeds, targets, executor, main_program), or as in Fleet, (executor, path, feeds,
    targets).
    """
    if executor is None and len(arguments) > 3 and isinstance(arguments[3], Executor):
        executor, arguments = arguments[3], (*arguments[:3], *arguments[4:])
        if len(arguments) == 4 and isinstance(arguments[3], MainProgram | nn.Module | None):
            main_program, arguments = arguments[3], arguments[:3]
    path, rest = old_arguments("save_inference_model", arguments, executor, dirname, main_program)
    if len(rest) > 2:
        raise ConfigError(f"save_inference_model: {len(rest) - 2} arguments too many; write save_inference_model(path)")
    trainer = _executor(executor, arguments).trainer()
    feeds = rest[0] if rest else feeded_var_names
    targets = rest[1] if len(rest) > 1 else target_vars
    if feeds is not None or targets is not None:
        check_feeds_and_targets(trainer.trained_model(), trainer.trained_data().schema, feeds, targets)
    save_bundle(trainer, path, rows="float32", min_seen=0, name=None)


def load_persistables(executor: Any, dirname: Any, main_program: Any = None, filename: None = None) -> None:
    """Fill a model from a checkpoint: `main_program` is the model, or the one whose loss is minimized."""
    check_no_filename("load_persistables", filename)
    if not isinstance(executor, Executor):
        raise ConfigError(
            f"load_persistables({executor!r:.60}, …): give the executor that is to work with the model; or write "
            "trainer.load(model, path)"
        )
    executor.load(str(dirname), main_program)


def _executor(executor: Any, arguments: tuple[Any, ...]) -> Executor:
    given = [one for one in (executor, *arguments[:1]) if isinstance(one, Executor)]
    return given[0] if given else Executor()


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise ConfigError(f"fluid.io.{name} is not here: {_INSTEAD[name]} (docs/from-paddle.md)")
    raise AttributeError(f"fluid.io has no {name!r}; there are {', '.join(__all__)}")
