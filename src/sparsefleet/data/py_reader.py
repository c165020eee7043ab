"""PyReader: a Python generator, read ahead in the background.

```
def clicks():
    for line in open("clicks.txt"):
        user, ad, click = line.split()
        yield {"label": int(click), "user": [user], "ad": [ad]}

reader = PyReader(schema, clicks, batch_size=1000)
```

The generator yields samples (dicts, or values in the order of the inputs, see `data/positional.py`), lists of samples,
dicts of columns or Batches; see `data/python_samples.py`. As in Fluid, inputs may be declared, and the generator come
later:

```
reader = PyReader(feed_list=[("dense_input", 13), "C1", "C2", "label"], capacity=64)
reader.decorate_sample_generator(samples, batch_size=1000)      # samples() yields ([0.1, …], [17], [4], [1])
```

It runs in one thread at a time, however many streams draw from it. To go on from a
position, it is run again and as many samples are left out: it must give the same samples each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.data.batching import Cutter, check_batch_size
from sparsefleet.data.feeder import Feeder, Item
from sparsefleet.data.pass_reader import check_threads
from sparsefleet.data.readahead import check_capacity


class PyReader(Feeder):
    _drop_last = False

    def __init__(
        self,
        schema: Schema | Sequence[Any] | None = None,
        generator: Callable[[], Iterable[Item]] | int | None = None,
        batch_size: int | None = 1000,
        *,
        capacity: int = 16,
        threads: int = 1,
        feed_list: Sequence[Any] | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        """
        schema: what the samples mean: a Schema, or inputs as `set_use_var` takes them, in the order of their positions.
        generator: a function without arguments that returns a fresh iterable; every epoch calls it once. A number in
        its place is Fluid's second position, the capacity.
        batch_size: samples in a batch; None gives the batches as the generator yields them.
        capacity: batches that each stream's reading thread keeps ready.
        threads: streams of an epoch that is not told how many.
        feed_list: Fluid's word for inputs in the place of a schema.
        use_double_buffer, return_list: Fluid's; they may stay, and change nothing: batches are always read ahead, and
        go to the trainer. iterable: Fluid's; False, which belongs to `start()` and `reset()`, is refused.
        """
        if isinstance(generator, bool) or isinstance(batch_size, bool):
            raise ConfigError(
                "PyReader: the third position is the batch size here, and the second the generator or capacity; give "
                "Fluid's settings by name: PyReader(feed_list=inputs, capacity=64, use_double_buffer=True)"
            )
        if isinstance(generator, int):
            capacity, generator = generator, None
        if not iterable:
            raise ConfigError(
                "PyReader(iterable=False): there is no start() and no reset() here; leave it out, and give the reader "
                "to train_from_dataset or infer_from_dataset in the place of a dataset"
            )
        declared = schema if feed_list is None else list(feed_list)
        if declared is None or (schema is not None and feed_list is not None):
            raise ConfigError("PyReader needs a schema, or the inputs (feed_list=[…]): one of the two")
        super().__init__(declared, generator or _no_generator, batch_size)
        if generator is not None:
            self._take(generator, batch_size)
        self.read_ahead = check_capacity(capacity)
        self.threads = check_threads(threads)

    # Fluid's names: what the generator yields.

    def decorate_sample_generator(
        self,
        sample_generator: Callable[[], Iterable[Item]],
        batch_size: int,
        drop_last: bool = True,
        places: Any = None,
    ) -> None:
        """Single samples, cut into batches of this size. `places` means nothing here: there are only CPUs."""
        self._take(sample_generator, check_batch_size(batch_size))
        self._drop_last = drop_last

    def decorate_sample_list_generator(self, reader: Callable[[], Iterable[Item]], places: Any = None) -> None:
        """Lists of samples, each a batch."""
        self._take(reader, None)

    def decorate_batch_generator(self, reader: Callable[[], Iterable[Item]], places: Any = None) -> None:
        """Batches: a tuple of arrays [samples, values], one for each input, or a dict of columns."""
        self._take(reader, None)

    def _take(self, generator: Callable[[], Iterable[Item]], batch_size: int | None) -> None:
        if not callable(generator):
            raise ConfigError(
                f"PyReader needs a function that returns a fresh generator each time, such as `clicks`, "
                f"not `clicks()`; got {type(generator).__name__}"
            )
        if self._pass is not None:
            raise ConfigError("the first epoch has started with another generator; make a PyReader for each")
        self._source, self._drop_last = generator, False
        self.batch_size = 0 if batch_size is None else check_batch_size(batch_size)

    def _cutter(self) -> Cutter:
        return Cutter(self.batch_size, drop_last=self._drop_last) if self.batch_size else super()._cutter()


def _no_generator() -> Iterable[Item]:
    raise ConfigError(
        "PyReader has no generator yet: give it one, or call decorate_sample_generator, decorate_sample_list_generator "
        "or decorate_batch_generator"
    )
