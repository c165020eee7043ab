"""Which metrics a data set is scored by, besides AUC and the like: what its schema asks for, and what a user does."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.kernels.text import feature_key
from sparsefleet.metrics import Calibration, GroupAUC, LabelMetrics, Metric, Segments, label_names


def metrics_of(schema: Schema, calibration: bool = False, segments: Sequence[str] = ()) -> tuple[Metric, ...]:
    """Of each label but the first, its own; within groups, where samples have them; and what is asked for.

    `segments`: slots, or SLOT=VALUE,VALUE, whose values are then called so.
    """
    names = label_names(schema)
    made: list[Metric] = [LabelMetrics(name, index) for index, name in enumerate(names) if index]
    if getattr(schema, "group", None) is not None:
        made.append(GroupAUC())
    if calibration:
        made.append(Calibration())
    return (*made, *(_segments(schema, text) for text in dict.fromkeys(segments)))


def _segments(schema: Schema, text: str) -> Segments:
    name, _, listed = text.partition("=")
    slot = next((slot for slot in schema.slots if slot.name == name), None)
    if slot is None:
        near = difflib.get_close_matches(name, schema.slot_names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(schema.slot_names[:20])}"
        raise ConfigError(f"--segment {text}: the schema has no slot {name!r}; {hint}")
    values = [value for value in listed.split(",") if value]
    keys = {feature_key(v.encode(), slot.prefix, schema.hash_seed, schema.sparse_feature_dim): v for v in values}
    return Segments(name, keys)
