"""JSON lines: one object a line, {column: value}. Columns that the schema does not use are passed over.

- a label: 0 or 1, true or false;
- a number: a number, or decimal text; null, absent or empty text is missing;
- a slot: text or a whole number (hashed as its decimal text), or a list of these; null or absent is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.base import Head
from sparsefleet.data.formats.records import BOM, RecordFormat, is_object, open_text
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
