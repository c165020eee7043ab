"""From bytes to chunks: the loop that every text format shares, block by block, in bounded memory."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import I64, Batch, Mark
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.memory import keep_freed_memory
from sparsefleet.core.schema import Schema
from sparsefleet.data.files import check_file, empty_file, is_packed
from sparsefleet.data.formats.base import BadSamples, Chunk, Format, Unit
from sparsefleet.data.formats.source import ByteSource, PlainSource, packed_source
from sparsefleet.kernels import text as kernels
from sparsefleet.kernels.record_types import RecordColumns
from sparsefleet.kernels.text_types import MAX_LINE, Block, Columns, Parsed, Reason

BLOCK_BYTES = 1 << 19
"""Bytes read at a time: they should still be in cache when they are parsed."""
SHOWN_BYTES = 60
"""How much of an offending value an error shows."""
NO_STOP = sys.maxsize

T = TypeVar("T", bound=np.generic)


class SampleParser(Protocol):
    def parse(self, block: Block, out: Columns) -> Parsed: ...


class TextFormat(Format):
    """One sample a line. Plain files can be cut into byte ranges and resumed at a byte; packed files can not."""

    cuttable = True

    def __init__(self, schema: Schema, max_line: int = MAX_LINE) -> None:
        if not 1 <= max_line <= 1 << 30:
            raise ConfigError(f"max_line={max_line} must be 1 to {1 << 30} bytes")
        if not schema.slots:
            raise ConfigError("the schema has no sparse slots; a sample needs at least one")
        self.schema, self.max_line = schema, max_line

    @abstractmethod
    def parser(self) -> SampleParser:
        """A new parser, for one thread."""

    def parser_of(self, file: str) -> SampleParser:
        """The same, for this file, where files differ: in the order of their columns, say."""
        return self.parser()

    def preamble(self, file: str) -> tuple[int, int]:
        """Bytes and lines at the beginning of a file that hold no samples: a mark of its encoding, a header."""
        return 0, 0

    @abstractmethod
    def columns(self) -> Columns:
        """New arrays for one chunk, with room for any one sample."""

    @abstractmethod
    def explain(self, reason: Reason, done: Parsed) -> str:
        """The reason, with what is allowed."""

    def explain_in(self, file: str, reason: Reason, done: Parsed) -> str:
        """The same, for this file."""
        return self.explain(reason, done)

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        sizes = [check_file(file) for file in files]
        if len(files) >= pieces:
            return [Unit(file) for file in files]
        cuttable = [0 if is_packed(file) else size for file, size in zip(files, sizes, strict=True)]
        total = sum(cuttable)
        units: list[Unit] = []
        for file, size in zip(files, cuttable, strict=True):
            parts = max(1, min(size, -(-pieces * size // total))) if total else 1
            cuts: list[int | None] = [size * part // parts for part in range(parts)]
            for start, stop in zip(cuts, [*cuts[1:], None], strict=True):
                assert start is not None
                units.append(Unit(file, start, stop))
        return units

    def read(self, unit: Unit, bad_samples: BadSamples, resume: Mark | None = None) -> Iterator[Chunk]:
        if resume is not None and resume.done:
            return
        size = check_file(unit.file)
        source = packed_source(unit.file)
        if source is not None:
            pass
        elif resume is not None and resume.offset >= 0:
            check_resume(unit, resume, size)
            source = PlainSource(unit.file, resume.offset, unit.start)
        else:
            source = PlainSource(unit.file, *self._first_byte(unit))
        yield from self.samples_of(source, unit, bad_samples, resume)

    def samples_of(
        self, source: ByteSource, unit: Unit, bad_samples: BadSamples, resume: Mark | None = None
    ) -> Generator[Chunk]:
        """The samples of an open source, from `resume` on; closes the source."""
        try:
            yield from self._chunks(source, unit, bad_samples, resume)
        finally:
            source.close()

    def read_raw(self, source: ByteSource, bad_samples: BadSamples, file: str) -> Iterator[Chunk]:
        """All samples of an open file with `Chunk.text` and `Chunk.numbers`; closes the source.

        Whoever works on raw lines takes them from here: there is one opinion on what a good line is.
        """
        try:
            yield from self._chunks(source, Unit(file), bad_samples, None, raw=True)
        finally:
            source.close()

    def read_raw_unit(self, unit: Unit, bad_samples: BadSamples) -> Iterator[Chunk]:
        """The same of a part of a file."""
        source = packed_source(unit.file) or PlainSource(unit.file, *self._first_byte(unit))
        try:
            yield from self._chunks(source, unit, bad_samples, None, raw=True)
        finally:
            source.close()

    def _first_byte(self, unit: Unit) -> tuple[int, int]:
        # One byte early: if that is a line feed, the unit's first byte starts a sample.
        return (unit.start - 1 if unit.start else self.preamble(unit.file)[0]), unit.start

    def _chunks(
        self, source: ByteSource, unit: Unit, bad_samples: BadSamples, resume: Mark | None, raw: bool = False
    ) -> Iterator[Chunk]:
        at_offset = source.seekable and resume is not None and resume.offset >= 0
        lines = resume.samples if resume is not None and at_offset else 0
        blocks = _Blocks(source, max(BLOCK_BYTES, 2 * self.max_line + 64))
        blocks.open = unit.start > 0 and not at_offset
        stop = NO_STOP if unit.stop is None else unit.stop
        if source.offset == 0 and unit.start == 0:
            blocks.pass_over(self.preamble(unit.file)[0])
        if resume is not None and not at_offset:
            lines = blocks.skip(resume.samples, unit.file)
        keep_freed_memory()
        parser, out = self.parser_of(unit.file), self._new_columns(raw, unit.file)
        text: list[bytes] = []
        failure: DataError | None = None
        while True:
            done = parser.parse(blocks.block(stop, bad_samples.policy == "skip", lines), out)
            if raw:
                text += blocks.lines(out.ends[len(text) : done.filled], done.consumed)
            blocks.take(done)
            lines += done.lines
            for reason in np.flatnonzero(out.counts).tolist():
                bad_samples.add(Reason(reason).text, int(out.counts[reason]))
            out.counts[:] = 0
            if done.reason != Reason.FINE:
                failure = self._bad_sample(source, unit, blocks, done, lines)
            elif done.full or done.filled == len(out.labels):
                yield self._chunk(out, source.seekable, text)
                out, text = self._new_columns(raw, unit.file), []
                continue
            elif blocks.final or blocks.base + blocks.begin >= stop:
                break
            else:
                try:
                    blocks.fill()
                except DataError as error:
                    failure = error
            if failure is not None:
                # Give the good samples before the bad one first: the error is raised where the bad sample stands.
                if out.filled:
                    yield self._chunk(out, source.seekable, text)
                raise failure
        if out.filled:
            yield self._chunk(out, source.seekable, text)
        if blocks.final and blocks.base + blocks.size == 0:
            raise empty_file(unit.file)

    def columns_of(self, file: str) -> Columns:
        """The same, for this file, where files differ in what they have."""
        return self.columns()

    def _new_columns(self, raw: bool, file: str) -> Columns:
        out = self.columns_of(file)
        if raw:
            out.numbers = np.empty(out.dense.shape, np.float64)
        return out

    def _chunk(self, out: Columns, seekable: bool, text: list[bytes]) -> Chunk:
        samples, slots = out.filled, len(self.schema.slots)
        more: dict[str, Any] = {}
        labels = out.labels
        if isinstance(out, RecordColumns):
            labels = labels[:, 0] if labels.shape[1] == 1 else labels
            columns = {"weights": out.weights, "groups": out.groups, "times": out.times}
            more = {name: _trim(column, samples) for name, column in columns.items() if column is not None}
        if out.offsets is None:
            offsets = np.arange(samples * slots + 1, dtype=np.int64)
        else:
            offsets = _trim(out.offsets, samples * slots + 1)
        batch = Batch.trusted(
            labels=_trim(labels, samples),
            dense=_trim(out.dense, samples),
            keys=_trim(out.keys, int(offsets[-1])),
            offsets=offsets,
            slots=self.schema.slot_names,
            **more,
        )
        lines, ends = _trim(out.lines, samples), _trim(out.ends, samples) if seekable else None
        return Chunk(batch, lines, ends, *(() if out.numbers is None else (text, out.numbers[:samples])))

    def _bad_sample(self, source: ByteSource, unit: Unit, blocks: _Blocks, done: Parsed, lines: int) -> DataError:
        reason = Reason(done.reason)
        raw = blocks.buffer[done.begin : min(done.end, done.begin + SHOWN_BYTES)].tobytes()
        shown = raw.decode(errors="backslashreplace") + ("…" if done.end - done.begin > SHOWN_BYTES else "")
        line = source.line_number(blocks.base + done.line_begin, lines)
        if unit.start == 0:
            line += self.preamble(unit.file)[1]
        error = BadRowError(unit.file, line, done.column or None, self.explain_in(unit.file, reason, done), shown)
        error.reason = reason.text  # the short one, as skipped samples are counted
        return source.explain(error)


class _Blocks:
    """A buffer that slides over a source: what is not parsed yet moves to its front, the rest is filled."""

    def __init__(self, source: ByteSource, size: int) -> None:
        self.source = source
        self.buffer = np.empty(size, np.uint8)
        self.base = source.offset
        self.begin = self.size = 0
        self.open = self.final = False

    def block(self, stop: int, skip: bool, lines: int) -> Block:
        return Block(
            data=self.buffer,
            begin=self.begin,
            size=self.size,
            stop=max(0, stop - self.base),
            final=self.final,
            open=self.open,
            skip=skip,
            line_base=lines,
            byte_base=self.base,
        )

    def lines(self, ends: I64, consumed: int) -> list[bytes]:
        """The lines of the last block that end there, without their line ends."""
        data = self.buffer[self.begin : consumed].tobytes()
        first = self.base + self.begin
        found = [data[data.rfind(b"\n", 0, end - 1) + 1 : end] for end in (ends - first).tolist()]
        return [line.removesuffix(b"\n").removesuffix(b"\r") for line in found]

    def take(self, done: Parsed) -> None:
        self.begin, self.open = done.consumed, done.open

    def fill(self) -> None:
        left = self.size - self.begin
        self.buffer[:left] = self.buffer[self.begin : self.size].copy()
        self.base += self.begin
        self.begin, self.size = 0, left
        count = self.source.readinto(self.buffer.data[left:])
        self.size += count
        self.final = count == 0

    def pass_over(self, size: int) -> None:
        """Move over the first `size` bytes."""
        while size:
            self.fill()
            step = min(size, self.size)
            self.begin, size = step, size - step
            if self.final:
                break

    def skip(self, lines: int, file: str) -> int:
        """Move over the first `lines` lines."""
        seen = 0
        while seen < lines:
            more, self.begin = kernels.skip_lines(self.buffer, self.begin, self.size, lines - seen)
            seen += more
            if seen == lines:
                break
            if self.final:
                if self.begin < self.size and seen + 1 == lines:  # a last line without a line feed
                    self.begin = self.size
                    break
                raise DataError(
                    f"{file}: cannot go on after sample {lines}: there are only {seen}; "
                    "the file has changed since the position was saved"
                )
            if self.begin == 0 and self.size == len(self.buffer):
                self.base += self.size  # an over-long line: its inside is not needed
                self.size = 0
            self.fill()
        return lines


def check_resume(unit: Unit, resume: Mark, size: int) -> None:
    """The saved offset must still be where a sample starts."""
    fits = unit.start <= resume.offset <= size
    if fits and 0 < resume.offset < size:
        probe = PlainSource(unit.file, resume.offset - 1)
        byte = bytearray(1)
        probe.readinto(memoryview(byte))
        probe.close()
        fits = byte == b"\n"
    if not fits:
        raise DataError(
            f"{unit.file}: cannot go on at byte {resume.offset}: no sample starts there "
            f"(the file has {size} bytes); it has changed since the position was saved"
        )


def _trim(array: npt.NDArray[T], size: int) -> npt.NDArray[T]:
    """The first `size` entries; copied where a view would hold on to much more than it shows."""
    return array[:size] if size * 4 >= len(array) * 3 else array[:size].copy()
