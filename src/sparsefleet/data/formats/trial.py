"""Trial: does a pipe command make the same keys in every process? Tried once per command, on its first file's head.

The command runs twice on the same lines, in two processes with different seeds of Python's `hash`, beside the reading.
Where their keys differ, a third run with the first one's seed tells why: `hash` (which the fixed seed of commands has
tamed, but a copy of the generator elsewhere would not), or something else (ids in the order of their coming, random
numbers, the clock), which nothing tames. Either is told in the log, with the slot. A trial that fails or takes too long
says nothing: the command's real run tells what is wrong.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from sparsefleet.core.batch import U64, Batch
from sparsefleet.core.errors import DataError
from sparsefleet.data.files import is_gzip, open_file
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.formats.command import CommandSource, hash_seed, wait_for_at_exit

if TYPE_CHECKING:
    from sparsefleet.data.formats.pipe import PipeFormat

logger = logging.getLogger("sparsefleet.data")

LINES = 64
MOST_BYTES = 1 << 18
TIMEOUT = 20.0
FINISH_SECONDS = 10.0
"""How long the end of a file waits for a trial that is still under way."""

CANCEL_SECONDS = 1.0
MOST_SAMPLES = 100_000
"""Of so few lines. A command that prints without end is the real run's business."""

Keys = dict[str, U64]

_tried = set[str]()
_lock = threading.Lock()


def begin_trial(format: PipeFormat, file: str) -> Trial | None:
    """Start the trial of this command; None where it was tried before, by whichever reader of this process."""
    with _lock:
        if format.pipe_command in _tried:
            return None
        _tried.add(format.pipe_command)
    return Trial(format, file)


class Trial:
    def __init__(self, format: PipeFormat, file: str) -> None:
        self._format, self._file = format, file
        self._running: list[CommandSource] = []
        self._stopped = False
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._try, name="pipe_command-trial", daemon=True)
        wait_for_at_exit(self._thread)
        self._thread.start()

    def finish(self) -> None:
        """Wait for its word; not for long."""
        self._thread.join(FINISH_SECONDS)
        self.cancel()

    def cancel(self) -> None:
        with self._guard:
            self._stopped = True
            for source in self._running:
                source.cancel()
                source.cancel()  # the second time is not polite: nobody needs its output
        self._thread.join(CANCEL_SECONDS)

    def _try(self) -> None:
        name = ""
        try:
            head = _head(self._file)
            handle, name = tempfile.mkstemp(prefix="sparsefleet-trial-")
            with os.fdopen(handle, "wb") as file:
                file.write(head)
            seed = hash_seed()
            other = str((int(seed) + 1) % 2**32)
            first, second = self._beside(name, seed, other)
            if (slot := _differing(first, second)) is None:
                return
            self._tell(slot, first, second, _differing(first, self._keys(name, seed)))
        except (DataError, OSError, EOFError) as error:
            logger.debug("the trial of %r told nothing: %s", self._format.pipe_command, error)
        finally:
            if name:
                with contextlib.suppress(OSError):
                    os.unlink(name)

    def _beside(self, name: str, seed: str, other: str) -> tuple[Keys, Keys]:
        """Both at once. The second thread is a daemon as the first is, unlike a pool's: no trial holds up a process
        that ends.
        """
        found: list[Keys] = []
        failed: list[Exception] = []

        def run() -> None:
            try:
                found.append(self._keys(name, other))
            except Exception as error:
                failed.append(error)

        second = threading.Thread(target=run, name="pipe_command-trial-2", daemon=True)
        wait_for_at_exit(second)
        second.start()
        try:
            first = self._keys(name, seed)
        finally:
            second.join()  # each run has a time limit of its own
        if failed:
            raise failed[0]
        return first, found[0]

    def _tell(self, slot: str, first: Keys, second: Keys, again: str | None) -> None:
        command = self._format.pipe_command
        shown = f"{_shown(first[slot])} in one, {_shown(second[slot])} in the other"
        if again is None:
            logger.warning(
                "pipe_command %r makes keys of Python's own hash (slot %s: %s, with another PYTHONHASHSEED): here all "
                "its processes have PYTHONHASHSEED=%s, but whoever makes keys for this model elsewhere must set it "
                "too; stable_hash needs no such care",
                *(command, slot, shown, hash_seed()),
            )
            return
        logger.warning(
            "pipe_command %r makes other keys in every process, of the same lines (slot %s: %s): trainers do not "
            "agree on them, and the model will know none when it is used; make keys of the values alone (stable_hash)",
            *(command, again, shown if again == slot else "two runs differ"),
        )

    def _keys(self, name: str, seed: str) -> Keys:
        with self._guard:
            if self._stopped:
                raise DataError("cancelled")
            source = CommandSource(self._format.pipe_command, name, TIMEOUT, seed)
            self._running.append(source)
        began, batches = time.monotonic(), list[Batch]()
        with contextlib.closing(self._format.samples_of(source, Unit(name), BadSamples("skip"))) as chunks:
            for chunk in chunks:
                batches.append(chunk.batch)
                if time.monotonic() - began > TIMEOUT or sum(map(len, batches)) > MOST_SAMPLES:
                    raise DataError("it takes too long")
        if not batches:
            raise DataError("no samples")
        slots = batches[0].slots
        # Sorted, for a generator may shuffle.
        return {slot: np.sort(np.concatenate([batch.slot(slot)[0] for batch in batches])) for slot in slots}


def _head(file: str) -> bytes:
    packed = is_gzip(file)
    with open_file(file) as raw:
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        data: bytes = stream.read(MOST_BYTES) or b""
    lines = data.splitlines(keepends=True)
    if len(lines) > 1 and len(data) == MOST_BYTES:
        lines.pop()  # cut within
    return b"".join(lines[:LINES])


def _differing(one: Keys, other: Keys) -> str | None:
    """The first slot whose keys differ."""
    return next((slot for slot in one if not np.array_equal(one[slot], other[slot])), None)


def _shown(keys: U64) -> str:
    return ", ".join(map(str, keys[:2].tolist())) + ", …" * (len(keys) > 2)
