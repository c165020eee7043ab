"""libsvm: `label index:value …`, a sample a line; `qid:n` behind the label, and a comment behind #, may be there.

    1 3:1 17:0.25 4021:1

Its columns, as a schema names them:

- `features`: the indices of a sample, for a slot. An index is there where its value is 1; one with the value 0 is not
  there. A slot holds values, not weights, so a line with any other value is refused, unless the schema takes the
  value as a number:
- `17`, a whole number: the value of feature 17, for a dense feature (or `buckets` of it). It is then none of
  `features`. A sample that does not have the feature misses the number.
- `qid`, for a group.

The label's column has whatever name the schema gives it; -1 is 0. A line that begins with a pair has no label.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.base import Head
from sparsefleet.data.formats.record_plan import beside_features
from sparsefleet.data.formats.records import BOM, RecordFormat, open_text
from sparsefleet.kernels.record_types import MAX_RECORD, RecordPlan, SvmPlaces
from sparsefleet.kernels.records import SvmParser
from sparsefleet.kernels.text_types import Parsed, Reason

FEATURES, QID = "features", "qid"
NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
VALUE_TEXT = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
LINE_END = rb"[ \t]*(?:#.*)?"
_GUESSED_LINES = 20

Entry = tuple[int, int, str]
"""(index, feature, value); of libsvm both numbers are the index."""


class SvmFormat(RecordFormat):
    """What libsvm and libffm share."""

    line: ClassVar[re.Pattern[bytes]]
    """A whole line of this format, without its end."""
    columns_are: ClassVar[str]
    number_column: ClassVar[str]
    """How a schema names a value that it takes as a number."""

    def __init__(self, schema: Schema, *, labelled: bool = True, max_line: int = MAX_RECORD) -> None:
        super().__init__(schema, labelled=labelled, max_line=max_line)
        self._places(self.record_plan())

    @classmethod
    def guess(cls, head: Head, schema: Schema) -> bool:
        if schema.csv is not None or schema.version == 1:
            return False
        return looks_like(cls.line, head)

    def preamble(self, file: str) -> tuple[int, int]:
        return (len(BOM), 0) if Head.of(file).data.startswith(BOM) else (0, 0)

    def parser(self) -> SvmParser:
        plan = self.record_plan()
        return SvmParser(plan, self._places(plan), self.max_line)

    @abstractmethod
    def _places(self, plan: RecordPlan) -> SvmPlaces:
        """Where the parts of a line go."""

    def _label_at(self, plan: RecordPlan) -> int:
        surplus = [name for name in beside_features(self.schema) if name != self.schema.label and name != QID]
        if surplus:
            raise ConfigError(
                f"{self.name} lines have one label and no column {surplus[0]!r}: leave it out of the schema's "
                "more_labels, weight, group and time"
            )
        return plan.fields.index(self.schema.label) if self.schema.label in plan.fields else -1

    def _unknown(self, name: str) -> ConfigError:
        return ConfigError(
            f"{self.name}: the schema has a column {name!r}; the columns of such files are {self.columns_are}"
        )

    def explain(self, reason: Reason, done: Parsed) -> str:
        said = super().explain(reason, done)
        fields = self.record_plan().fields
        column = f"column {fields[done.column - 1]!r}: " if 0 < done.column <= len(fields) else ""
        if reason == Reason.NOT_ONE:
            said += (
                f"; a slot holds no weights: take it as a number, a dense feature with column = {self.number_column}"
            )
        elif reason == Reason.LABEL:
            said = f"{Reason.LABEL.text}, nor -1"
        elif reason in (Reason.KEY, Reason.NEGATIVE_KEY, Reason.KEY_OVERFLOW):
            said = f"{said}: features have whole numbers, 0 to 2**64 - 1"
        return column + said

    def raw_samples(self, file: str) -> Iterator[dict[str, Any]]:
        with open_text(file) as lines:
            for line in lines:
                yield self.raw_sample(entries(line)[1])

    @abstractmethod
    def raw_sample(self, found: Sequence[Entry]) -> dict[str, Any]:
        """A sample as a request would hold it."""


class LibsvmFormat(SvmFormat):
    looks = "label index:value …"
    name = "libsvm"
    line = re.compile(rb"[-+]?[01](?:\.0*)?(?:[ \t]+(?:qid|\d+):" + VALUE_TEXT + rb")*" + LINE_END)
    columns_are = "'features' (the indices whose value is 1), '17' (the value of feature 17), and 'qid' as a group"
    number_column = "the feature's index"

    def _places(self, plan: RecordPlan) -> SvmPlaces:
        label = self._label_at(plan)
        group = plan.fields.index(QID) if self.schema.group == QID else -1
        numbers = {}
        for at, name in enumerate(plan.fields):
            if name in (FEATURES, self.schema.label, QID):
                continue
            if not NUMBER.fullmatch(name):
                raise self._unknown(name)
            numbers[int(name)] = at
        features = plan.fields.index(FEATURES) if FEATURES in plan.fields else -1
        return SvmPlaces(False, label, group, features, numbers)

    def raw_sample(self, found: Sequence[Entry]) -> dict[str, Any]:
        numbers = {name: int(name) for name in self.schema.fields if name != FEATURES}
        values = {index: value for index, _, value in found}
        sample: dict[str, Any] = {name: values.get(index) for name, index in numbers.items()}
        if FEATURES in self.schema.fields:
            taken = set(numbers.values())
            sample[FEATURES] = [index for index, _, value in found if index not in taken and float(value) != 0]
        return {name: sample[name] for name in self.schema.fields}


def looks_like(line: re.Pattern[bytes], head: Head) -> bool:
    """Whether the first lines, as far as they are whole, are all of this kind."""
    if not head.is_text:
        return False
    whole = head.data.removeprefix(BOM).split(b"\n")
    whole = (whole if len(whole) == 1 else whole[:-1])[:_GUESSED_LINES]
    found = [each.rstrip(b"\r") for each in whole]
    return any(b":" in each for each in found) and all(line.fullmatch(each) for each in found)


def entries(line: str) -> tuple[str | None, list[Entry]]:
    """The label, and what follows it, of a line that is known to be fine."""
    words = line.partition("#")[0].split()
    label = words.pop(0) if words and ":" not in words[0] else None
    found: list[Entry] = []
    for word in words:
        parts = word.split(":")
        if parts[0] == QID:
            continue
        found.append((int(parts[0]), int(parts[-2]), parts[-1]))
    return label, found
