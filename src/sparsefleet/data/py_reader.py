"""PyReader: a Python generator, read ahead in the background.

```
def clicks():
    for line in open("clicks.txt"):
        user, ad, click = line.split()
        yield {"label": int(click), "user": [user], "ad": [ad]}

reader = PyReader(schema, clicks, batch_size=1000)
```

The generator yields samples (dicts), lists of samples, dicts of columns or Batches; see
`data/python_samples.py`. It runs in one thread at a time, however many streams draw from it. To go on from a
position, it is run again and as many samples are left out: it must give the same samples each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.data.feeder import Feeder, Item
from sparsefleet.data.pass_reader import check_threads
from sparsefleet.data.readahead import check_capacity


class PyReader(Feeder):
    def __init__(
        self,
        schema: Schema,
        generator: Callable[[], Iterable[Item]],
        batch_size: int = 1000,
        *,
        capacity: int = 16,
        threads: int = 1,
    ) -> None:
        """
        schema: what the samples mean.
        generator: a function without arguments that returns a fresh iterable; every epoch calls it once.
        batch_size: samples in a batch.
        capacity: batches that each stream's reading thread keeps ready.
        threads: streams of an epoch that is not told how many.
        """
        if not callable(generator):
            raise ConfigError(
                f"PyReader needs a function that returns a fresh generator each time, such as `clicks`, "
                f"not `clicks()`; got {type(generator).__name__}"
            )
        super().__init__(schema, generator, batch_size)
        self.read_ahead = check_capacity(capacity)
        self.threads = check_threads(threads)
