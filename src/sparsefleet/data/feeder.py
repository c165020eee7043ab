"""Feeder: you hand in batches; nothing runs in the background.

```
reader = Feeder(schema, [{"label": [0, 1], "dense": dense, "C1": [[3], [4, 5]], …}, …])
```

What a batch can be stands in `data/python_samples.py`. The source is an iterable or a function that returns one:
every epoch starts it anew. One item is always drawn before the one that is given, to know which is the last. An
iterator that has a `cancel` is told by it, from another thread, that nobody waits for its next item any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.data.batching import Cutter, WholeItems, check_batch_size
from sparsefleet.data.iterable_pass import KIND, IterablePass, spans_of
from sparsefleet.data.pass_reader import PassReader
from sparsefleet.data.passes import Pass, check_position
from sparsefleet.data.python_samples import batch_of, batch_of_samples, is_sample

Item = Batch | Mapping[str, Any] | list[Mapping[str, Any]]
Source = Iterable[Item] | Callable[[], Iterable[Item]]

SAMPLES_AT_A_TIME = 1024
"""Single samples are joined into batches of this size where no batch size is asked for."""


class Feeder(PassReader):
    read_ahead: int | None = None

    def __init__(self, schema: Schema, source: Source, batch_size: int | None = None) -> None:
        """
        schema: what the samples mean.
        source: batches, lists of samples or single samples; or a function that returns such an iterable.
        batch_size: cut the samples into batches of this size; None gives the batches as they were handed in.
        """
        super().__init__()
        if not isinstance(schema, Schema):
            raise ConfigError(f"{type(self).__name__} needs a Schema first; got {type(schema).__name__}")
        if not callable(source) and not isinstance(source, Iterable):
            raise ConfigError(
                f"{type(self).__name__} needs an iterable of batches or a function that returns one; "
                f"got {type(source).__name__}"
            )
        if isinstance(source, Batch | Mapping):
            raise ConfigError(f"{type(self).__name__} needs an iterable of batches; put this one into a list")
        self.schema = schema
        self.batch_size = 0 if batch_size is None else check_batch_size(batch_size)
        self._source = source
        self._used_up = False

    def _cutter(self) -> Cutter:
        return Cutter(self.batch_size) if self.batch_size else WholeItems()

    def _start(self, threads: int, sought: Mapping[str, Any]) -> Pass:
        given = self._source() if callable(self._source) else self._source
        try:
            items = iter(given)
        except TypeError:
            raise ConfigError(f"the source gave {type(given).__name__}, which is no iterable of batches") from None
        own = items is not given or callable(self._source)
        if not own:
            if self._used_up:
                raise ConfigError(
                    "the iterator was used up by an earlier epoch; give a list, or a function that returns a fresh one"
                )
            self._used_up = True

        def close() -> None:
            end = getattr(items, "close", None)
            if own and end is not None:
                end()

        cancel = getattr(items, "cancel", None)
        return IterablePass(self._batches(items), sought, close, *([] if cancel is None else [cancel]))

    def skipped(self) -> dict[str, int]:
        """What the source says that it passed over, where it has a `skipped` of its own."""
        count = getattr(self._source, "skipped", None)
        return {} if count is None else dict(count())

    def _check(self, position: Mapping[str, Any]) -> None:
        check_position(position, KIND)
        spans_of(position)

    def _batches(self, items: Iterator[Item]) -> Iterator[Batch]:
        """Every item as a batch; single samples joined."""
        samples: list[Mapping[str, Any]] = []
        at_a_time = self.batch_size or SAMPLES_AT_A_TIME
        for number, item in enumerate(items):
            if isinstance(item, Mapping) and is_sample(item, self.schema):
                samples.append(item)
                if len(samples) < at_a_time:
                    continue
                yield self._joined(samples, f"samples {number - at_a_time + 1} to {number}")
                samples = []
                continue
            if samples:
                yield self._joined(samples, f"samples up to item {number - 1}")
                samples = []
            if not isinstance(item, list | tuple):
                yield _located(partial(batch_of, item, self.schema), f"item {number}")
            elif item:
                yield self._joined(item, f"item {number}")
        if samples:
            yield self._joined(samples, "the last samples")

    def _joined(self, samples: Sequence[Mapping[str, Any]], where: str) -> Batch:
        return _located(partial(batch_of_samples, samples, self.schema), where)


def _located(make: Callable[[], Batch], where: str) -> Batch:
    """Say which item of the source an error belongs to."""
    try:
        return make()
    except Exception as error:
        error.add_note(f"in {where} of the source")
        raise
