"""FleetJob: an optimizer with a strategy, for whatever role this process has. What `distributed_optimizer` returns."""

from __future__ import annotations

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.communicator import MODES, Communicator, CommunicatorConfig, DirectCommunicator
from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import Role
from sparsefleet.fleet.strategy import Resolved
from sparsefleet.optim import SGD
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store import LocalStore, ParameterStore
from sparsefleet.store.base import RunFacts
from sparsefleet.store.saving import facts_of
from sparsefleet.train.job import Job


class FleetJob(Job):
    def __init__(self, rule: UpdateRule, strategy: Resolved, role: Role) -> None:
        if strategy.mode == "geo" and not isinstance(rule, SGD):
            raise ConfigError(f"geo works with SGD only; the optimizer is {rule.name}. Use SGD, or another mode")
        self.rule, self.strategy = rule, strategy
        self.index, self.trainers = role.index if role.is_worker else 0, role.worker_num
        self._single = role.kind == "single"
        self._store: ParameterStore | None = LocalStore() if self._single else None
        self._config = CommunicatorConfig(
            max_merge=strategy.max_merge,
            send_queue_size=strategy.send_queue_size,
            staleness=strategy.staleness,
            dense_refresh=strategy.dense_refresh,
            k_steps=strategy.k_steps,
            trainers=self.trainers,
        )

    def connect(self, store: ParameterStore) -> None:
        self._store = store

    def store(self) -> ParameterStore:
        if self._store is None:
            raise ConfigError("this trainer is not connected to its servers yet: call fleet.init_worker() first")
        return self._store

    def load(self, path: str, *, values_only: bool = False) -> RunFacts:
        """The first trainer has the servers load; the others wait for it, and read the facts of the run."""
        # Resolved before anyone can save: all must mean the same checkpoint.
        checkpoint = Checkpoint.open(latest(path))
        store, location = self.store(), str(checkpoint.location)
        loads = self.index == 0
        while True:
            if loads:
                store.load(location, values_only=values_only)
            present = store.reduce(f"load {location}", {"trainer": self.index, "loaded": loads})
            if any(part["loaded"] for part in present):
                return facts_of(checkpoint)
            # Whose turn it was is lost, and the others go on without it: the lowest of those that are left loads.
            loads = self.index == min(part["trainer"] for part in present)

    def communicator(self) -> Communicator:
        # In one process nothing crosses a network: async has nothing to hide, and geo nobody to meet.
        alone = self._single and self.strategy.mode in ("async", "geo")
        return (DirectCommunicator if alone else MODES[self.strategy.mode])(self.store(), self._config)
