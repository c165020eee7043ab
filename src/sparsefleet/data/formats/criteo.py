"""Raw Criteo lines: label, n numbers, S categories, tab separated; n and S as the schema has them.

Numbers are normalised, (x - minimum) / diff in double precision; a blank one is 0.0. Categories are hashed,
blank ones like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.inputs import RAW, Inputs
from sparsefleet.core.schema import CRITEO, Schema
from sparsefleet.data.formats.base import CHUNK_SAMPLES, FormatOptions, Head
from sparsefleet.data.formats.text import TextFormat
from sparsefleet.kernels.text import CriteoParser
from sparsefleet.kernels.text_types import MAX_LINE, Columns, Parsed, Reason


class CriteoFormat(TextFormat):
    looks = "label, numbers and categories, tab separated"

    def __init__(self, schema: Schema = CRITEO, *, labelled: bool = True, max_line: int = MAX_LINE) -> None:
        """With labelled=False the lines have no first field, and labels are NaN."""
        super().__init__(schema, max_line)
        schema.require_measured()
        if not schema.simple:
            raise ConfigError(
                "format criteo has one label and plain numbers and categories; the schema has more (transforms, "
                "further labels, weight, group or time). Read such files as csv: name their columns in the schema, "
                'csv = { delimiter = "\\t", header = false, columns = [...] }'
            )
        self.labelled = labelled

    @classmethod
    def create(cls, schema: Schema, options: FormatOptions) -> Self:
        return cls(schema, labelled=options.labelled, max_line=options.max_line or MAX_LINE)

    @classmethod
    def guess(cls, head: Head, schema: Schema) -> bool:
        fields, features = head.line.count(b"\t") + 1, len(schema.dense) + len(schema.slots)
        # A line of another number of fields is a Criteo line gone wrong: the parser's error says how.
        # Where the schema tells the order of MultiSlot lines, a line without tabs is one of these.
        if fields == 1 and schema.multislot is not None:
            return False
        return head.is_text and (fields in (features, features + 1) or (fields > 1 and b" " not in head.line))

    def inputs(self, files: Sequence[str]) -> Inputs:
        return Inputs.of_schema("criteo", self.schema, RAW)

    def parser(self) -> CriteoParser:
        return CriteoParser(
            minimum=[feature.minimum for feature in self.schema.dense],
            diff=[feature.diff for feature in self.schema.dense],
            prefixes=[slot.prefix for slot in self.schema.slots],
            seed=self.schema.hash_seed,
            dim=self.schema.sparse_feature_dim,
            labelled=self.labelled,
            max_line=self.max_line,
        )

    def columns(self) -> Columns:
        return Columns.allocate(CHUNK_SAMPLES, len(self.schema.dense), len(self.schema.slots))

    def explain(self, reason: Reason, done: Parsed) -> str:
        if reason == Reason.FIELD_COUNT:
            dense, slots = len(self.schema.dense), len(self.schema.slots)
            label = "label, " if self.labelled else "no label, "
            needed = self.labelled + dense + slots
            hint = "; labelled=False reads samples without a label" if done.found == needed - self.labelled else ""
            hint = hint if self.labelled else ""
            return (
                f"{reason.text}: {done.found} where {needed} are needed "
                f"({label}{dense} numbers, {slots} categories, tab separated{hint})"
            )
        if reason == Reason.LONG_LINE:
            return f"{reason.text}: more than max_line={self.max_line} bytes"
        return reason.text
