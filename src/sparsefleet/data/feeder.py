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
from typing import Any, TypeVar

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.inputs import EITHER, Inputs
from sparsefleet.core.layout import Layout
from sparsefleet.core.schema import Schema
from sparsefleet.data.batching import Cutter, WholeItems, check_batch_size
from sparsefleet.data.iterable_pass import KIND, IterablePass, spans_of
from sparsefleet.data.pass_reader import PassReader
from sparsefleet.data.passes import Pass, check_position
from sparsefleet.data.positional import Positions
from sparsefleet.data.python_samples import batch_of, batch_of_samples, is_sample, words_of
from sparsefleet.data.salted_hash import find_hash, salted

Item = Batch | Mapping[str, Any] | Sequence[Any]
"""A batch, a sample or a batch by names, a sample by position, or a list of samples."""
Source = Iterable[Item] | Callable[[], Iterable[Item]]

T = TypeVar("T")

SAMPLES_AT_A_TIME = 1024
"""Single samples are joined into batches of this size where no batch size is asked for."""


class Feeder(PassReader):
    read_ahead: int | None = None

    def __init__(self, schema: Schema | Sequence[Any], source: Source, batch_size: int | None = None) -> None:
        """
        schema: what the samples mean: a Schema, or inputs as `set_use_var` takes them, in the order of their positions.
        source: batches, lists of samples or single samples; or a function that returns such an iterable.
        batch_size: cut the samples into batches of this size; None gives the batches as they were handed in.
        """
        super().__init__()
        self.schema, layout = _declared(schema, type(self).__name__)
        self._places = Positions(self.schema, layout)
        if not callable(source) and not isinstance(source, Iterable):
            raise ConfigError(
                f"{type(self).__name__} needs an iterable of batches or a function that returns one; "
                f"got {type(source).__name__}"
            )
        if isinstance(source, Batch | Mapping):
            raise ConfigError(f"{type(self).__name__} needs an iterable of batches; put this one into a list")
        self.batch_size = 0 if batch_size is None else check_batch_size(batch_size)
        self._source = source
        self._used_up = False
        self._inputs: Inputs | None = None

    def inputs(self) -> Inputs | None:
        """As the first samples were; before them: either text or keys, raw numbers or ready ones."""
        told = getattr(self._source, "inputs", None)  # a source over files knows
        inputs: Inputs = told() if told is not None else self._inputs or Inputs.of_schema("python", self.schema, EITHER)
        return inputs.vouched() if self.same_inputs else inputs

    def _cutter(self) -> Cutter:
        return Cutter(self.batch_size) if self.batch_size else WholeItems()

    def _start(self, threads: int, sought: Mapping[str, Any]) -> Pass:
        if salted() and (where := find_hash(self._source)):
            raise DataError(
                f"the source of {type(self).__name__} calls Python's own hash ({where}): of text it differs in every "
                "process, so trainers would not agree on keys, and a saved model would know none of them; use "
                "sparsefleet.stable_hash, or start Python with PYTHONHASHSEED=0, here and wherever the model is used"
            )
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
        for number, given in enumerate(items):
            item: Any = given
            if isinstance(item, list | tuple) and item:
                columns = self._places.as_columns(item)
                if columns is not None:
                    item = columns
                elif self._places.is_sample(item):
                    item = _located(partial(self._places.as_dict, item), f"item {number}")
            if self._inputs is None:
                self._observe(item)
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

    def _joined(self, samples: Sequence[Any], where: str) -> Batch:
        def make() -> Batch:
            return batch_of_samples([self._places.as_dict(sample) for sample in samples], self.schema)

        return _located(make, where)

    def _observe(self, item: Item) -> None:
        """Learn from the first item whether values are raw or ready."""
        first = item[0] if isinstance(item, list | tuple) and item else item
        if isinstance(first, list | tuple):
            first = self._places.as_dict(first)
        if isinstance(first, Batch | Mapping):
            self._inputs = words_of(first, self.schema)


def _declared(schema: Schema | Sequence[Any], whose: str) -> tuple[Schema, Layout | None]:
    if isinstance(schema, Schema):
        return schema, None
    if isinstance(schema, list | tuple) and schema:
        from sparsefleet.data.dataset_factory import inputs_of

        return inputs_of(schema)
    raise ConfigError(f"{whose} needs a Schema first, or a list of inputs; got {type(schema).__name__}")


def _located(make: Callable[[], T], where: str) -> T:
    """Say which item of the source an error belongs to."""
    try:
        return make()
    except Exception as error:
        error.add_note(f"in {where} of the source")
        raise
