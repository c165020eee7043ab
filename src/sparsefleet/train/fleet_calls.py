"""What users of Fleet call on a trainer: `train_from_dataset`, `infer_from_dataset`, and old shapes of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.notes import note
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.data.base import Reader
from sparsefleet.optim.base import UpdateRule
from sparsefleet.train.fetch import FetchHandler, PrintFetched, infos_for, names_of
from sparsefleet.train.given_data import require_same_threads
from sparsefleet.train.run import FitResult
from sparsefleet.train.workplace import BringsWorkplace

if TYPE_CHECKING:
    from sparsefleet.train.trainer import Trainer


class FleetCalls:
    """A part of `Trainer`."""

    def train_from_dataset(  # type: ignore[misc]
        self: Trainer,
        model: nn.Module,
        dataset: Reader,
        *,
        fetch_list: Sequence[Any] = (),
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
        debug: bool = False,
        thread: int = 0,
        scope: None = None,
        quiet: bool | None = None,
    ) -> FitResult:
        """One pass over the dataset, as users of Fleet know it; prints `fetch_list` every `print_period` batches.

        `thread`: training threads of this call; 0: as the trainer or the dataset was told.
        """
        _check_fluid("train_from_dataset", debug, scope)
        handlers = _handlers(fetch_list, fetch_info, print_period, fetch_handler)
        with self._threads_of_call("train_from_dataset", dataset, thread):
            return self.fit(model, dataset, epochs=1, fetch=handlers, quiet=quiet)

    def infer_from_dataset(  # type: ignore[misc]
        self: Trainer,
        model: nn.Module,
        dataset: Reader,
        *,
        fetch_list: Sequence[Any] = (),
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
        debug: bool = False,
        thread: int = 0,
        scope: None = None,
    ) -> dict[str, float]:
        """Score the shares of all trainers; prints `fetch_list` every `print_period` batches and at the end."""
        _check_fluid("infer_from_dataset", debug, scope)
        handlers = _handlers(fetch_list, fetch_info, print_period, fetch_handler)
        with self._threads_of_call("infer_from_dataset", dataset, thread):
            values = self.evaluate_everywhere(model, dataset, fetch=handlers)
        # The last batch, and what a layer made of it, has been printed; these are of all samples of all trainers.
        names = names_of(fetch_list)
        if whole := [index for index, name in enumerate(names) if name in values]:
            infos = infos_for(names, fetch_info)
            PrintFetched([names[i] for i in whole], [infos[i] for i in whole], 1).handler(
                [values[names[i]] for i in whole]
            )
        return values

    def trained_data(self: Trainer) -> Reader:  # type: ignore[misc]
        """What the model of the run, or of the last one, is trained on: `save_inference_model` names inputs of it."""
        return self._last_run().data

    @contextmanager
    def _threads_of_call(self: Trainer, call: str, dataset: Reader, thread: int) -> Iterator[None]:  # type: ignore[misc]
        """For the call that is made within: as many threads as `thread=` asks for, unless somebody says otherwise."""
        require_same_threads(f"{call}(thread={thread})", thread, dataset, self._threads)
        self._called_with = thread or None
        try:
            yield
        finally:
            self._called_with = None


def optimizer_of_process(trainer: Trainer) -> UpdateRule | BringsWorkplace:
    """For `Trainer(CPUPlace())`."""
    optimizer = PROCESS_ROLE.optimizer
    if optimizer is None:
        raise ConfigError(
            "Trainer(CPUPlace()) takes the optimizer of fleet.distributed_optimizer(optimizer, strategy), or the "
            "one whose minimize(model.loss) was called, and there is none yet: call one of them before, or give "
            "the Trainer its optimizer"
        )
    if not isinstance(optimizer, BringsWorkplace):
        PROCESS_ROLE.trainer = trainer
    return optimizer  # type: ignore[no-any-return]


def one_count(epochs: int, epoch: int | None) -> int:
    """`fit(epoch=…)` is `fit(epochs=…)`."""
    if epoch is None:
        return epochs
    if epochs not in (1, epoch):
        raise ConfigError(f"epochs={epochs} and epoch={epoch} mean the same thing: give one of them")
    note("fit(epoch=…): the setting is called epochs here, and means the same")
    return epoch


def _check_fluid(call: str, debug: bool, scope: None) -> None:
    """Settings of Fluid's call of this name."""
    if debug:
        raise ConfigError(f"{call}(debug=True): Trainer(profile=True) tells where the time of steps goes")
    if scope is not None:
        raise ConfigError(f"{call}(scope=…): there are no scopes; the trainer's store holds the parameters")


def _handlers(
    fetch_list: Sequence[Any], fetch_info: Sequence[str] | None, print_period: int, fetch_handler: FetchHandler | None
) -> list[FetchHandler]:
    handlers = [fetch_handler] if fetch_handler else []
    return [*handlers, PrintFetched(fetch_list, fetch_info, print_period)] if fetch_list else handlers
