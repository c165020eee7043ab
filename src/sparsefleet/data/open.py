"""A reader over files by name: any of the four, over any of the formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.base import Reader
from sparsefleet.data.feeder import Feeder
from sparsefleet.data.file_reader import FileReader
from sparsefleet.data.files import Path, list_files
from sparsefleet.data.formats import format_for
from sparsefleet.data.formats.base import BadSamples, Chunk, Format
from sparsefleet.data.in_memory import InMemoryDataset
from sparsefleet.data.leased import LeasedDataset
from sparsefleet.data.py_reader import PyReader
from sparsefleet.data.queue_dataset import QueueDataset
from sparsefleet.data.ray_dataset import RayDataset, is_ray_dataset, ray_reader
from sparsefleet.data.split import parse_unit, plan_units


def open_reader(
    paths: Path | Sequence[Path] | RayDataset,
    schema: Schema,
    *,
    kind: str = "queue",
    format_name: str = "auto",
    pipe_command: str | None = None,
    batch_size: int = 1000,
    on_bad_row: str = "error",
    threads: int = 1,
    labelled: bool = True,
    shuffle_seed: int | None = None,
    load: bool = True,
    same_inputs: bool = False,
    leased: bool = False,
) -> Reader:
    """`kind`: queue streams, memory loads (and shuffles, given a seed), pyreader reads ahead, feeder does not.

    same_inputs: you vouch that samples read so have the keys and numbers of those that the model was trained on, though
    these were read otherwise: raw lines with the schema instead of a pipe_command that does the same, say.

    load=False leaves loading to the caller: all settings are checked, and no sample is read.

    leased: all trainers of a job are given the same files, and take pieces of them as they need them, in `fit`; for
    kind queue (`data/leased.py`).

    In the place of paths, a `ray.data.Dataset` is read (`data/ray_dataset.py`).
    """
    if kind not in _MAKERS:
        raise ConfigError(f"reader={kind!r} is not a reader; choose {', '.join(_MAKERS)}")
    if shuffle_seed is not None and kind != "memory":
        raise ConfigError(f"only the memory reader shuffles; reader={kind!r} streams samples in their order")
    if leased and kind != "queue":
        raise ConfigError(
            f"leased=True hands out files as they are streamed: reader={kind!r} has its own share; use queue"
        )
    if is_ray_dataset(paths):
        if leased:
            raise ConfigError("leased=True is for files: share a Ray dataset out with its streaming_split")
        if format_name != "auto" or pipe_command is not None:
            raise ConfigError("a Ray dataset has columns, no format and no pipe_command; leave them out")
        read = ray_reader(
            paths, schema, kind=kind, batch_size=batch_size, on_bad_row=on_bad_row, threads=threads, labelled=labelled
        )
        read.same_inputs = same_inputs
        return read
    files = list_files(cast(Path | Sequence[Path], paths))
    whole = [parse_unit(name).file for name in files]
    format = format_for(format_name, schema, files=whole, labelled=labelled, pipe_command=pipe_command)
    reader = (_leased if leased else _MAKERS[kind])(files, format, batch_size, on_bad_row, threads)
    if isinstance(reader, FileReader | Feeder):
        reader.same_inputs = same_inputs
    if load and isinstance(reader, InMemoryDataset):
        reader.load_into_memory()
        if shuffle_seed is not None:
            reader.local_shuffle(shuffle_seed)
    return reader


class _Samples:
    """The samples of files as an ordinary Python iterable of batches: what PyReader and Feeder take."""

    def __init__(self, files: Sequence[str], format: Format, on_bad_row: str) -> None:
        self._files, self._format = files, format
        self._bad_samples = BadSamples(on_bad_row)

    def __call__(self) -> Iterator[Batch]:
        self._bad_samples = BadSamples(self._bad_samples.policy)  # counted anew in each epoch, as the other readers do
        return _Pass(self._files, self._format, self._bad_samples)

    def inputs(self) -> Inputs:
        return self._format.inputs([parse_unit(name).file for name in self._files])

    def skipped(self) -> dict[str, int]:
        return dict(self._bad_samples.counts)


class _Pass(Iterator[Batch]):
    """One run over the files. `cancel` may be called from any thread."""

    def __init__(self, files: Sequence[str], format: Format, bad_samples: BadSamples) -> None:
        self._format, self._bad_samples = format, bad_samples
        self._units = iter(plan_units(files, 1, format.plan))
        self._chunks: Iterator[Chunk] = iter(())

    def __next__(self) -> Batch:
        while True:
            for chunk in self._chunks:
                return chunk.batch
            self._chunks = self._format.read(next(self._units), self._bad_samples)

    def cancel(self) -> None:
        cancel = getattr(self._chunks, "cancel", None)
        if cancel is not None:
            cancel()

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()


def _leased(files: list[str], format: Format, size: int, bad: str, threads: int) -> Reader:
    return LeasedDataset(files, format, size, threads=threads, on_bad_row=bad)


_Maker = Callable[[list[str], Format, int, str, int], Reader]
_MAKERS: Mapping[str, _Maker] = {
    "queue": lambda files, format, size, bad, threads: QueueDataset(
        files, format, size, threads=threads, on_bad_row=bad
    ),
    "memory": lambda files, format, size, bad, threads: InMemoryDataset(
        files, format, size, threads=threads, on_bad_row=bad
    ),
    "pyreader": lambda files, format, size, bad, threads: PyReader(format.schema, _Samples(files, format, bad), size),
    "feeder": lambda files, format, size, bad, threads: Feeder(format.schema, _Samples(files, format, bad), size),
}
