"""DistributedOptimizer: an optimizer with a strategy, for whatever role this process has.

What `fleet.distributed_optimizer` returns. Given to a `Trainer`, it brings the job's workplace along.
"""

from __future__ import annotations

from typing import Any

from sparsefleet.communicator import MODES, Communicator, CommunicatorConfig, DirectCommunicator
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.crew import Crew, CrewOfOne
from sparsefleet.fleet.healing import FleetHealing
from sparsefleet.fleet.roles import Role
from sparsefleet.fleet.strategy import Resolved
from sparsefleet.optim import values_only
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store import LocalStore, ParameterStore
from sparsefleet.store.remote import RemoteStore
from sparsefleet.train import Trainer
from sparsefleet.train.workplace import Workplace


class FleetWorkplace(Workplace):
    """Of one process, or, once connected, of one trainer of a job with servers."""

    def __init__(self, rule: UpdateRule, strategy: Resolved, role: Role) -> None:
        self.rule, self._strategy = rule, strategy
        self._single, self._server = role.kind == "single", role.is_server
        self._store: ParameterStore | None = LocalStore() if self._single else None
        self._crew: Crew = CrewOfOne()
        self._last: Communicator | None = None
        self._healing: FleetHealing | None = None
        self._config = CommunicatorConfig(
            max_merge=strategy.max_merge,
            send_queue_size=strategy.send_queue_size,
            staleness=strategy.staleness,
            dense_refresh=strategy.dense_refresh,
            k_steps=strategy.k_steps,
            clip_norm=strategy.clip_norm,
            trainers=role.worker_num,
        )

    def connect(self, store: RemoteStore, healing: FleetHealing | None = None) -> None:
        """Called again in a job that heals, with the store of its next attempt."""
        self._store, self._crew, self._healing = store, store.crew, healing
        self._last = None  # what it keeps is of the attempt before

    @property
    def store(self) -> ParameterStore:
        if self._store is None and self._server:
            raise ConfigError(
                "this process is a server, which nothing is loaded into or saved from by a script: a server starts "
                "from a checkpoint by fleet.init_server(path); trainers load and save after fleet.init_worker()"
            )
        if self._store is None:
            raise ConfigError("this trainer is not connected to its servers yet: call fleet.init_worker() first")
        return self._store

    @property
    def healing(self) -> FleetHealing | None:
        return self._healing

    @property
    def crew(self) -> Crew:
        _ = self.store  # the crew of a trainer that is not connected is not known
        return self._crew

    def communicator(self) -> Communicator:
        # In one process nothing crosses a network: async has nothing to hide, and geo nobody to meet.
        alone = self._single and self._strategy.mode in ("async", "geo")
        kind = DirectCommunicator if alone else MODES[self._strategy.mode]
        if not kind.keeps_state:
            return kind(self.store, self._config, self.crew)
        if self._last is None:  # what it keeps, the next call of fit goes on with
            self._last = kind(self.store, self._config, self.crew)
        return self._last

    def kept_by_store(self, rule: UpdateRule) -> UpdateRule:
        if self._strategy.mode != "geo" or self._single:
            return rule
        if rule.exact:
            raise ConfigError(
                f"{rule.name} with exact=True does not work in mode geo: there every trainer moves rows of its own, "
                "and no row is moved by all steps of the job; choose sync, half_async or async, or leave exact out"
            )
        return values_only(rule)


class DistributedOptimizer:
    def __init__(self, rule: UpdateRule, strategy: Resolved, role: Role) -> None:
        self.strategy = strategy
        self.workplace = FleetWorkplace(rule, strategy, role)
        self.trainer: Trainer | None = None
        """Who works there in this process, once somebody does."""

    def minimize(self, loss: Any) -> None:
        """As in Fleet: this optimizer trains the model of this loss, `model.loss`. The trainer does the rest."""
        PROCESS_ROLE.minimize(self, loss)

    def workplace_for(self, trainer: Trainer) -> FleetWorkplace:
        self.trainer = trainer
        return self.workplace
