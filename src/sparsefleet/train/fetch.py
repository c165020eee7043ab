"""Looking into a run while it goes on: values by name, printed every so many batches or handed to a FetchHandler.

What a name may be, `train/fetcher.py` says. In place of a name, an object with a `name`: `model.loss` is "loss".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sparsefleet.core.errors import ConfigError

Fetch = Callable[[Sequence[str]], list[Any]]


class FetchHandler:
    """Subclass it and write `handler`; it is called with the fetched values every so often, never twice at once.

    `FetchHandler(["auc"], 5)` is called about every 5 seconds, `FetchHandler(["auc"], period_batches=100)` after every
    100 batches.
    """

    def __init__(
        self,
        fetch_list: Sequence[Any] | Mapping[str, Any] | None = None,
        period_secs: float | None = None,
        return_np: bool = True,
        *,
        period_batches: int | None = None,
        var_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """`var_dict`, or a dict as the first argument, is of Fluid 1.7 and later: `handler` is called with a dict of
        its keys then, every 60 seconds unless told."""
        if (fetch_list is None) == (var_dict is None):
            raise ConfigError("a FetchHandler needs the names to fetch, FetchHandler(['auc'], 5): once")
        given = fetch_list if var_dict is None else var_dict
        self._keys = list(given) if isinstance(given, Mapping) else None
        if isinstance(given, Mapping):
            given = list(given.values())
            period_secs = 60.0 if period_secs is None and period_batches is None else period_secs
        elif var_dict is not None:
            raise ConfigError(f"FetchHandler(var_dict={var_dict!r:.60}): it must be a dict, such as {{'auc': 'auc'}}")
        if (period_secs is None) == (period_batches is None):
            raise ConfigError("a FetchHandler needs either period_secs or period_batches")
        if (period_secs or period_batches or 0) <= 0:
            raise ConfigError("a FetchHandler's period must be above 0")
        self.fetch_list, self.period_secs, self.period_batches = names_of(given or ()), period_secs, period_batches
        self.return_np = return_np
        self._lock = threading.Lock()
        self._next = time.monotonic() + (period_secs or 0.0)

    def handler(self, fetched: Any) -> None:
        """Called with a list, one value per name of `fetch_list`; with a dict where names were given as one."""
        raise NotImplementedError("write handler(self, fetched) in your FetchHandler")

    def after_step(self, step: int, fetch: Fetch) -> None:
        if self.period_batches and step % self.period_batches == 0:
            self._call(fetch)

    def tick(self, fetch: Fetch) -> None:
        if self.period_secs and time.monotonic() >= self._next:
            self._next = time.monotonic() + self.period_secs
            self._call(fetch)

    def _call(self, fetch: Fetch) -> None:
        with self._lock:
            made = _as_numpy if self.return_np else torch.as_tensor
            values = [made(value) for value in fetch(self.fetch_list)]
            self.handler(values if self._keys is None else dict(zip(self._keys, values, strict=True)))


class PrintFetched(FetchHandler):
    """`print_period` of train_from_dataset and infer_from_dataset: prints each value behind its `fetch_info`."""

    def __init__(self, fetch_list: Sequence[Any], fetch_info: Sequence[str] | None, print_period: int) -> None:
        super().__init__(fetch_list, period_batches=print_period)
        self._info = infos_for(self.fetch_list, fetch_info)

    def handler(self, fetched: list[Any]) -> None:
        print("  ".join(f"{info} {value}" for info, value in zip(self._info, fetched, strict=True)), flush=True)


class PrintSteps(FetchHandler):
    """The loss of every step, for trainers that are made as in FleetX."""

    def __init__(self, worker: int) -> None:
        super().__init__(["step", "loss"], period_batches=1)
        self._worker = worker

    def handler(self, fetched: list[Any]) -> None:
        print(f"worker {self._worker}, step {int(fetched[0])}, loss {float(fetched[1]):.6f}", flush=True)


def infos_for(fetch_list: Sequence[str], fetch_info: Sequence[str] | None) -> list[str]:
    """The texts to print before the values."""
    if isinstance(fetch_info, str):
        raise ConfigError(f"fetch_info={fetch_info!r:.60} must be a list of texts, one a name: [{fetch_info!r:.60}]")
    infos = list(fetch_info or fetch_list)
    if len(infos) != len(fetch_list):
        raise ConfigError(f"fetch_info has {len(infos)} texts for {len(fetch_list)} names of fetch_list")
    return infos


def names_of(fetch_list: Sequence[Any]) -> list[str]:
    """The names in a fetch list; of an object that is not a text, its `name`."""
    if isinstance(fetch_list, str) or not isinstance(fetch_list, Sequence):
        raise ConfigError(f"fetch_list={fetch_list!r:.60} must be a list of names, such as ['auc']")
    names = [item if isinstance(item, str) else getattr(item, "name", None) for item in fetch_list]
    for name, item in zip(names, fetch_list, strict=True):
        if not isinstance(name, str):
            raise ConfigError(f"fetch_list: {item!r:.60} is no name and has none; write a name, such as 'auc'")
    return [str(name) for name in names]


def _as_numpy(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
