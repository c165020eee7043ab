"""Raw Criteo lines: label, n numbers, S categories, tab separated; n and S as the schema has them.

Numbers are normalised, (x - minimum) / diff in double precision; a blank one is 0.0. Categories are hashed,
blank ones like any other.
"""

from __future__ import annotations

from sparsefleet.core.schema import CRITEO, Schema
from sparsefleet.data.formats.base import CHUNK_ROWS
from sparsefleet.data.formats.textrows import TextFormat
from sparsefleet.kernels.rowtypes import MAX_LINE, Columns, Parsed, Reason
from sparsefleet.kernels.text import CriteoParser


class CriteoFormat(TextFormat):
    def __init__(self, schema: Schema = CRITEO, *, labelled: bool = True, max_line: int = MAX_LINE) -> None:
        """With labelled=False the lines have no first field, and labels are NaN."""
        super().__init__(schema, max_line)
        self.labelled = labelled

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
        return Columns.allocate(CHUNK_ROWS, len(self.schema.dense), len(self.schema.slots))

    def explain(self, reason: Reason, done: Parsed) -> str:
        if reason == Reason.FIELD_COUNT:
            dense, slots = len(self.schema.dense), len(self.schema.slots)
            label = "label, " if self.labelled else "no label, "
            needed = self.labelled + dense + slots
            hint = "; labelled=False reads rows without a label" if done.found == needed - self.labelled else ""
            hint = hint if self.labelled else ""
            return (
                f"{reason.text}: {done.found} where {needed} are needed "
                f"({label}{dense} numbers, {slots} categories, tab separated{hint})"
            )
        if reason == Reason.LONG_LINE:
            return f"{reason.text}: more than max_line={self.max_line} bytes"
        return reason.text
