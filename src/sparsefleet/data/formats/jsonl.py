"""JSON lines: one object a line, {column: value}. Columns that the schema does not use are passed over. Those that it
uses and no line has are refused (`absent_fields.py`), unless the schema says that they are optional.

- a label: 0 or 1, true or false;
- a number: a number, or decimal text; null, absent or empty text is missing;
- a slot: text or a whole number (hashed as its decimal text), or a list of these; null or absent is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.absent_fields import AbsentFields
from sparsefleet.data.formats.base import Head, Unit
from sparsefleet.data.formats.records import BOM, RecordFormat, is_object, open_text
from sparsefleet.kernels.record_types import MAX_RECORD
from sparsefleet.kernels.records import JsonLinesParser
from sparsefleet.kernels.text_types import Parsed, Reason


class JsonLinesFormat(RecordFormat):
    looks = "a JSON object a line"
    name = "jsonl"

    @classmethod
    def guess(cls, head: Head, schema: Schema) -> bool:
        return is_object(head)

    def preamble(self, file: str) -> tuple[int, int]:
        return (len(BOM), 0) if Head.of(file).data.startswith(BOM) else (0, 0)

    def __init__(self, schema: Schema, *, labelled: bool = True, max_line: int = MAX_RECORD) -> None:
        super().__init__(schema, labelled=labelled, max_line=max_line)
        # Of labels, weight and time each row says for itself that they are missing.
        group = [schema.group] if labelled and schema.group is not None else []
        features, beside = ([name for name in names if name not in schema.optional] for names in (schema.fields, group))
        self._absent = AbsentFields(features, beside, max_line)

    def plan(self, files: Sequence[str], pieces: int) -> list[Unit]:
        self._absent.beside(files)
        return super().plan(files, pieces)

    def parser_of(self, file: str) -> JsonLinesParser:
        self._absent.require(file)
        return self.parser()

    def parser(self) -> JsonLinesParser:
        return JsonLinesParser(self.record_plan(), self.max_line)

    def raw_samples(self, file: str) -> Iterator[dict[str, Any]]:
        with open_text(file) as lines:
            for line in lines:
                record = json.loads(line)
                yield {name: record.get(name) for name in self.schema.fields}

    def explain(self, reason: Reason, done: Parsed) -> str:
        said = super().explain(reason, done)
        if reason == Reason.JSON:
            return f"{said}: something is wrong near character {done.found}"
        fields = self.record_plan().fields
        return f"column {fields[done.column - 1]!r}: {said}" if 0 < done.column <= len(fields) else said
