"""fleet: one script for one process, for servers and for trainers.

    from sparsefleet import fleet
    fleet.init()                                        # role from the environment; none set: one process
    optimizer = fleet.distributed_optimizer(optim.Adam(1e-3), fleet.DistributedStrategy(mode="async"))

Light to import: the launcher needs only `fleet.roles`. What trains is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparsefleet.fleet.roles import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from sparsefleet.fleet.strategy import DistributedStrategy

if TYPE_CHECKING:
    from sparsefleet.fleet.facade import FLEET

    init, is_initialized = FLEET.init, FLEET.is_initialized
    is_server, is_worker, is_first_worker = FLEET.is_server, FLEET.is_worker, FLEET.is_first_worker
    worker_index, worker_num = FLEET.worker_index, FLEET.worker_num
    server_index, server_num, server_endpoints = FLEET.server_index, FLEET.server_num, FLEET.server_endpoints
    split_files, distributed_optimizer = FLEET.split_files, FLEET.distributed_optimizer
    init_server, run_server = FLEET.init_server, FLEET.run_server
    init_worker, stop_worker, barrier_worker = FLEET.init_worker, FLEET.stop_worker, FLEET.barrier_worker
    exchange = FLEET.exchange
    train_from_dataset, infer_from_dataset = FLEET.train_from_dataset, FLEET.infer_from_dataset
    save_persistables, save_inference_model = FLEET.save_persistables, FLEET.save_inference_model

__all__ = ["DistributedStrategy", "PaddleCloudRoleMaker", "Role", "UserDefinedRoleMaker"]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from sparsefleet.fleet.facade import FLEET

    try:
        return getattr(FLEET, name)
    except AttributeError:
        raise AttributeError(f"fleet has no {name!r}") from None
