"""Parsing of records (CSV, JSON lines, rows of tables): the native kernels. `reference/records.py` is their twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.kernels.levels import native as _native
from sparsefleet.kernels.record_types import MAX_RECORD, RecordColumns, RecordPlan, SvmPlaces, TextColumn
from sparsefleet.kernels.text_types import Block, Columns, Parsed


class _Parser:
    _native: Any

    def parse(self, block: Block, out: Columns) -> Parsed:
        """As `kernels.text.MultiSlotParser.parse`."""
        assert isinstance(out, RecordColumns)
        b = block
        done = Parsed(
            *self._native.parse(
                *(b.data, b.begin, b.size, b.stop, b.final, b.open, b.skip),
                *(out.labels, out.dense, out.keys, out.offsets, out.weights, out.groups, out.times),
                *(out.numbers, out.lines, out.ends, out.counts, out.filled, b.line_base, b.byte_base),
            )
        )
        out.filled = done.filled
        return done


class CsvParser(_Parser):
    """A record a line, fields separated by `delimiter`. Keeps scratch space: one per thread."""

    def __init__(
        self,
        plan: RecordPlan,
        places: Sequence[int],
        columns: int,
        delimiter: str,
        quote: str = '"',
        multiline: bool = False,
        max_line: int = MAX_RECORD,
    ) -> None:
        """`places`: which of the file's `columns` each field of the plan is."""
        marks = ord(delimiter), ord(quote) if quote else 0
        self._native = _native.CsvParser(plan.native(), list(places), columns, *marks, multiline, max_line)


class JsonLinesParser(_Parser):
    """A JSON object a line. Keeps scratch space: one per thread."""

    def __init__(self, plan: RecordPlan, max_line: int = MAX_RECORD) -> None:
        self._native = _native.JsonLinesParser(plan.native(), list(plan.fields), max_line)


class SvmParser(_Parser):
    """libsvm or libffm: numbers of features with their values. Keeps scratch space: one per thread."""

    def __init__(self, plan: RecordPlan, places: SvmPlaces, max_line: int = MAX_RECORD) -> None:
        p = places
        self._native = _native.SvmParser(
            plan.native(),
            *(p.triples, p.label, p.group, p.features, list(p.numbers.items()), list(p.slots.items()), max_line),
        )


class Assembler:
    """Samples from the rows of a table: columns of text. Keeps scratch space: one per thread."""

    def __init__(self, plan: RecordPlan) -> None:
        self.plan = plan
        self._native = _native.Assembler(plan.native())

    def rows(self, table: Sequence[TextColumn], rows: int, *, numbers: bool = False) -> tuple[RecordColumns, Any, Any]:
        """The samples, and for each row the reason why it was refused (0: it was not) and the field's number.

        `numbers`: those before they are scaled are wanted, too.
        """
        values = sum(len(column.kinds) for column in table)
        room = max(1024, 4 * (rows * len(self.plan.slots) + values))
        columns = [(c.data, c.ends, c.bags, c.kinds, c.lists) for c in table]
        while True:
            out = RecordColumns.for_plan(self.plan, rows, room, numbers=numbers)
            reasons, fields = np.zeros(rows, np.uint8), np.zeros(rows, np.int64)
            out.filled, full = self._native.rows(
                columns,
                *(out.labels, out.dense, out.keys, out.offsets, out.weights, out.groups, out.times),
                *(out.numbers, reasons, fields),
            )
            if not full:
                return out, reasons, fields
            room *= 2
