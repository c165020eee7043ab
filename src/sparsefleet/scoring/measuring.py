"""Which metrics a data set is scored by, besides AUC and the like: what its schema asks for, and what a user does."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema, Slot
from sparsefleet.core.xxh64 import xxh64
from sparsefleet.data.formats.tables import TableAssembler
from sparsefleet.kernels.text import feature_key
from sparsefleet.metrics import Calibration, GroupAUC, LabelMetrics, Metric, Segments, label_names


def metrics_of(schema: Schema, calibration: bool = False, segments: Sequence[str] = ()) -> tuple[Metric, ...]:
    """Of each label but the first, its own; within groups, where samples have them; and what is asked for.

    `segments`: slots, or SLOT=VALUE,VALUE, whose values are then called so: as the data has them, before transforms.
    """
    names = label_names(schema)
    made: list[Metric] = [LabelMetrics(name, index) for index, name in enumerate(names) if index]
    if getattr(schema, "group", None) is not None:
        made.append(GroupAUC(no_group=xxh64(b"", schema.hash_seed)))
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
    named: dict[int, str] = {}
    for value in dict.fromkeys(value for value in listed.split(",") if value):
        key = _key(schema, slot, value, text)
        named[key] = f"{named[key]}, {value}" if key in named else value
    return Segments(name, named)


def _key(schema: Schema, slot: Slot, value: str, text: str) -> int:
    """The key that the data's value gets in this slot, transforms and all; of a timestamp's hour, the hour's."""
    if slot.cross is not None:
        raise ConfigError(
            f"--segment {text}: {slot.name} is a cross, whose values have no names; say --segment {slot.name}"
        )
    if schema.version == 1 or slot.derive in ("hour", "weekday"):
        return feature_key(value.encode(), slot.prefix, schema.hash_seed, schema.sparse_feature_dim)
    # The code that reads samples makes the key: there is one opinion on what a value means.
    alone = replace(schema, dense=(), slots=(slot,), csv=None)
    given = int(value) if slot.keys and value.isdecimal() else value
    made = TableAssembler(alone, features_only=True).objects({slot.source: [given]}, 1)
    if made.first_bad is not None:
        raise ConfigError(f"--segment {text}: {value!r} is no value of slot {slot.name}: {made.reason(0).text}")
    keys = made.batch.keys.tolist()
    if len(keys) != 1:
        why = "is several values" if keys else f"is rare (min_count {slot.min_count}), so it is missing"
        raise ConfigError(f"--segment {text}: {value!r} {why}; name values one by one that the slot keeps")
    return int(keys[0])
