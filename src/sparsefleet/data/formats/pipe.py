"""MultiSlot text from any `pipe_command`: a shell command that reads a file on stdin and prints a line a row.

Such a file is never cut, and resuming runs the command again and passes over the rows that were consumed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.data.files import check_file
from sparsefleet.data.formats.base import BadRows, Chunk, Unit
from sparsefleet.data.formats.command import CommandSource
from sparsefleet.data.formats.multislot import Layout, MultiSlotFormat
from sparsefleet.kernels.rowtypes import MAX_LINE

PIPE_TIMEOUT = 300.0
"""Seconds without output after which a command counts as hung."""


class PipeFormat(MultiSlotFormat):
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

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        for file in files:
            check_file(file)
        return [Unit(file) for file in files]

    def read(self, unit: Unit, bad_rows: BadRows, resume: Mark | None = None) -> Iterator[Chunk]:
        return _CommandChunks(self, unit, bad_rows, resume)


class _CommandChunks(Iterator[Chunk]):
    """The rows of one run of the command. `cancel`, from any thread, ends the command and with it a read that waits."""

    def __init__(self, format: PipeFormat, unit: Unit, bad_rows: BadRows, resume: Mark | None) -> None:
        self._format, self._unit = format, unit
        self._source: CommandSource | None = None
        self._cancelled = False
        self._chunks = self._read(bad_rows, resume)

    def _read(self, bad_rows: BadRows, resume: Mark | None) -> Generator[Chunk]:
        format, unit = self._format, self._unit
        if self._cancelled or (resume is not None and resume.done):
            return
        check_file(unit.file)
        self._source = CommandSource(format.pipe_command, unit.file, format.timeout)
        yield from format.rows_of(self._source, unit, bad_rows, resume)

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def cancel(self) -> None:
        self._cancelled = True
        if self._source is not None:
            self._source.cancel()

    def close(self) -> None:
        self._chunks.close()
