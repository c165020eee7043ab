"""Positional samples: values in the order of declared inputs, as Fluid's readers give them.

With the inputs `[("dense_input", 2), "user", "ad", "label"]` (or a schema: the order of its `multislot`, else all dense
values as one, its slots, its label) `([0.5, 0.1], [17], [4, 8], [1])` is a sample. A slot or the label may be one
number instead of a list. Dense values are taken as they are: whoever gives a sample by position has normalised them, as
a data generator has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.layout import Layout, default_layout
from sparsefleet.core.schema import Schema
from sparsefleet.data.formats.multislot import slot_entries
from sparsefleet.data.python_samples import DENSE


class Positions:
    """Which place of a sample holds what."""

    def __init__(self, schema: Schema, layout: Layout | None = None) -> None:
        self.schema = schema
        self.layout = tuple(default_layout(schema) if layout is None else layout)
        slot_entries(self.layout, schema)  # every feature once, or it says what is wrong
        self._label = next((place for place, (_, kind) in enumerate(self.layout) if kind == "label"), None)

    def is_sample(self, item: Sequence[Any]) -> bool:
        """Whether this is one sample, not a list of samples.

        The label decides: in a sample it is one number, and a sample in its place would hold as many values as there
        are inputs. Without a label, a list of samples is a list of lists of lists.
        """
        if any(isinstance(one, Mapping) for one in item):
            return False
        if len(item) == len(self.layout) and self._label is not None:
            label = item[self._label]
            if not _is_list(label) or len(label) == 1:
                return True
        elif len(item) == len(self.layout):
            return not all(_is_list(one) and any(map(_is_list, one)) for one in item)
        return not any(_is_list(one) and len(one) == len(self.layout) for one in item)

    def as_dict(self, sample: Any) -> Mapping[str, Any]:
        """The sample by names; one that is a dict already passes."""
        if isinstance(sample, Mapping):
            return sample
        if not _is_list(sample):
            raise ConfigError(
                f"a sample must be a dict, or a list of values; got {type(sample).__name__}: {sample!r:.80}"
            )
        if len(sample) != len(self.layout):
            raise ConfigError(
                f"a sample of {len(sample)} values: {sample!r:.80}; by position it has {len(self.layout)}: "
                f"{self._shown()}"
            )
        named: dict[str, Any] = {}
        dense: list[float] = [0.0] * len(self.schema.dense)
        for (name, kind), value in zip(self.layout, sample, strict=True):
            if kind == "sparse":
                named[name] = value
            elif kind == "label":
                named[self.schema.label] = self._one(value, name)
            elif name in self.schema.dense_names:
                dense[self.schema.dense_names.index(name)] = self._one(value, name)
            else:
                dense = self._all_dense(value, name)
        return {**named, DENSE: dense} if self.schema.dense else named

    def as_columns(self, item: Sequence[Any]) -> Mapping[str, Any] | None:
        """A batch as one array [samples, values] for each input, by names; None for anything else."""
        if len(item) != len(self.layout) or not all(hasattr(one, "__array__") and np.ndim(one) == 2 for one in item):
            return None
        named: dict[str, Any] = {}
        dense: dict[int, Any] = {}
        for (name, kind), column in zip(self.layout, map(np.asarray, item), strict=True):
            if kind == "sparse":
                named[name] = column
            elif kind == "label":
                named[self.schema.label] = column.reshape(-1)
            else:
                dense[self.schema.dense_names.index(name) if name in self.schema.dense_names else 0] = column
        if dense:
            named[DENSE] = np.concatenate([dense[place] for place in sorted(dense)], axis=1)
        return named

    def _one(self, value: Any, name: str) -> Any:
        if not _is_list(value):
            return value
        if len(value) != 1:
            raise ConfigError(f"input {name!r} of a sample must be one number; got {value!r:.80}")
        return value[0]

    def _all_dense(self, value: Any, name: str) -> Any:
        values = value if _is_list(value) else [value]
        if len(values) != len(self.schema.dense):
            raise ConfigError(
                f"input {name!r} of a sample has {len(values)} values, {value!r:.80}; there are "
                f"{len(self.schema.dense)} dense features"
            )
        return values

    def _shown(self) -> str:
        names = [name for name, _ in self.layout]
        return ", ".join(names if len(names) <= 6 else [*names[:3], "…", *names[-2:]])


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "__array__") and np.ndim(value) > 0)
