"""InMemoryDataset: loads its files once, shuffles samples, and gives epochs from memory.

```
reader = InMemoryDataset(files, format, batch_size=1000, threads=2)
reader.load_into_memory()
reader.local_shuffle(seed=7)            # each epoch has its own order, given by (seed, epoch number)
with reader.epoch(threads=2) as epoch: ...
reader.release_memory()
```

Shuffling moves no samples: it draws a permutation, and each stream's reading thread gathers the samples of some
batches at a time. What is in memory, and its order, do not depend on the number of threads.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import Batch, Mark
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.notes import note
from sparsefleet.data.file_reader import PIECES_PER_THREAD, FileReader
from sparsefleet.data.formats.base import CHUNK_SAMPLES, BadSamples, Chunk, Unit
from sparsefleet.data.loading import Loading
from sparsefleet.data.pass_reader import check_threads, sum_counts
from sparsefleet.data.passes import Pass, check_position
from sparsefleet.data.sample_blocks import BlockBuilder, SampleBlocks, join_small
from sparsefleet.data.sample_bytes import Bytes, from_bytes, to_bytes
from sparsefleet.data.units import UnitPass, check_same_files, units_of

logger = logging.getLogger("sparsefleet.data")

Permutation = npt.NDArray[np.uint32] | npt.NDArray[np.int64]


class Peers(Protocol):
    """The trainers of a job, as `sparsefleet.fleet` knows them."""

    def worker_index(self) -> int: ...

    def worker_num(self) -> int: ...

    def exchange(self, letters: Iterable[tuple[int, Bytes]], /) -> dict[int, list[Bytes]]: ...

    @property
    def util(self) -> Any:
        """Whose `all_reduce` sums a number over all trainers."""


def _check_peers(call: str, fleet: Peers) -> None:
    if not all(hasattr(fleet, name) for name in ("worker_index", "worker_num", "exchange")):
        raise ConfigError(f"{call}(fleet={fleet!r}): give sparsefleet.fleet, after fleet.init_worker()")


class InMemoryDataset(FileReader):
    """Takes the settings of FileReader; `threads` also says how many threads load."""

    _samples: SampleBlocks | None = None
    _loading: Loading | None = None
    _files_loaded: list[list[Any]]
    _load_bad_samples: tuple[BadSamples, ...] = ()
    _seed: int | None = None
    _order: Permutation | None = None
    _next_epoch: int = 0
    _before_slots_shuffle: SampleBlocks | None = None
    _slots_shuffled: list[Any] | None = None
    """Names and seed of the last `slots_shuffle`."""
    _fea_eval: bool | None = None

    # Loading

    def load_into_memory(self) -> None:
        """Read all files, with `threads` threads; what was in memory before is released first."""
        self.preload_into_memory()
        self.wait_preload_done()

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Start to load in the background, while the model is built or another dataset trains.

        thread_num: threads that load; None: `threads`, as many as train.
        """
        threads = self.threads if thread_num is None else check_threads(thread_num)
        if self._loading is not None:
            raise ConfigError("files are being loaded already; call wait_preload_done() before loading again")
        self.release_memory()
        files, units = self._plan_files(threads)
        self._files_loaded = files
        self._loading = Loading(self.format, units, threads, self.on_bad_row)
        self._load_bad_samples = tuple(self._loading.bad_samples)

    def wait_preload_done(self) -> None:
        """Return when the samples are in memory; an error of a loading thread comes out here."""
        if self._loading is None:
            raise ConfigError("nothing is being loaded; call preload_into_memory() first")
        loading, self._loading = self._loading, None
        blocks = join_small(loading.wait(), self.schema.slot_names)
        if not blocks:
            raise DataError(self._nothing())
        self._samples = SampleBlocks(self.schema.slot_names, len(self.schema.dense), blocks)

    def release_memory(self) -> None:
        """Let go of all samples, or stop a load that is under way."""
        if self._under_way:
            raise ConfigError("release_memory while an epoch is open: leave its `with` block first")
        if self._loading is not None:
            self._loading.stop()
            self._loading = None
        self._samples = self._order = self._pass = None
        self._before_slots_shuffle = self._slots_shuffled = None
        self._streams, self._load_bad_samples = (), ()

    def get_memory_data_size(self, fleet: Peers | None = None) -> int:
        """Samples in memory; 0 when nothing is loaded. With a fleet, those of all trainers, which all call it."""
        own = 0 if self._samples is None else len(self._samples)
        if fleet is None:
            return own
        _check_peers("get_memory_data_size", fleet)
        return own if fleet.worker_num() == 1 else int(fleet.util.all_reduce(own))

    @property
    def memory_bytes(self) -> int:
        """Bytes that the samples, and the order of the epoch under way, take."""
        order = 0 if self._order is None else self._order.nbytes
        kept = (self._samples, self._before_slots_shuffle)
        return order + sum(samples.nbytes for samples in kept if samples is not None)

    # Shuffling

    def local_shuffle(self, seed: int = 0) -> None:
        """From the next epoch on, give the samples in an order drawn from (seed, number of the epoch)."""
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"local_shuffle(seed={seed!r}): the seed must be a whole number, 0 or above")
        self._loaded()
        self._seed = seed

    def global_shuffle(self, fleet: Peers | None = None, thread_num: int | None = None, *, seed: int = 0) -> None:
        """Shuffle across all trainers of a fleet, which all call it; without one, the same as `local_shuffle`.

        Every sample goes to one trainer, at random; afterwards all have the same number of samples, give or take one
        per trainer. All samples cross the network; meanwhile a trainer holds its own about twice.

        thread_num: Fluid's; it may stay, and changes nothing.
        """
        if fleet is not None:
            _check_peers("global_shuffle", fleet)
        if thread_num is not None:
            note(
                "global_shuffle(fleet, thread_num) needs no thread_num: samples are sent and received by a thread "
                "each; what the order is drawn from is seed=…"
            )
        self.local_shuffle(seed)  # checks the seed, and gives every epoch an order of its own
        if fleet is None or fleet.worker_num() == 1:
            return
        samples, me, trainers = self._loaded(), fleet.worker_index(), fleet.worker_num()
        numbers = np.random.default_rng([seed, me]).permutation(len(samples))
        # Where the samples do not go up evenly, each trainer gives the rest to others than its neighbours do.
        parts = {(me + turn) % trainers: numbers[turn::trainers] for turn in range(trainers)}

        def letters() -> Iterator[tuple[int, Bytes]]:
            for to, chosen in parts.items():
                if to != me:
                    for batch in samples.export(chosen):
                        yield to, to_bytes(batch)

        received = fleet.exchange(letters())

        def batches() -> Iterator[Batch]:
            # In the order of the trainers, so that the same seed gives the same samples in the same order.
            for sender in range(trainers):
                if sender == me:
                    yield from samples.export(parts[me])
                else:
                    for letter in received.pop(sender):
                        yield from_bytes(letter, samples.slots, samples.dense_width)

        self.import_rows(batches())

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Fluid's switch for `slots_shuffle`. The number of candidates means nothing here: all samples are."""
        if isinstance(record_candidate_size, bool) or not isinstance(record_candidate_size, int):
            raise ConfigError(f"set_fea_eval({record_candidate_size!r}): must be a whole number of samples, 1 or above")
        if record_candidate_size < 1 or not isinstance(fea_eval, bool):
            raise ConfigError(
                f"set_fea_eval({record_candidate_size!r}, {fea_eval!r}): give 1 or above, and True or False"
            )
        self._fea_eval = fea_eval
        if fea_eval:
            logger.info("set_fea_eval(%d): slots_shuffle permutes all samples in memory", record_candidate_size)

    def slots_shuffle(self, slots: Sequence[str], seed: int = 0) -> None:
        """Give each sample another one's values of these slots: how much worse a model then scores tells their worth.

        The slots of one call move together. Each call starts from the samples as they were loaded; an empty list brings
        these back. In a job of several trainers, samples stay with their trainer (`global_shuffle` first mixes them).
        """
        if self._fea_eval is False:
            raise ConfigError("slots_shuffle after set_fea_eval(…, False): leave that out, or say True")
        if isinstance(slots, str) or not all(isinstance(name, str) for name in slots):
            raise ConfigError(f"slots_shuffle({slots!r:.80}): give a list of slots' names")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"slots_shuffle(seed={seed!r}): must be a whole number, 0 or above")
        names = list(dict.fromkeys(slots))
        if self._under_way:
            raise ConfigError("slots_shuffle while an epoch is open: leave its `with` block first")
        samples = self._loaded() if self._before_slots_shuffle is None else self._before_slots_shuffle
        unknown = [name for name in names if name not in samples.slots]
        if unknown:
            raise ConfigError(
                f"slots_shuffle: there is no slot {', '.join(unknown)}; there are {', '.join(samples.slots)}"
            )
        self._before_slots_shuffle = samples if names else None
        self._slots_shuffled = [names, seed] if names else None
        self._samples = samples.with_slots_shuffled(names, seed) if names else samples

    def get_shuffle_data_size(self, fleet: Peers | None = None) -> int:
        """Samples in memory after a shuffle: with one trainer, the same number as before. With a fleet, those of all
        trainers, which all call it."""
        return self.get_memory_data_size(fleet)

    def export_rows(self, numbers: npt.NDArray[np.int64] | None = None) -> Iterator[Batch]:
        """Samples out of memory as batches: all, or those with the given numbers, in that order."""
        return self._loaded().export(numbers)

    def import_rows(self, batches: Iterable[Batch]) -> None:
        """Put these samples in the place of what is in memory."""
        if self._under_way:
            raise ConfigError("import_rows while an epoch is open: leave its `with` block first")
        old = self._loaded()
        builder = BlockBuilder(old.slots, old.dense_width)
        for batch in batches:
            builder.add(batch)
        self._samples = SampleBlocks(old.slots, old.dense_width, join_small(builder.finish(), old.slots))
        self._order = self._before_slots_shuffle = self._slots_shuffled = None

    # Epochs

    def set_epoch(self, number: int) -> None:
        """Say which epoch comes next (the first is 0): a resumed run then gets the order that it would have
        got.
        """
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ConfigError(f"set_epoch({number!r}): must be a whole number, 0 or above")
        self._next_epoch = number

    def skipped(self) -> dict[str, int]:
        """Bad samples passed over while loading, per reason."""
        return sum_counts(self._load_bad_samples)

    def _start(self, threads: int, sought: Mapping[str, Any]) -> Pass:
        samples = self._loaded()
        if sought:
            self._check(sought)
            self._next_epoch = sought["epoch"]
        number = self._next_epoch
        order = self._order = None if self._seed is None else draw_order(len(samples), self._seed, number)
        check = 0 if order is None else zlib.crc32(order.tobytes())
        if sought and sought["order"] != check:
            raise ConfigError(
                "the order drawn for this epoch is not the one that the position was taken with "
                "(another release of numpy?); begin the epoch anew (seek({}), or without --resume)"
            )
        if sought:
            units = units_of(sought)
        else:
            units = _pieces(len(samples), 1 if threads == 1 else threads * PIECES_PER_THREAD, self.batch_size)
        self._next_epoch = number + 1
        identity = {
            "files": self._files_loaded,
            "rows": len(samples),
            "seed": self._seed,
            "epoch": number,
            "order": check,
        }
        if self._slots_shuffled is not None:
            identity["slots_shuffled"] = self._slots_shuffled
        at_a_time = max(self.batch_size, CHUNK_SAMPLES // self.batch_size * self.batch_size)

        def read(unit: Unit, bad_samples: BadSamples, resume: Mark | None) -> Iterator[Chunk]:
            stop = len(samples) if unit.stop is None else unit.stop
            for at in range(unit.start + (0 if resume is None else resume.samples), stop, at_a_time):
                end = min(at + at_a_time, stop)
                batch = samples.gather(np.arange(at, end) if order is None else order[at:end])
                yield Chunk(batch, np.arange(at, end) - (unit.start - 1))

        lengths = [unit.stop - unit.start for unit in units if unit.stop is not None]
        return UnitPass("memory", identity, units, read, lengths=lengths, sought=sought, nothing=self._nothing)

    def _check(self, position: Mapping[str, Any]) -> None:
        samples = self._loaded()
        check_position(position, "memory")
        check_same_files(position, self._files_loaded)
        for name, here, meaning in (
            ("rows", len(samples), "samples in memory"),
            ("seed", self._seed, "local_shuffle with the seed"),
            ("slots_shuffled", self._slots_shuffled, "slots_shuffle of"),
        ):
            if position.get(name) != here:
                raise ConfigError(
                    f"the position was taken with {meaning} {position.get(name)}, here it is {here}; "
                    f"load and shuffle as then, or begin the epoch anew (seek({{}}), or without --resume)"
                )
        number, check = position.get("epoch"), position.get("order")
        if not isinstance(number, int) or number < 0 or not isinstance(check, int):
            raise ConfigError("reader position: its epoch or order is missing or damaged")
        units = units_of(position)
        if any(unit.stop is None or unit.stop > len(samples) for unit in units):
            raise ConfigError(f"reader position: its units go beyond the {len(samples)} samples in memory")
        UnitPass("memory", {}, units, lambda *_: iter(()), lengths=(), sought=position, nothing=str)

    def _loaded(self) -> SampleBlocks:
        if self._samples is None:
            todo = "wait_preload_done()" if self._loading is not None else "load_into_memory()"
            raise ConfigError(f"InMemoryDataset has no samples in memory yet; call {todo} first")
        return self._samples

    def _before_first_use(self, setter: str) -> None:
        if self._samples is not None or self._loading is not None:
            raise ConfigError(f"{setter} after loading has begun; call release_memory() first, then load again")
        super()._before_first_use(setter)


def draw_order(samples: int, seed: int, epoch: int) -> Permutation:
    """The order of samples in an epoch: a function of its arguments alone."""
    order: Permutation = np.arange(samples, dtype=np.uint32) if samples < 2**32 else np.arange(samples, dtype=np.int64)
    np.random.default_rng([seed, epoch]).shuffle(order)
    return order


def _pieces(samples: int, pieces: int, batch_size: int) -> list[Unit]:
    """Ranges of samples for the streams to claim, in whole batches."""
    batches = -(-samples // batch_size)
    size = max(1, -(-batches // pieces)) * batch_size
    return [Unit("", start, min(start + size, samples)) for start in range(0, samples, size)]
