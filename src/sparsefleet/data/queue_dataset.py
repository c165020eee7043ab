"""QueueDataset: streams files. Each training thread has a reading thread of its own; memory stays flat.

```
reader = QueueDataset(files, format, batch_size=1000)
with reader.epoch(threads=2) as epoch:
    for batch in epoch.streams[0]: ...          # each stream in its training thread
        reader.consumed(batch)
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from sparsefleet.core.errors import ConfigError
from sparsefleet.data.file_reader import FileReader, unit_lengths
from sparsefleet.data.passes import Pass, check_position
from sparsefleet.data.units import UnitPass, check_same_files, units_of


class QueueDataset(FileReader):
    """Units are handed to the reading threads as these become free; with one thread the order is that of the
    files.
    """

    def local_shuffle(self, *arguments: Any, **settings: Any) -> NoReturn:
        """Only samples in memory can be shuffled."""
        raise ConfigError(
            "local_shuffle and global_shuffle are for samples in memory, and QueueDataset streams its own: use "
            'create_dataset("InMemoryDataset"), load_into_memory() and local_shuffle(seed)'
        )

    global_shuffle = local_shuffle

    def _start(self, threads: int, sought: Mapping[str, Any]) -> Pass:
        if sought:
            self._check(sought)  # files may have changed since seek
            files, units = self._sized_files(), units_of(sought)
        else:
            files, units = self._plan_files(threads)
        return UnitPass(
            "files",
            {"files": files},
            units,
            self.format.read,
            lengths=unit_lengths(files, units),
            sought=sought,
            nothing=self._nothing,
        )

    def _check(self, position: Mapping[str, Any]) -> None:
        check_position(position, "files")
        check_same_files(position, self._sized_files())
        UnitPass("files", {}, units_of(position), self.format.read, lengths=(), sought=position, nothing=str)
