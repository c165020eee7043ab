"""libffm: `label field:feature:value …`, a sample a line.

    1 0:3:1 1:17:0.25 2:4021:1

Its columns, as a schema names them:

- `0`, a whole number: the features of field 0, for a slot. A feature is there where its value is 1; one with the value
  0 is not there. A slot holds values, not weights, so a line with any other value in a field that is a slot is refused,
  unless the schema takes the value as a number too:
- `1:value`: the value of field 1, for a dense feature (or `buckets` of it); such a field has one feature a line at
  most.

The label is as in libsvm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sparsefleet.data.formats.libsvm import LINE_END, NUMBER, VALUE_TEXT, Entry, SvmFormat
from sparsefleet.kernels.record_types import RecordPlan, SvmPlaces

VALUE = ":value"


class LibffmFormat(SvmFormat):
    looks = "label field:feature:value …"
    name = "libffm"
    line = re.compile(rb"[-+]?[01](?:\.0*)?(?:[ \t]+\d+:\d+:" + VALUE_TEXT + rb")*" + LINE_END)
    columns_are = "'3' (the features of field 3 whose value is 1) and '3:value' (the value of field 3)"
    number_column = '"FIELD:value"'

    def _places(self, plan: RecordPlan) -> SvmPlaces:
        label = self._label_at(plan)
        if self.schema.group is not None:
            raise self._unknown(self.schema.group)
        numbers: dict[int, int] = {}
        slots: dict[int, int] = {}
        for at, name in enumerate(plan.fields):
            if at == label:
                continue
            field = name.removesuffix(VALUE)
            if not NUMBER.fullmatch(field):
                raise self._unknown(name)
            (numbers if name.endswith(VALUE) else slots)[int(field)] = at
        return SvmPlaces(True, label, numbers=numbers, slots=slots)

    def raw_sample(self, found: Sequence[Entry]) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        for name in self.schema.fields:
            field = int(name.removesuffix(VALUE))
            mine = [(feature, value) for at, feature, value in found if at == field]
            if name.endswith(VALUE):
                sample[name] = mine[0][1] if mine else None
            else:
                sample[name] = [feature for feature, value in mine if float(value) != 0]
        return sample
