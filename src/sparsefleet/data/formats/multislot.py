"""MultiSlot text: one sample a line, the declared slots in order, each `n v1 … vn`, space separated.

Whoever wrote the line has hashed and normalised: keys are taken as they are (folded modulo
`sparse_feature_dim` unless that is 0), dense values too. The order is that of the schema's `multislot`; without it,
and unless a layout says otherwise: all dense values as one slot, the sparse slots as the schema has them, the label
(`core/layout.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.inputs import READY, Inputs
from sparsefleet.core.layout import Layout, default_layout, dense_in
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.base import CHUNK_SAMPLES, FormatOptions, Head
from sparsefleet.data.formats.text import TextFormat
from sparsefleet.kernels.text import MultiSlotParser
from sparsefleet.kernels.text_types import MAX_LINE, Columns, Parsed, Reason, SlotEntry, SlotKind


def slot_entries(layout: Layout, schema: Schema) -> list[SlotEntry]:
    """The layout in the kernel's terms, checked against the schema: every feature exactly once."""
    entries: list[SlotEntry] = []
    dense: list[str] = []
    sparse: list[str] = []
    labels = 0
    for name, kind in layout:
        if kind == "dense":
            covered = dense_in(name, schema.dense_names)
            first = schema.dense_names.index(covered[0]) if covered else 0
            if tuple(covered) != schema.dense_names[first : first + len(covered)]:
                raise ConfigError(
                    f"layout: {name!r} holds the dense features {', '.join(covered)}, which must stand side by side in "
                    f"the schema; it has {', '.join(schema.dense_names)}"
                )
            entries.append(SlotEntry(SlotKind.DENSE, first, len(covered)))
            dense += covered
        elif kind == "sparse":
            if name not in schema.slot_names:
                raise ConfigError(
                    f"layout: {name!r} is no sparse slot of the schema; it has {', '.join(schema.slot_names)}"
                )
            entries.append(SlotEntry(SlotKind.SPARSE, schema.slot_names.index(name), 0))
            sparse.append(name)
        elif kind == "label":
            entries.append(SlotEntry(SlotKind.LABEL, 0, 1))
            labels += 1
        else:
            raise ConfigError(f"layout: slot {name!r} is of kind {kind!r}; choose dense, sparse or label")
    for found, needed in ((dense, schema.dense_names), (sparse, schema.slot_names)):
        twice = sorted({name for name in found if found.count(name) > 1})
        missing = [name for name in needed if name not in found]
        if twice or missing:
            raise ConfigError(
                "layout: every feature of the schema must stand in it once"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; twice: {', '.join(twice)}" if twice else "")
            )
    if labels > 1:
        raise ConfigError(f"layout: {labels} labels; a sample has at most one")
    return entries


class MultiSlotFormat(TextFormat):
    looks = "'n v1 … vn' for each slot, space separated"

    def __init__(
        self,
        schema: Schema,
        *,
        layout: Layout | None = None,
        labelled: bool = True,
        max_line: int = MAX_LINE,
    ) -> None:
        """`labelled` is for the default layout; a declared one has a label or not. Without: NaN."""
        super().__init__(schema, max_line)
        if schema.more_labels or schema.weight or schema.group or schema.time:
            raise ConfigError(
                "format multislot has one label and features; the schema has further labels, weight, group or time: "
                "write csv, jsonl or parquet"
            )
        if schema.uncounted:
            raise ConfigError(
                f"slot {schema.uncounted[0]!r} has a min_count, and its values are not counted; MultiSlot lines hold "
                "ready-made keys, of which none is left out here: take min_count out of the schema"
            )
        if schema.unmeasured:
            raise ConfigError(
                f"{schema.unmeasured[0]} is not measured, and MultiSlot lines hold ready-made keys and numbers, of "
                "which nothing is measured: take it out of the schema"
            )
        self.layout = tuple(layout) if layout is not None else tuple(default_layout(schema, labelled))
        self._entries = slot_entries(self.layout, schema)

    @classmethod
    def create(cls, schema: Schema, options: FormatOptions) -> Self:
        return cls(schema, layout=options.layout, labelled=options.labelled, max_line=options.max_line or MAX_LINE)

    @classmethod
    def guess(cls, head: Head, schema: Schema) -> bool:
        words = head.line.split()
        return head.is_text and b"\t" not in head.line and len(words) > 1 and words[0].isdigit()

    def inputs(self, files: Sequence[str]) -> Inputs:
        return Inputs.of_schema("multislot", self.schema, READY, layout=tuple(self.layout))

    def parser(self) -> MultiSlotParser:
        dense, slots = len(self.schema.dense), len(self.schema.slots)
        return MultiSlotParser(self._entries, dense, slots, self.schema.sparse_feature_dim, self.max_line)

    def columns(self) -> Columns:
        dense, slots = len(self.schema.dense), len(self.schema.slots)
        # Room for any one line: a key takes two bytes of it at least.
        keys = max(2 * CHUNK_SAMPLES * slots, self.max_line // 2 + 1)
        return Columns.allocate(CHUNK_SAMPLES, dense, slots, keys)

    def explain(self, reason: Reason, done: Parsed) -> str:
        if reason == Reason.LONG_LINE:
            return f"{reason.text}: more than max_line={self.max_line} bytes"
        if reason == Reason.WIDTH:
            widths = sorted({entry.width for entry in self._entries if entry.kind != SlotKind.SPARSE})
            allowed = " or ".join(map(str, widths))
            return f"{reason.text}: {done.found} where dense and label slots have {allowed}"
        if reason in (Reason.MISSING_VALUES, Reason.SURPLUS_VALUES):
            return f"{reason.text}: the layout has {len(self.layout)} slots, each 'n v1 … vn'"
        return reason.text
