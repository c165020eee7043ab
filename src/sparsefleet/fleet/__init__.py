"""fleet: one script for one process, for servers and for trainers.

    from sparsefleet import fleet
    fleet.init()                                        # role from the environment; none set: one process
    optimizer = fleet.distributed_optimizer(optim.Adam(1e-3), fleet.DistributedStrategy(mode="async"))

Light to import: the launcher needs only `fleet.roles`. What trains is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparsefleet.fleet import roles as role_maker
from sparsefleet.fleet.roles import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from sparsefleet.fleet.strategy import DistributedStrategy
from sparsefleet.fleet.transpiler import DistributeTranspiler, DistributeTranspilerConfig

if TYPE_CHECKING:
    from sparsefleet.fleet.facade import FLEET

    init, is_initialized = FLEET.init, FLEET.is_initialized
    is_server, is_worker, is_first_worker = FLEET.is_server, FLEET.is_worker, FLEET.is_first_worker
    worker_index, worker_num, worker_endpoints = FLEET.worker_index, FLEET.worker_num, FLEET.worker_endpoints
    server_index, server_num, server_endpoints = FLEET.server_index, FLEET.server_num, FLEET.server_endpoints
    split_files, distributed_optimizer = FLEET.split_files, FLEET.distributed_optimizer
    init_server, run_server = FLEET.init_server, FLEET.run_server
    init_worker, stop_worker, barrier_worker = FLEET.init_worker, FLEET.stop_worker, FLEET.barrier_worker
    exchange, util = FLEET.exchange, FLEET.util
    train_from_dataset, infer_from_dataset = FLEET.train_from_dataset, FLEET.infer_from_dataset
    save_persistables, save_inference_model = FLEET.save_persistables, FLEET.save_inference_model
    main_program, startup_program = FLEET.main_program, FLEET.startup_program

__all__ = [
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "DistributedStrategy",
    "PaddleCloudRoleMaker",
    "Role",
    "UserDefinedRoleMaker",
    "role_maker",
]
_CALLS = [
    "barrier_worker",
    "distributed_optimizer",
    "exchange",
    "infer_from_dataset",
    "init",
    "init_server",
    "init_worker",
    "is_first_worker",
    "is_initialized",
    "is_server",
    "is_worker",
    "main_program",
    "run_server",
    "save_inference_model",
    "save_persistables",
    "server_endpoints",
    "server_index",
    "server_num",
    "split_files",
    "startup_program",
    "stop_worker",
    "train_from_dataset",
    "util",
    "worker_endpoints",
    "worker_index",
    "worker_num",
]
"""The names of one `Fleet` (`facade.py`), which is made when the first of them is used."""
_LOAD = "servers start from a checkpoint by fleet.init_server(path); a trainer takes one by trainer.load(model, path)"
_INSTEAD = {
    "load_model": _LOAD,
    "load_persistables": _LOAD,
    "save": "fleet.save_persistables(path), or fleet.save_inference_model(path) for scoring",
    "shrink": "tables are made smaller where they are served and saved: fleet.save_inference_model(path, min_seen=N), "
    "sparsefleet export --min-seen N",
    "StrategyFactory": "fleet.DistributedStrategy(mode='sync'), 'half_async', 'async' or 'geo' with k_steps=N",
}


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        from sparsefleet.core.errors import ConfigError

        raise ConfigError(f"fleet.{name} is not here: {_INSTEAD[name]} (docs/from-paddle.md)")
    if name not in _CALLS:
        raise AttributeError(f"fleet has no {name!r}; dir(fleet) lists what it has")
    from sparsefleet.fleet.facade import FLEET

    return getattr(FLEET, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_CALLS])
