"""The small facade that users script against. One process plays one role; `fleet.…` are the methods of one `Fleet`."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from torch import nn

from sparsefleet.core.errors import ConfigError, Rejoin, SparseFleetError
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.data.base import Reader
from sparsefleet.data.split import Path, split_files
from sparsefleet.fleet.healing import START_AGAIN, FleetHealing, HealingVariables
from sparsefleet.fleet.old_shapes import (
    MAIN_PROGRAM,
    STARTUP_PROGRAM,
    MainProgram,
    StartupProgram,
    check_feeds_and_targets,
    check_no_filename,
    old_arguments,
)
from sparsefleet.fleet.optimizer import DistributedOptimizer
from sparsefleet.fleet.roles import TRAINER_ENDPOINTS, Role
from sparsefleet.fleet.security import Security
from sparsefleet.fleet.server_life import serve
from sparsefleet.fleet.serving_model import save_bundle
from sparsefleet.fleet.shuffle import exchange
from sparsefleet.fleet.strategy import DistributedStrategy
from sparsefleet.fleet.together import Util
from sparsefleet.fleet.transpiler import DistributeTranspilerConfig
from sparsefleet.optim.base import UpdateRule
from sparsefleet.store.remote import RemoteConfig, RemoteStore
from sparsefleet.store.remote.attempts import furthest_fit
from sparsefleet.store.remote.connection import Connection
from sparsefleet.store.wire.frames import Bytes
from sparsefleet.train import FitResult, Trainer

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How long a server may take to say in which attempt it is."""


class Fleet:
    def __init__(self) -> None:
        self._role: Role | None = None
        self._optimizer: DistributedOptimizer | None = None
        self._remote: RemoteStore | None = None
        self._model_path: str | None = None
        self._server_ready = False
        self._exchanges = 0
        self._process = os.getpid()
        self._stop_at_exit = False
        self.util: Util = Util(lambda: self._known_optimizer().workplace.crew)
        """all_reduce, all_gather, barrier, …: what trainers do together."""

    def init(self, role: Role | None = None, is_collective: bool = False, strategy: Any = None) -> None:
        """Find out which part of the job this process plays: from the environment, unless told."""
        if is_collective:
            raise ConfigError(
                "fleet.init(is_collective=True): here parameters are on servers, and trainers do not exchange them "
                "among each other; write fleet.init()"
            )
        if strategy is not None:
            raise ConfigError("fleet.init(strategy=…): give it to fleet.distributed_optimizer(optimizer, strategy)")
        if self._remote is not None:
            raise ConfigError("fleet.init() after init_worker(): call stop_worker() first")
        self.__init__()  # type: ignore[misc]
        self._role = role or Role.from_environment()
        PROCESS_ROLE.forget()
        PROCESS_ROLE.part_of_job = "" if self._role.kind == "single" else str(self._role)

    # -- who am I ------------------------------------------------------------------------------------------------------

    def is_initialized(self) -> bool:
        """Whether `init` has been called."""
        return self._role is not None

    def is_server(self) -> bool:
        return self._known_role().is_server

    def is_worker(self) -> bool:
        return self._known_role().is_worker

    def is_first_worker(self) -> bool:
        """Whether this trainer does what one does for all: trainer 0, or the next one if that was lost on the way."""
        role = self._known_role()
        return role.is_worker and role.index == (self._remote.crew.first() if self._remote else 0)

    def worker_index(self) -> int:
        return self._known_role().index if self.is_worker() else -1

    def server_index(self) -> int:
        return self._known_role().index if self.is_server() else -1

    def worker_num(self) -> int:
        return self._known_role().worker_num

    def server_num(self) -> int:
        return self._known_role().server_num

    def server_endpoints(self, to_string: bool = False) -> Any:
        """host:port of every server, as a list, or as one text with commas."""
        endpoints = list(self._known_role().server_endpoints)
        return ",".join(endpoints) if to_string else endpoints

    def worker_endpoints(self, to_string: bool = False) -> Any:
        """What PADDLE_TRAINER_ENDPOINTS says. Trainers listen nowhere here, so without it there are none."""
        given = [one for one in os.environ.get(TRAINER_ENDPOINTS, "").split(",") if one]
        number = self.worker_num()
        if not given:
            raise ConfigError(
                f"worker_endpoints(): trainers listen nowhere here, and {TRAINER_ENDPOINTS} is not set. "
                "fleet.worker_num() says how many there are; fleet.util.all_reduce and fleet.exchange carry things "
                "between them"
            )
        if len(given) != number:
            raise ConfigError(f"{TRAINER_ENDPOINTS} names {len(given)} trainers, and the job has {number}")
        return ",".join(given) if to_string else given

    def split_files(self, files: Sequence[Path], *, cuttable: bool = True) -> list[str]:
        """This trainer's share of the files: no overlap, even by bytes, stable; see data/split.py."""
        if self._known_role().elastic is not None:
            raise ConfigError(
                "split_files: trainers of an elastic job come and go, so nobody has a share; give every trainer all "
                "files, with open_reader(…, leased=True)"
            )
        return split_files(files, max(self.worker_index(), 0), self.worker_num(), cuttable=cuttable)

    def distributed_optimizer(
        self,
        optimizer: UpdateRule,
        strategy: DistributedStrategy | DistributeTranspilerConfig | None = None,
    ) -> DistributedOptimizer:
        """The optimizer as the job uses it: give it to a Trainer."""
        if self._remote is not None:
            raise ConfigError(
                "distributed_optimizer() after init_worker(): call it before, since servers hear of the strategy there"
            )
        if not isinstance(optimizer, UpdateRule):
            raise ConfigError(
                f"distributed_optimizer({optimizer!r:.60}, …): give it a rule of sparsefleet.optim, such as Adam(1e-3)"
            )
        strategy = DistributedStrategy() if strategy is None else strategy
        if not isinstance(strategy, DistributedStrategy | DistributeTranspilerConfig):
            raise ConfigError(
                f"distributed_optimizer: strategy={strategy!r:.60}; give fleet.DistributedStrategy(mode='async'), or a "
                "DistributeTranspilerConfig"
            )
        self._optimizer = DistributedOptimizer(optimizer, strategy.resolved(), self._known_role())
        PROCESS_ROLE.optimizer, PROCESS_ROLE.trainer = self._optimizer, None
        return self._optimizer

    # -- servers -------------------------------------------------------------------------------------------------------

    def init_server(self, model_path: str | None = None) -> None:
        """Get ready to serve; with a checkpoint, start from it (incremental training)."""
        if not self.is_server():
            raise ConfigError(f"init_server() is for servers; this process is the {self._known_role()}")
        self._model_path = model_path
        self._server_ready = True

    def run_server(self) -> NoReturn:
        """Serve until all trainers have stopped. Ends the process."""
        if not self._server_ready:
            raise ConfigError("call fleet.init_server() before fleet.run_server()")
        if self._optimizer is None:
            raise ConfigError(
                "call fleet.distributed_optimizer(optimizer, strategy) before fleet.run_server(), on servers too: "
                "they need to know the strategy"
            )
        serve(self._known_role(), self._optimizer.strategy, self._model_path)

    # -- trainers ------------------------------------------------------------------------------------------------------

    def init_worker(self) -> None:
        """Connect to all servers, waiting for those that are not up yet. Nothing to do in one process."""
        role = self._known_role()
        if not role.is_worker:
            raise ConfigError(f"init_worker() is for trainers; this process is the {role}")
        if role.kind == "single" or self._remote is not None:
            return
        strategy = self._optimizer.strategy if self._optimizer else DistributedStrategy().resolved()
        if role.elastic is not None and strategy.mode == "sync" and strategy.clip_norm is not None:
            raise ConfigError(
                "clip_norm in sync needs the same trainers from a round's norm to its end, and those of an elastic job "
                "come and go: leave one of them out, or use another mode"
            )
        security, healing = Security.from_environment(), HealingVariables.from_environment()
        security.warn_if_open(str(role), role.server_endpoints)
        config = RemoteConfig(
            endpoints=role.server_endpoints,
            worker=role.index,
            workers=role.worker_num if role.elastic is None else role.elastic.most,
            elastic=role.elastic,
            mode=self._optimizer.strategy.mode if self._optimizer else None,
            timeout=strategy.answer_seconds,
            connect_timeout=strategy.connect_timeout,
            heartbeat=min(1.0, strategy.timeout / 5),
            shared_memory=strategy.shared_memory,
            dense_wire=strategy.dense_wire,
            attempt=None if healing is None else healing.attempt,
            token=security.token,
            tls_root_certs=security.roots,
        )
        self._connect(config, healing)
        assert self._remote is not None
        if role.index < 0:
            self._role = replace(role, index=self._remote.crew.index)
            log.info("server 0 has made this worker %d", self._remote.crew.index)
        self._process = os.getpid()
        atexit.register(self._left_without_a_word)
        self._remote.crew.catching_up = _comes_after_others(self._remote.connection)

    def _connect(self, config: RemoteConfig, healing: HealingVariables | None, why: str | None = None) -> None:
        try:
            self._remote = store = RemoteStore(config, why)
        except SparseFleetError as error:
            raise error from None  # gRPC's own way to the error helps nobody

        def rejoin(why: str, fits: int) -> None:
            """In the same process: only the connection is new, and what it knows of the attempt."""
            attempt = store.connection.attempt or 0
            store.connection.abandon()
            self._connect(replace(store.connection.config, attempt=attempt + 1, fits=fits), healing, why)
            assert self._remote is not None
            # Of an elastic job: where it is not of the attempt's crew, the others may have met without it.
            self._remote.crew.catching_up = self._remote.connection.late

        if self._optimizer:
            part = None if healing is None else FleetHealing(healing, store, rejoin)
            self._optimizer.workplace.connect(store, part)

    def stop_worker(self) -> None:
        """This trainer is done; servers end when all are.

        Called while an error is being handled or on its way out (in a `finally`), it takes effect when the process
        ends: only then is it known whether the script has failed.
        """
        if self._remote is None:
            return
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and error.code:
            self._remote.crew.give_up(error)
        elif error is not None and not isinstance(error, SystemExit):
            self._stop_at_exit = True
            return
        self._stop()

    def _stop(self) -> None:
        assert self._remote is not None
        crew = self._remote.crew
        if not crew.given_up:
            if lost := crew.lost():
                leased = bool(self._remote.stats()["servers"][0]["leases"]["pass"])
                then = "others have trained its pieces" if leased else "samples that it had not trained yet are missing"
                log.warning("the job ends without %s: %s", ", ".join(lost), then)
            crew.stop()
        self._remote.close()
        self._remote = None
        atexit.unregister(self._left_without_a_word)

    def _left_without_a_word(self) -> None:
        """The process ends and has not stopped, or not without an error: one of the script's, most likely."""
        # A child that was forked is no trainer; and one that has left the job has said good-bye.
        left = self._remote is not None and self._remote.connection.closed
        if self._remote is not None and not left and os.getpid() == self._process:
            # Set where the interpreter has printed the error that ends the process.
            error = getattr(sys, "last_value", None)
            given_up = self._remote.crew.given_up
            if self._attempt_is_over(error):
                log.warning("the job goes on with a new attempt, outside of fit here: this trainer is to start again")
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(START_AGAIN)  # the only way to say so from here
            done = self._stop_at_exit or (error is None and self._work_is_done())
            if error is None and not done and not given_up:
                log.error(
                    "this trainer ends without fleet.stop_worker(), and without having come to the end of a fit: to "
                    "the others it is lost"
                )
            if error is None and done and not given_up and not self._stop_at_exit:
                log.info("the script has ended after its last fit: this trainer stops (fleet.stop_worker())")
            if error is not None or not done:
                self._remote.crew.give_up(error)
            self._stop()

    def _attempt_is_over(self, error: BaseException | None) -> bool:
        """Whether, in a job that heals, this trainer's part ends because the servers are in another attempt."""
        connection = self._remote.connection if self._remote is not None else None
        if connection is None or connection.attempt is None or connection.given_up or connection.closed:
            return False
        if isinstance(error, Rejoin) or connection.starts_again:  # servers may say so before the next attempt has begun
            return True
        try:
            answers = [link.action("look", {}, LOOK_SECONDS) for link in connection.links]
        except SparseFleetError:
            return True
        return any(answer.get("attempt") != connection.attempt for answer in answers)

    def _work_is_done(self) -> bool:
        """Whether the last thing that the trainer was asked for came to its end."""
        trainer = self._optimizer.trainer if self._optimizer else None
        return trainer is not None and trainer.work_done

    def barrier_worker(self, name: str = "user") -> None:
        """Return when every trainer has come here."""
        self._known_optimizer().workplace.crew.barrier(name)

    def exchange(self, letters: Iterable[tuple[int, Bytes]]) -> dict[int, list[Bytes]]:
        """Send bytes to other trainers (by index), and get what each of them sent here. All trainers call it.

        `InMemoryDataset.global_shuffle(fleet)` moves rows with it.
        """
        if self._known_role().worker_num == 1:
            raise ConfigError("exchange() is for jobs of several trainers; this one has no other")
        if self._remote is None:
            raise ConfigError("call fleet.init_worker() first: what trainers send each other goes through the servers")
        self._exchanges += 1
        return exchange(self._remote.crew, f"exchange {self._exchanges}", letters)

    def train_from_dataset(self, model: nn.Module, dataset: Reader, **settings: Any) -> FitResult:
        """One pass over this trainer's dataset; see Trainer.train_from_dataset. Without a Trainer, one is made."""
        return self._trainer().train_from_dataset(model, dataset, **settings)

    def infer_from_dataset(self, model: nn.Module, dataset: Reader, **settings: Any) -> dict[str, float]:
        """Score every trainer's share: metrics exactly those of one process. All trainers must call it."""
        return self._trainer().infer_from_dataset(model, dataset, **settings)

    def save_persistables(
        self,
        *arguments: Any,
        executor: Any = None,
        dirname: Any = None,
        main_program: Any = None,
        filename: None = None,
    ) -> None:
        """`save_persistables(path)`: a checkpoint of everything: rows, optimizer state, dense parameters.

        One trainer calls it. Fluid's `save_persistables(exe, path, main_program)` means the same.
        """
        check_no_filename("save_persistables", filename)
        path, _ = old_arguments("save_persistables", arguments, executor, dirname, main_program)
        self._trainer().save(path)

    def save_inference_model(
        self,
        *arguments: Any,
        executor: Any = None,
        dirname: Any = None,
        feeded_var_names: Any = None,
        target_vars: Any = None,
        main_program: Any = None,
        format: str = "bundle",
        rows: str = "float32",
        min_seen: int = 0,
        name: str | None = None,
    ) -> None:
        """`save_inference_model(path)`: what scoring needs, without optimizer state, of one moment on all servers.

        One trainer calls it. `format`: "bundle", for `sparsefleet serve` and `Predictor` (`rows`, `min_seen` and `name`
        as in `sparsefleet export`); or "checkpoint", for `sparsefleet infer` and `Trainer.load(…, values_only=True)`.
        Fluid's `save_inference_model(exe, path, feeds, targets)` means the same: inputs and output are the model's.
        """
        path, rest = old_arguments("save_inference_model", arguments, executor, dirname, main_program)
        feeds = rest[0] if rest else feeded_var_names
        targets = rest[1] if len(rest) > 1 else target_vars
        if len(rest) > 2:
            raise ConfigError(
                f"save_inference_model: {len(rest) - 2} arguments too many; write save_inference_model(path)"
            )
        trainer = self._trainer()
        if trainer.passes("save_inference_model", str(path)):
            return
        if feeds is not None or targets is not None:
            check_feeds_and_targets(trainer.trained_model(), trainer.trained_data().schema, feeds, targets)
        if format == "checkpoint":
            if (rows, min_seen, name) != ("float32", 0, None):
                raise ConfigError(
                    "rows, min_seen and name are options of a bundle; format='checkpoint' has none of them"
                )
            trainer.save(path, drop_state=True)
        elif format == "bundle":
            save_bundle(trainer, path, rows=rows, min_seen=min_seen, name=name)
        else:
            raise ConfigError(f"format={format!r} is not a format of models to serve; choose bundle or checkpoint")

    @property
    def main_program(self) -> MainProgram:
        """For scripts of Fluid's shape: stands for the model whose loss `minimize` was called with."""
        return MAIN_PROGRAM

    @property
    def startup_program(self) -> StartupProgram:
        """For scripts of Fluid's shape: running it does nothing, parameters are made when training begins."""
        return STARTUP_PROGRAM

    def _trainer(self) -> Trainer:
        """Who works in this process; one is made of the distributed optimizer where a script has made none."""
        optimizer = self._known_optimizer()
        return optimizer.trainer or Trainer(optimizer)

    def _known_role(self) -> Role:
        if self._role is None:
            raise ConfigError("call fleet.init() first")
        return self._role

    def _known_optimizer(self) -> DistributedOptimizer:
        if self._optimizer is None:
            raise ConfigError("call fleet.distributed_optimizer(optimizer, strategy) first")
        return self._optimizer


def _comes_after_others(connection: Connection) -> bool:
    """Whether this trainer, which has just come, goes past the meetings of its script until it is where others are."""
    if connection.cut is not None or connection.late:
        return True
    # There is no cut yet that would tell; but others may live, and be past those meetings within their first `fit`.
    return (connection.attempt or 1) > 1 and furthest_fit(connection) > 0


FLEET: Fleet = Fleet()
"""The process's own."""
