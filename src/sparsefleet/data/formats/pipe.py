"""MultiSlot text from any `pipe_command`: a shell command that reads a file on stdin and prints a line a sample.

Such a file is never cut, and resuming runs the command again and passes over the samples that were consumed.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Self

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.layout import Layout
from sparsefleet.core.schema import Schema
from sparsefleet.data.files import check_file
from sparsefleet.data.formats.base import BadSamples, Chunk, FormatOptions, Head, Unit
from sparsefleet.data.formats.command import CommandSource, hash_seed
from sparsefleet.data.formats.multislot import MultiSlotFormat
from sparsefleet.data.formats.trial import Trial, begin_trial
from sparsefleet.kernels.text_types import MAX_LINE

PIPE_TIMEOUT = 300.0
"""Seconds without output after which a command counts as hung."""


class PipeFormat(MultiSlotFormat):
    cuttable = False
    looks = ""

    def __init__(
        self,
        schema: Schema,
        pipe_command: str,
        *,
        layout: Layout | None = None,
        labelled: bool = True,
        timeout: float = PIPE_TIMEOUT,
        max_line: int = MAX_LINE,
    ) -> None:
        super().__init__(schema, layout=layout, labelled=labelled, max_line=max_line)
        if not pipe_command.strip():
            raise ConfigError("pipe_command is empty; give a shell command such as 'python dataset_generator.py'")
        if not timeout > 0:
            raise ConfigError(f"timeout={timeout} must be above 0 seconds")
        self.pipe_command, self.timeout = pipe_command, timeout

    @classmethod
    def create(cls, schema: Schema, options: FormatOptions) -> Self:
        if not options.pipe_command:
            raise ConfigError("format 'pipe' needs a pipe_command, such as 'python dataset_generator.py'")
        return cls(
            schema,
            options.pipe_command,
            layout=options.layout,
            labelled=options.labelled,
            timeout=PIPE_TIMEOUT if options.timeout is None else options.timeout,
            max_line=options.max_line or MAX_LINE,
        )

    @classmethod
    def guess(cls, head: Head, schema: Schema) -> bool:
        return False

    def inputs(self, files: Sequence[str]) -> Inputs:
        plain = super().inputs(files)
        return replace(plain, format="pipe", pipe_command=self.pipe_command, hash_seed=hash_seed())

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        for file in files:
            check_file(file)
        return [Unit(file) for file in files]

    def read(self, unit: Unit, bad_samples: BadSamples, resume: Mark | None = None) -> Iterator[Chunk]:
        return _CommandChunks(self, unit, bad_samples, resume)


class _CommandChunks(Iterator[Chunk]):
    """The samples of one run of the command.

    `cancel`, called from any thread, ends the command, and thereby a read that waits for it.
    """

    def __init__(self, format: PipeFormat, unit: Unit, bad_samples: BadSamples, resume: Mark | None) -> None:
        self._format, self._unit = format, unit
        self._source: CommandSource | None = None
        self._cancelled = False
        self._trial: Trial | None = None
        self._starting = threading.Lock()
        """Held while a command is started: who cancels meanwhile must not miss it."""
        self._chunks = self._read(bad_samples, resume)

    def _read(self, bad_samples: BadSamples, resume: Mark | None) -> Generator[Chunk]:
        format, unit = self._format, self._unit
        if resume is not None and resume.done:
            return
        check_file(unit.file)
        with self._starting:
            if self._cancelled:
                return
            self._source = CommandSource(format.pipe_command, unit.file, format.timeout)
        try:
            for number, chunk in enumerate(format.samples_of(self._source, unit, bad_samples, resume)):
                if number == 0:
                    with self._starting:
                        self._trial = None if self._cancelled else begin_trial(format, unit.file)
                yield chunk
        except BaseException:
            if self._trial is not None:
                self._trial.cancel()  # nobody waits for its word any more
            raise
        if self._trial is not None:
            self._trial.finish()

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def cancel(self) -> None:
        with self._starting:
            self._cancelled = True
            for running in (self._source, self._trial):
                if running is not None:
                    running.cancel()

    def close(self) -> None:
        self._chunks.close()
        if self._trial is not None:
            self._trial.cancel()
