"""fluid: the thin names of scripts that come from Paddle Fluid.

    import sparsefleet.fluid as fluid

Only what such scripts touch around their network: places, optimizers, datasets, an executor, saving. Networks are
`torch.nn.Module`s here: `fluid.layers` has `data` and nothing else, and every other name of Fluid's says what to write
instead. docs/from-paddle.md has each call beside the new one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsefleet.core.errors import ConfigError

if TYPE_CHECKING:
    from sparsefleet.core.places import CPUPlace, CUDAPlace
    from sparsefleet.data.dataset_factory import DatasetFactory
    from sparsefleet.data.py_reader import PyReader
    from sparsefleet.fleet.transpiler import DistributeTranspiler, DistributeTranspilerConfig
    from sparsefleet.fluid import executor, framework, initializer, io, layers, optimizer, unique_name
    from sparsefleet.fluid.executor import Executor
    from sparsefleet.fluid.framework import default_main_program, default_startup_program
    from sparsefleet.fluid.layers import data

_MODULES = ("executor", "framework", "initializer", "io", "layers", "optimizer", "unique_name")
_HOMES = {
    "CPUPlace": "core.places",
    "CUDAPlace": "core.places",
    "DatasetFactory": "data.dataset_factory",
    "DistributeTranspiler": "fleet.transpiler",
    "DistributeTranspilerConfig": "fleet.transpiler",
    "Executor": "fluid.executor",
    "PyReader": "data.py_reader",
    "data": "fluid.layers",
    "default_main_program": "fluid.framework",
    "default_startup_program": "fluid.framework",
}
_INSTEAD = {
    "DataFeeder": "sf.Feeder(schema, samples, batch_size=…) makes batches of Python objects",
    "ParamAttr": "a table's name and initializer are arguments: sf.nn.SparseEmbedding(name, dim, slots, initializer=…)",
    "ParallelExecutor": "Trainer(optimizer, threads=N) trains with N threads",
    "CompiledProgram": "Trainer(optimizer, threads=N) trains with N threads",
    "global_scope": "evaluation starts its metrics from zero, so there is nothing to set; parameters are "
    "model.named_parameters()",
    "scope_guard": "there are no scopes; a trainer's store holds the parameters",
    "embedding": "sf.nn.SparseEmbedding(name, dim, slots)",
    "regularizer": "L2 is the optimizer's, fluid.optimizer.Adam(rate, weight_decay=c): c of L2Decay(c) where the loss "
    "was a sum over the batch, c times the batch size where it was a mean; L1 is fluid.optimizer.Ftrl(rate, l1=c)",
    "clip": "gradients are clipped by their global norm: fleet.distributed_optimizer(optimizer, "
    "fleet.DistributedStrategy(clip_norm=…))",
    "save": "fluid.io.save_persistables(exe, path) writes a checkpoint, and save_inference_model what scoring needs",
    "load": "fluid.io.load_persistables(exe, path, model), or trainer.load(model, path)",
    "Program": "there are no programs; a model is a torch.nn.Module",
    "program_guard": "there are no programs; a model is a torch.nn.Module",
}

__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "DatasetFactory",
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "Executor",
    "PyReader",
    "data",
    "default_main_program",
    "default_startup_program",
    "executor",
    "framework",
    "initializer",
    "io",
    "layers",
    "optimizer",
    "unique_name",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(import_module(f"sparsefleet.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _INSTEAD:
        raise ConfigError(f"fluid.{name} is not here: {_INSTEAD[name]} (docs/from-paddle.md)")
    raise AttributeError(
        f"fluid has no {name!r}; dir(fluid) lists what it has, docs/from-paddle.md what replaces the rest"
    )


def __dir__() -> list[str]:
    return __all__
