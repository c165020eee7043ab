"""Fetcher: the values behind the names of a fetch list, at one moment of a run.

```
auc, logloss, accuracy, step, loss, …   a number of the run or of its metrics
tower.layers.0.weight                   a dense parameter of the model
predictions                             [B] click probabilities of the last batch, from before its update
an output's name                        of a model that returns a dict of tensors: of the last batch
embedding, tower.layers.0               a module of the model: what it makes of the last batch
```
A module's output is computed when it is asked for, on a copy of the model that shares its parameters: training itself
goes on as if nobody looked. As in scoring, dropout is off; rows are read from the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.metrics.base import PROBABILITY, Outputs
from sparsefleet.nn import precision as precisions
from sparsefleet.nn.embedding import attach as attach_source
from sparsefleet.nn.tower import layer_by_layer
from sparsefleet.train.binding import SharedModel
from sparsefleet.train.row_source import BatchRows, Pull

PREDICTIONS = "predictions"
Numbers = Mapping[str, float]


class Fetcher:
    """Any thread may call any method."""

    def __init__(
        self, shared: SharedModel, pull: Pull, precision: str, names: Iterable[str], numbers: Iterable[str]
    ) -> None:
        """`names`: all that will be asked for; what cannot be is refused now, not after the first hundred batches."""
        self._parameters = dict(shared.model.named_parameters())
        self._precision, self._pull = precision, pull
        self._numbers = list(numbers)
        self._last: tuple[Batch, Outputs] | None = None
        self._lock = threading.Lock()
        modules = dict(shared.model.named_modules())
        names = list(dict.fromkeys(names))
        self._watched = [name for name in names if self._is_module(name, modules)]
        others = [name for name in names if not self._known(name) and name not in self._watched]
        # What a model's outputs are called is known once it has made some.
        self._outputs = others if callable(getattr(shared.model, "loss", None)) else []
        if others and not self._outputs:
            self._refuse(others, modules)
        self._needs_last = bool(self._watched or self._outputs or PREDICTIONS in names)
        self._copy = shared.copy_for_looking() if self._watched else None

    def seen(self, batch: Batch, outputs: Outputs | Callable[[], Outputs]) -> None:
        """A batch has been through the model."""
        if self._needs_last:
            self._last = (batch, outputs() if callable(outputs) else outputs)

    def values(self, names: Sequence[str], numbers: Callable[[Sequence[str]], Numbers]) -> list[Any]:
        """One value for each name; `numbers` is called with those of them that are numbers."""
        wanted = [name for name in names if name in self._numbers]
        known = numbers(wanted) if wanted else {}
        of_modules = self._look() if any(name in self._watched for name in names) else {}
        return [self._value(name, known, of_modules) for name in names]

    def _value(self, name: str, numbers: Numbers, of_modules: Mapping[str, Any]) -> Any:
        if name in self._numbers:
            return numbers[name]
        if name in self._parameters:
            return self._parameters[name].detach().clone()
        if name in self._watched:
            return of_modules[name]
        _, outputs = self._last_batch()
        key = PROBABILITY if name == PREDICTIONS else name
        if key not in outputs:
            raise ConfigError(
                f"cannot fetch {name!r}: the model's outputs are {', '.join(outputs)} ({PROBABILITY} as {PREDICTIONS})"
            )
        return torch.from_numpy(outputs[key].copy())

    def _last_batch(self) -> tuple[Batch, Outputs]:
        last = self._last
        if last is None:
            raise ConfigError("there is no batch yet to fetch predictions or a layer's output of")
        return last

    def _look(self) -> dict[str, Any]:
        """What each watched module makes of the last batch."""
        assert self._copy is not None
        batch, _ = self._last_batch()
        made: dict[str, Any] = {}

        def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
            return lambda module, inputs, output: made.update({name: _detached(output)})

        with self._lock:
            modules = dict(self._copy.named_modules())
            hooks = [modules[name].register_forward_hook(keep(name)) for name in self._watched]
            rows = BatchRows(self._copy, self._pull, training=False)
            try:
                attach_source(self._copy, rows)
                with torch.no_grad(), flushed(), precisions.computing_in(self._precision), layer_by_layer():
                    self._copy(batch)
                rows.end()
            finally:
                for hook in hooks:
                    hook.remove()
        if missing := [name for name in self._watched if name not in made]:
            raise ConfigError(f"cannot fetch {', '.join(missing)}: the model's forward does not call it")
        return made

    def _known(self, name: str) -> bool:
        return name in self._numbers or name in self._parameters or name == PREDICTIONS

    def _is_module(self, name: str, modules: Mapping[str, nn.Module]) -> bool:
        return bool(name) and name in modules and not self._known(name)

    def _refuse(self, unknown: Sequence[str], modules: Mapping[str, nn.Module]) -> None:
        raise ConfigError(
            f"cannot fetch {', '.join(map(repr, unknown))}; choose from {', '.join(self._numbers)}, {PREDICTIONS}, "
            f"a dense parameter: {', '.join(self._parameters)}, or a module: {', '.join(filter(None, modules))}"
        )


def _detached(output: Any) -> Any:
    if torch.is_tensor(output):
        return output.detach().clone()
    raise ConfigError(f"cannot fetch a module that returns {type(output).__name__}: only tensors can be fetched")
