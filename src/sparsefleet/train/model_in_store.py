"""ModelInStore: a trainer's model in its store: bound in one place, filled from checkpoints."""

from __future__ import annotations

import json
import logging
from typing import Literal, overload

from torch import nn

from sparsefleet.checkpoint import Checkpoint, chosen, latest
from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import CheckpointError
from sparsefleet.data.base import Reader
from sparsefleet.store.base import Pending, RunFacts
from sparsefleet.store.shards import facts_of
from sparsefleet.train.binding import BoundModel, PartialLoad, SharedModel
from sparsefleet.train.given_data import TrainedOn, differing_schemas
from sparsefleet.train.healing import Cut
from sparsefleet.train.workplace import Workplace

logger = logging.getLogger("sparsefleet.train")


class ModelInStore:
    def __init__(self, workplace: Workplace, seed: int) -> None:
        self._workplace, self._seed = workplace, seed
        self._bound: BoundModel | None = None
        self.trained_on = TrainedOn()
        self.filled_after: int | None = None
        """The script has filled the model from a checkpoint, after so many calls of `fit`; None: never."""

    @property
    def model(self) -> nn.Module | None:
        return None if self._bound is None else self._bound.model

    def bind(self, model: nn.Module) -> BoundModel:
        """The one place where model, store and crew come together: the trainer's model is in the store from here on."""
        if self._bound is None or self._bound.model is not model:
            work = self._workplace
            self._bound = BoundModel(model, work.store, work.rule, self._seed, work.kept_by_store)
            inputs, schema = work.store.start_samples()
            if inputs is not None or schema is not None:
                self.trained_on.learn_saved("the checkpoint that the servers started from", inputs, schema)
        return self._bound

    def unbind(self) -> None:
        """The store is another one from now on: of the job's next attempt."""
        self._bound = None

    def to_score(self, model: nn.Module) -> SharedModel:
        """The trainer's model, bound; another one with its own dense parameters and the trainer's rows."""
        if self._bound is not None and self._bound.model is not model:
            return self._bound.other(model)
        return self.bind(model)

    def pull_existing(self, table: str, keys: U64) -> Pending[F32]:
        return self._workplace.store.pull(table, keys, create=False)

    @overload
    def load(self, model: nn.Module, path: str, *, values_only: bool, partial: Literal[False]) -> RunFacts: ...
    @overload
    def load(self, model: nn.Module, path: str, *, values_only: bool, partial: Literal[True]) -> PartialLoad: ...
    @overload
    def load(self, model: nn.Module, path: str, *, values_only: bool, partial: bool) -> RunFacts | PartialLoad: ...
    def load(self, model: nn.Module, path: str, *, values_only: bool, partial: bool) -> RunFacts | PartialLoad:
        """Fill the model's tables and parameters from a checkpoint or a run's newest one; see `Trainer.load`."""
        bound, crew, store = self.bind(model), self._workplace.crew, self._workplace.store
        checkpoint = Checkpoint.open(latest(path))  # before anyone can save: all must mean the same one
        location = str(checkpoint.location)

        def fill() -> None:
            store.load(location, values_only=values_only, partial=partial)

        if self._is_filled():
            logger.warning("%s: the job was filled from it before this trainer came; it goes on as it is", location)
        else:
            crew.only_first(f"load {location}", fill)
        bound.refresh()
        facts = facts_of(checkpoint)
        self.trained_on.learn_saved(location, facts.inputs, facts.schema)
        if not partial:
            bound.load_buffers(facts.buffers)
            return facts
        result = bound.partial_load(checkpoint, values_only=values_only)
        if crew.index == 0:
            for line in str(result).splitlines():
                logger.warning("%s", line)
        return result

    def _is_filled(self) -> bool:
        """Whether the others have filled the store at this place of the script, and have trained since."""
        work = self._workplace
        if work.crew.late:
            return True
        cut = Cut.open(work.healing.cut) if work.healing is not None and work.crew.catching_up else None
        return cut is not None and cut.fit > work.fits

    def load_to_resume(self, model: nn.Module, data: Reader, path: str) -> RunFacts:
        """Load the checkpoint; what it says of the run that it is of. Refuses one on other data."""
        facts = self.load(model, path, values_only=False, partial=False)
        differing = differing_schemas(facts.schema or {}, json.loads(json.dumps(data.schema.to_dict())))
        if differing:
            raise CheckpointError(f"{path} was trained on rows of another schema: {'; '.join(differing)}")
        return facts

    def load_to_begin_with(self, model: nn.Module, data: Reader, path: str, *, fresh_optimizer: bool) -> None:
        """What fits of a checkpoint, for a new run. Refuses one whose keys mean something else."""
        location = str(chosen(path)[0])  # the best one, where there is one
        manifest, trained_on = Checkpoint.open(location).manifest, TrainedOn()
        trained_on.learn_saved(location, manifest.inputs, manifest.schema)
        problems, _ = trained_on.differing_keys(data)  # of the rest the log tells once it is loaded, as of any data
        if problems:
            raise CheckpointError(
                f"{location} has rows by other keys than these samples would have, or numbers in another order: "
                f"{'; '.join(problems)}. Read the samples with its schema, to which slots may be added (`sparsefleet "
                "data prepare --keep-constants` leaves its numbers)"
            )
        self.load(model, location, values_only=fresh_optimizer, partial=True)
