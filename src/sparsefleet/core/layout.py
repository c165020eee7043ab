"""Layout: the order of the slots in a MultiSlot line, and in a sample by position, with the kind of each.

A schema's `multislot` says the order where it is not the usual one. A reader may be told it instead (`set_use_var`);
`with_layout` then puts it into the schema, which is what goes into checkpoints and bundles: whoever reads such lines
later reads them in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sparsefleet.core.schema import Schema

Layout = Sequence[tuple[str, str]]
"""(name, kind) of every slot in order; kind is dense, sparse or label.

A dense slot that has the name of a dense feature holds that one. A slot `x` holds the features x_1, x_2, … where there
are such; under any other name it holds them all.
"""

ALL_DENSE = "dense_feature"
"""What the default layout calls the slot of all dense values, as the seeds do."""


def default_layout(schema: Schema, labelled: bool = True) -> list[tuple[str, str]]:
    """The order that the schema says, or the usual one: all dense values as one slot, the slots, the label."""
    if schema.multislot is not None:
        kinds = {**dict.fromkeys(schema.slot_names, "sparse"), schema.label: "label"}
        named = [(name, kinds.get(name, "dense")) for name in schema.multislot]
        return [(name, kind) for name, kind in named if labelled or kind != "label"]
    dense = [(ALL_DENSE, "dense")] if schema.dense else []
    label = [(schema.label, "label")] if labelled else []
    return [*dense, *((name, "sparse") for name in schema.slot_names), *label]


def dense_in(slot: str, names: Sequence[str]) -> list[str]:
    """The dense features that a dense slot holds."""
    if slot in names:
        return [slot]
    part = re.compile(re.escape(slot) + r"_[0-9]+")
    return [name for name in names if part.fullmatch(name)] or list(names)


def with_layout(schema: Schema, layout: Layout) -> Schema:
    """The schema with this order as its `multislot`; the schema itself where it says an order, or where this is the
    usual one.

    Lines without a label have it last here: who reads them leaves it out. An order that a schema cannot say (a name
    given twice) is left out: then a reader that goes by the schema is told that it reads otherwise (`Inputs`).
    """
    labelled = any(kind == "label" for _, kind in layout)
    wanted, usual = _parts(layout, schema), _parts(default_layout(schema, labelled), schema)
    if schema.multislot is not None or schema.csv is not None or schema.version == 1 or wanted == usual:
        return schema
    names = [schema.label if kind == "label" else name for name, kind in layout]
    names += [] if labelled else [schema.label]
    if len(set(names)) < len(names) or not {*schema.slot_names, schema.label} <= set(names):
        return schema
    told = replace(schema, multislot=tuple(names))
    return told if _parts(default_layout(told, labelled), schema) == wanted else schema


def _parts(layout: Layout, schema: Schema) -> list[tuple[str, tuple[str, ...]]]:
    """What the slots of a line hold, whatever they are called."""
    held = {"dense": lambda name: dense_in(name, schema.dense_names), "label": lambda name: [schema.label]}
    return [(kind, tuple(held[kind](name) if kind in held else [name])) for name, kind in layout]
