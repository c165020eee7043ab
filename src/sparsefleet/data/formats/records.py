"""What CSV and JSON lines share: samples whose values have names, made by the schema's transforms."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Self

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.base import CHUNK_SAMPLES, BadSamples, Chunk, FormatOptions, Head, Unit
from sparsefleet.data.formats.old_times import OldTimes
from sparsefleet.data.formats.record_plan import record_plan
from sparsefleet.data.formats.source import ByteSource, open_source
from sparsefleet.data.formats.text import SampleParser, TextFormat
from sparsefleet.kernels.record_types import MAX_RECORD, RecordColumns, RecordPlan
from sparsefleet.kernels.text_types import Parsed, Reason

BOM = b"\xef\xbb\xbf"


class RecordFormat(TextFormat):
    name: ClassVar[str]
    text_keys: ClassVar[bool] = False

    def __init__(self, schema: Schema, *, labelled: bool = True, max_line: int = MAX_RECORD) -> None:
        """With labelled=False the columns of labels, weight, group and time may be absent."""
        super().__init__(schema, max_line)
        self.labelled = labelled
        self._plans: dict[tuple[str, ...] | None, RecordPlan] = {}
        self._old_times = OldTimes(schema.time, schema.time_format)
        self.record_plan()  # refuses a schema that it cannot follow

    @classmethod
    def create(cls, schema: Schema, options: FormatOptions) -> Self:
        return cls(schema, labelled=options.labelled, max_line=options.max_line or MAX_RECORD)

    def inputs(self, files: Sequence[str]) -> Inputs:
        return Inputs.raw(self.name, self.schema)

    def record_plan(self, there: tuple[str, ...] | None = None) -> RecordPlan:
        """The plan for files that have these columns. Kept: with thousands of columns it takes a while to make."""
        plan = self._plans.get(there)
        if plan is None:
            plan = record_plan(self.schema, labelled=self.labelled, text_keys=self.text_keys, there=there)
            self._plans[there] = plan
        return plan

    @abstractmethod
    def raw_samples(self, file: str) -> Iterator[dict[str, Any]]:
        """The samples of a file as a request would hold them: {column: value} before any transform. For a few samples:
        it is Python's own modules that read here, so that they and the native parser can be compared.
        """

    def parser(self) -> SampleParser:
        raise ConfigError(f"{self.name}: the parser depends on the file")

    def columns(self) -> RecordColumns:
        return self.columns_for(self.record_plan())

    def columns_for(self, plan: RecordPlan) -> RecordColumns:
        samples = max(64, min(CHUNK_SAMPLES, (1 << 21) // max(1, len(plan.slots) + len(plan.dense))))
        # Room for any one line: a value of a list takes two bytes of it at least. Crosses may need more: they are
        # refused where one sample has more values than fit.
        return RecordColumns.for_plan(plan, samples, max(2 * samples * len(plan.slots), self.max_line // 2 + 1))

    def _chunks(
        self, source: ByteSource, unit: Unit, bad_samples: BadSamples, resume: Mark | None, raw: bool = False
    ) -> Iterator[Chunk]:
        chunks = super()._chunks(source, unit, bad_samples, resume, raw)
        for chunk in islice(chunks, 1):
            self._old_times.look_at(chunk.batch, unit.file)
            yield chunk
        yield from chunks

    def explain(self, reason: Reason, done: Parsed) -> str:
        if reason == Reason.LONG_LINE:
            return f"{reason.text}: more than max_line={self.max_line} bytes"
        return _ADVICE.get(reason, reason.text)


_ADVICE = {
    Reason.LABEL: f"{Reason.LABEL.text}, nor true or false",
    Reason.LABEL_MISSING: f"{Reason.LABEL_MISSING.text}; labelled=False (--unlabelled) reads samples without one",
    Reason.VALUE_KIND: f"{Reason.VALUE_KIND.text}: a slot takes text and whole numbers (ready-made keys: whole numbers "
    "alone), a dense feature one number",
    Reason.TIME: f"{Reason.TIME.text} of the schema's time_format (auto: ISO 8601, or seconds since 1970, up to the "
    "year 9999; milliseconds are a time_format of their own)",
    Reason.WEIGHT: Reason.WEIGHT.text,
}


def open_text(file: str) -> io.TextIOWrapper:
    """A plain or packed file for Python's own readers of text."""
    return io.TextIOWrapper(io.BufferedReader(_Stream(open_source(file))), "utf-8-sig", "replace", newline="")


class _Stream(io.RawIOBase):
    """A byte source as Python's own readers want it."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int:
        return self._source.readinto(memoryview(view))

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def is_object(head: Head) -> bool:
    return head.data.removeprefix(BOM).lstrip()[:1] == b"{"
