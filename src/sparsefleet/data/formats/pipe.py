"""MultiSlot text from any `pipe_command`: a shell command that reads a file on stdin and prints a line a row.

Such a file is never cut, and resuming runs the command again and passes over the rows that were consumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
            raise ConfigError(
                "pipe_command is empty; give a shell command such as 'python dataset_generator.py'"
            )
        if not timeout > 0:
            raise ConfigError(f"timeout={timeout} must be above 0 seconds")
        self.pipe_command, self.timeout = pipe_command, timeout

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        for file in files:
            check_file(file)
        return [Unit(file) for file in files]

    def read(self, unit: Unit, bad_rows: BadRows, resume: Mark | None = None) -> Iterator[Chunk]:
        if resume is not None and resume.done:
            return iter(())
        check_file(unit.file)
        source = CommandSource(self.pipe_command, unit.file, self.timeout)
        return _PipedRows(self.rows_of(source, unit, bad_rows, resume), source)


class _PipedRows(Iterator[Chunk]):
    """Rows of a command that another thread may cancel: readers do so when they are closed early."""

    def __init__(self, rows: Iterator[Chunk], source: CommandSource) -> None:
        self._rows, self._source = rows, source

    def __next__(self) -> Chunk:
        return next(self._rows)

    def cancel(self) -> None:
        self._source.cancel()

    def close(self) -> None:
        # Not through the generator alone: one that was never started would not close its source.
        self._source.close()
