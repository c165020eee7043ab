"""The plan of a record, made of a schema: which columns are used, and what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.core.schema.kept_values import kept_hashes
from sparsefleet.kernels.record_types import (
    DensePlan,
    Function,
    LabelPlan,
    RecordPlan,
    SlotOf,
    SlotPlan,
    TimeFormat,
)

_FUNCTIONS = {None: Function.IDENTITY, "log1p": Function.LOG1P, "ln2": Function.LN2}
_DERIVED = {"hour": SlotOf.HOUR, "weekday": SlotOf.WEEKDAY, "ln2": SlotOf.LN2}
_TIMES = {
    "auto": TimeFormat.AUTO,
    "seconds": TimeFormat.SECONDS,
    "milliseconds": TimeFormat.MILLISECONDS,
    "yymmddhh": TimeFormat.YYMMDDHH,
}


def beside_features(schema: Schema) -> tuple[str, ...]:
    """The columns that are no features: labels, weight, group, time."""
    more = [name for name in (schema.weight, schema.group, schema.time) if name is not None]
    return tuple(dict.fromkeys([*schema.labels, *more]))


def record_plan(
    schema: Schema,
    *,
    labelled: bool = True,
    text_keys: bool = False,
    there: Collection[str] | None = None,
    features_only: bool = False,
) -> RecordPlan:
    """`there`: the columns that the data has; None: any.

    labelled=False: labels, weight, group and time may be absent. features_only: they are not looked at (requests).
    """
    if schema.version == 1:
        raise ConfigError(
            "the schema is of version 1, where a whole number in a slot is a feature key: for CSV, JSON lines and "
            "transforms make it version 2, where it is hashed as text unless the slot has keys = true"
        )
    schema.require_measured()
    names = list(schema.fields)
    if not features_only:
        for name in beside_features(schema):
            absent = there is not None and name not in there
            if name not in names and (labelled or not absent):
                names.append(name)
    place = {name: index for index, name in enumerate(names)}

    def beside(name: str | None) -> int:
        return -1 if name is None or features_only else place.get(name, -1)

    labels = schema.labels
    conditions = schema.label_conditions
    return RecordPlan(
        fields=tuple(names),
        dense=tuple(_dense(feature, place) for feature in schema.dense),
        slots=tuple(_slot(slot, place, schema) for slot in schema.slots),
        labels=tuple(
            LabelPlan(
                beside(name),
                labels.index(conditions[name]) if name in conditions else -1,
                labelled and (name == schema.label or name in conditions),
            )
            for name in labels
        ),
        weight=beside(schema.weight),
        group=beside(schema.group),
        time=beside(schema.time),
        time_format=int(_TIMES[schema.time_format]),
        seed=schema.hash_seed,
        dim=schema.sparse_feature_dim,
        text_keys=text_keys,
    )


def _dense(feature: DenseFeature, place: dict[str, int]) -> DensePlan:
    low, high = feature.clip if feature.clip is not None else (-math.inf, math.inf)
    missing = math.nan if feature.missing is None else float(feature.missing)
    function = int(_FUNCTIONS[feature.function])
    numbers = float(feature.minimum), float(feature.diff), float(low), float(high)
    return DensePlan(place[feature.source], *numbers, function, missing)


def _slot(slot: Slot, place: dict[str, int], schema: Schema) -> SlotPlan:
    kind = SlotOf.KEYS if slot.keys else SlotOf.HASHED
    if slot.derive is not None:
        kind = _DERIVED[slot.derive]
    elif slot.buckets is not None:
        kind = SlotOf.BUCKETS
    elif slot.cross is not None:
        kind = SlotOf.CROSS
    return SlotPlan(
        kind=int(kind),
        field=-1 if slot.cross is not None else place[slot.source],
        prefix=slot.prefix,
        lower=slot.lower,
        split=ord(slot.split) if slot.split else 0,
        first=slot.first or 0,
        length=slot.length or 0,
        has_missing=slot.missing is not None,
        missing=(slot.missing or "").encode(),
        buckets=[float(bound) for bound in slot.buckets or ()],
        cross=[schema.slot_names.index(name) for name in slot.cross or ()],
        filtered=slot.min_count is not None,
        kept=np.empty(0, np.uint64) if slot.kept is None else kept_hashes(slot.kept, f"slot {slot.name!r}"),
        has_rare=slot.rare is not None,
        rare=(slot.rare or "").encode(),
    )
