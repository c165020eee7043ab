"""DistributeTranspilerConfig: the strategy of scripts of Fluid 1.5 and 1.6, and what became of the transpiler."""

from __future__ import annotations

import difflib
from typing import Any, NoReturn

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.notes import note
from sparsefleet.fleet.strategy import DistributedStrategy, Resolved

_SPREAD = ("slice_var_up", "min_block_size", "split_method")
_FIXED = "rows go to servers by a hash of their key, and the dense parameters are cut evenly"


class DistributeTranspilerConfig:
    """For `fleet.distributed_optimizer(optimizer, config)`. `DistributedStrategy(mode=…)` says the same in one word."""

    sync_mode: bool = True
    """True: sync. False: async, unless `half_async` or `geo_sgd_mode` says otherwise."""
    runtime_split_send_recv: bool = False
    """Fluid's choice between two ways to send; here there is one, and it makes no difference."""
    half_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    """geo: steps between two exchanges; `k_steps` of DistributedStrategy."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_said":
            object.__setattr__(self, name, value)
            return
        if name in _SPREAD:
            note(f"DistributeTranspilerConfig.{name} is not needed: {_FIXED}")
            return
        if name == "wait_port":
            note("DistributeTranspilerConfig.wait_port is not needed: trainers wait for servers that are not up yet")
            return
        known = list(DistributeTranspilerConfig.__annotations__)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"DistributeTranspilerConfig has no setting {name} here; {hint}")
        if name == "geo_sgd_need_push_nums":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"geo_sgd_need_push_nums={value!r} must be a whole number, 1 or above")
        elif not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r} must be True or False")
        self._said.add(name)
        object.__setattr__(self, name, value)

    @property
    def mode(self) -> str:
        """sync, half_async, async or geo."""
        chosen = [mode for mode, on in (("half_async", self.half_async), ("geo", self.geo_sgd_mode)) if on]
        if self.sync_mode and ("sync_mode" in self._said or not chosen):
            chosen.append("sync")
        if len(chosen) > 1:
            raise ConfigError(
                f"DistributeTranspilerConfig asks for {' and '.join(chosen)} at once (sync_mode={self.sync_mode}, "
                f"half_async={self.half_async}, geo_sgd_mode={self.geo_sgd_mode}); leave one"
            )
        return chosen[0] if chosen else "async"

    def resolved(self) -> Resolved:
        if "runtime_split_send_recv" in self._said:
            note("runtime_split_send_recv is not needed: there is one way to send, and it is that of True")
        mode = self.mode
        if "geo_sgd_need_push_nums" in self._said and mode != "geo":
            raise ConfigError(
                f"geo_sgd_need_push_nums={self.geo_sgd_need_push_nums} belongs to geo, and the mode is {mode}; set "
                "geo_sgd_mode=True, or leave it out"
            )
        if mode != "geo":
            return DistributedStrategy(mode=mode).resolved()
        return DistributedStrategy(mode=mode, k_steps=self.geo_sgd_need_push_nums).resolved()


class DistributeTranspiler:
    """Not here: there are no programs to cut in two. `transpile` says what to write."""

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        self.config = config

    def transpile(self, *arguments: Any, **settings: Any) -> NoReturn:
        raise ConfigError(
            "DistributeTranspiler().transpile(…): there are no programs here. Write fleet.init(); "
            "optimizer = fleet.distributed_optimizer(optimizer, config); then on servers fleet.init_server(model_path) "
            "and fleet.run_server(), on trainers fleet.init_worker() and fleet.train_from_dataset(model, dataset). "
            "trainer_id, pservers and trainers come from the environment, or from "
            "fleet.init(fleet.UserDefinedRoleMaker(…)); docs/from-paddle.md has both side by side"
        )

    get_trainer_program = get_pserver_program = get_pserver_programs = get_startup_program = transpile
