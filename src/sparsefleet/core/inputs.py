"""Inputs: how the samples of a training were read, so that whoever scores later reads them in the same way.

A schema says how raw values become keys and numbers, but not whether anybody asked it: a data generator behind a
`pipe_command` hashes and normalises by itself, and its samples hold keys. Read raw with the schema, the same files give
other keys, and a model scores them like noise. So a reader tells, for each slot and each dense feature:

- raw: the schema hashes the value, or normalises the number;
- ready: a key, or a number as the network sees it, made by whoever wrote the sample;
- either: both occur (a Python dict may hold text or keys), or it is not known.

It also tells in which order it finds the slots of a line that has no names.

Training puts this into its checkpoints, an export into the bundle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.core.json_fields import Fields, encodes, short
from sparsefleet.core.layout import dense_in, with_layout
from sparsefleet.core.schema import DenseFeature, Schema, Slot

RAW, READY, EITHER = "raw", "ready", "either"
WORDS = (RAW, READY, EITHER)
MAX_COMMAND = 100_000
"""Characters of a pipe command; a shell takes no longer one."""

Layout = tuple[tuple[str, str], ...]
Held = tuple[str, str]
"""What a slot of a line holds: its kind, and the name of a slot or dense feature."""


@dataclass(frozen=True, slots=True)
class Inputs:
    format: str
    """The format of the files (criteo, multislot, pipe, parquet), or python for objects that a script handed in."""
    slots: Mapping[str, str]
    """Of each slot: raw, ready or either."""
    dense: Mapping[str, str]
    """Of each dense feature: raw, ready or either."""
    pipe_command: str | None = None
    hash_seed: str | None = None
    """PYTHONHASHSEED of the pipe command: a generator may use Python's own `hash`."""
    layout: Layout | None = None
    """multislot, pipe: (name, kind) of each slot of a sample, in order."""

    @staticmethod
    def of_schema(format: str, schema: Schema, word: str, **more: Any) -> Inputs:
        """All slots and dense features alike."""
        return Inputs(format, dict.fromkeys(schema.slot_names, word), dict.fromkeys(schema.dense_names, word), **more)

    @staticmethod
    def raw(format: str, schema: Schema) -> Inputs:
        """Raw, but for the slots that the schema marks as ready-made keys."""
        words = {slot.name: READY if slot.keys else RAW for slot in schema.slots}
        return Inputs(format, words, dict.fromkeys(schema.dense_names, RAW))

    def vouched(self) -> Inputs:
        """The same, where somebody says that it makes no difference how samples are read."""
        return replace(self, slots=dict.fromkeys(self.slots, EITHER), dense=dict.fromkeys(self.dense, EITHER))

    @property
    def ready_slots(self) -> tuple[str, ...]:
        return tuple(name for name, word in self.slots.items() if word == READY)

    @property
    def ready_dense(self) -> tuple[str, ...]:
        return tuple(name for name, word in self.dense.items() if word == READY)

    def source(self) -> str:
        """Where the values came from, in words."""
        if self.pipe_command is not None:
            return f"what the pipe command {self.pipe_command!r} printed"
        if self.format == "python":
            return "samples that a script handed in"
        return f"{self.format} files"

    def maker(self) -> str:
        """Who made the ready values, in words."""
        if self.pipe_command is not None:
            return f"the pipe command {self.pipe_command!r}"
        return "the training script" if self.format == "python" else f"whoever wrote the {self.format} files"

    def differences(self, here: Inputs, words: tuple[str, str] = ("in training", "here")) -> list[str]:
        """What `here` reads otherwise than training did, in words; `words` name the two sides."""
        then, now = words
        found = []
        for what, mine, theirs in (("slot", self.slots, here.slots), ("dense feature", self.dense, here.dense)):
            differing = [name for name in mine if name in theirs and {mine[name], theirs[name]} == {RAW, READY}]
            if differing:
                first = differing[0]
                sides = f"{_meaning(what, mine[first])} {then}, {_meaning(what, theirs[first])} {now}"
                found.append(f"{what} {_some(differing)}: {sides}")
        if self.pipe_command is not None and here.pipe_command is not None and self.hash_seed != here.hash_seed:
            found.append(f"PYTHONHASHSEED of the pipe command: {self.hash_seed} {then}, {here.hash_seed} {now}")
        return found

    def other_order(self, here: Inputs) -> str | None:
        """That `here` finds ready values at other places of a line, in words; None: it does not, or there are no lines.

        Apart from `differences`: a request to a served model is by name, in whatever order lines were.
        """
        if self.layout is None or here.layout is None:
            return None
        mine, others = self._line(), here._line()
        both = {one for _, held in mine for one in held} & {one for _, held in others for one in held}
        mine = [(name, held & both) for name, held in mine if held & both]
        others = [(name, held & both) for name, held in others if held & both]
        if [held for _, held in mine] == [held for _, held in others]:
            return None
        pairs = enumerate(zip(mine, others, strict=False))
        first = next((place for place, (one, other) in pairs if one[1] != other[1]), min(len(mine), len(others)))
        return f"a line is ({_from(mine, first)}) in training, ({_from(others, first)}) here"

    def _line(self) -> list[tuple[str, frozenset[Held]]]:
        """The slots of a line, each with its ready keys or numbers, or the label."""
        ready = {*(("sparse", name) for name in self.ready_slots), *(("dense", name) for name in self.ready_dense)}
        line: list[tuple[str, frozenset[Held]]] = []
        for name, kind in self.layout or ():
            held = dense_in(name, list(self.dense)) if kind == "dense" else [name]
            found = ready & {(kind, one) for one in held}
            line.append((name, frozenset({("label", "")} if kind == "label" else found)))
        return line

    def require_same(self, here: Inputs | None, where: str, how: str) -> None:
        """Refuse samples that are not read as the model's were. `where`: the model; `how`: how to vouch for them."""
        differing = [] if here is None else self.differences(here)
        moved = None if here is None else self.other_order(here)
        if moved is not None:
            differing.append(moved)
        if not differing:
            return
        met = "keys that it has never met"
        if differing == [moved]:
            names = json.dumps([name for name, _ in self.layout or ()], ensure_ascii=False)
            met = "values of other slots"
            advice = f"read them in the order of training, by set_use_var or in the schema, multislot = {names}"
        elif self.pipe_command is not None:
            advice = f"read them through the same command (pipe_command, --pipe-command {self.pipe_command!r})"
            if self.layout is not None:
                advice += ", or give files that hold its output (format multislot)"
        elif self.format == "python":
            advice = "hand in samples as the training script did"
        else:
            advice = f"give {self.format} files as in training"
        raise ConfigError(
            f"{where} was trained on {self.source()}; these samples would be read otherwise ({'; '.join(differing)}), "
            f"and scored on {met}: {advice}. If you know that this gives the same keys and numbers, say {how}"
        )

    def served_schema(self, schema: Schema) -> Schema:
        """The schema by which a request is read: numbers and keys that came ready are taken as they are."""
        ready = set(self.ready_dense)
        dense = tuple(DenseFeature(f.name) if f.name in ready else f for f in schema.dense)
        return replace(self.with_ready_keys(schema), dense=dense)

    def with_ready_keys(self, schema: Schema) -> Schema:
        """The schema with the slots marked whose keys came ready. In version 1 whole numbers are keys in any case."""
        keys = set(self.ready_slots)
        if schema.version == 1 or not keys:
            return schema
        slots = tuple(Slot(s.name, s.hash_prefix, keys=True) if s.name in keys else s for s in schema.slots)
        return replace(schema, slots=slots)

    def ordered(self, schema: Schema) -> Schema:
        """The schema with the order in which lines were read, where it says none: those of an older release do not."""
        return schema if self.layout is None else with_layout(schema, self.layout)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "pipe_command": self.pipe_command,
            "hash_seed": self.hash_seed,
            "layout": None if self.layout is None else [list(entry) for entry in self.layout],
            "slots": dict(self.slots),
            "dense": dict(self.dense),
        }

    @staticmethod
    def from_dict(data: Any, where: str, error: type[SparseFleetError] = ConfigError) -> Inputs:
        """Strictly: the document may be of any origin."""
        kind = type("InputFields", (Fields,), {"error": error})
        fields = kind(data, where)
        inputs = Inputs(
            format=fields.text("format"),
            pipe_command=_text(fields, "pipe_command", MAX_COMMAND),
            hash_seed=_text(fields, "hash_seed", 20),
            layout=_layout(fields),
            slots=_words(fields, "slots"),
            dense=_words(fields, "dense"),
        )
        fields.end()
        return inputs


def pipe_advice(inputs: Inputs) -> str:
    """For people who look at a model: what a client has to send. Empty where the schema says it all."""
    said = []
    if inputs.ready_slots:
        said.append(f"feature keys (whole numbers) for {_some(inputs.ready_slots)}")
    if inputs.ready_dense:
        said.append(f"numbers that are normalised already for {_some(inputs.ready_dense)}")
    return f"{' and '.join(said)}, as made by {inputs.maker()}" if said else ""


def _meaning(what: str, word: str) -> str:
    if what == "slot":
        return "ready-made keys" if word == READY else "values to hash"
    return "ready-made numbers" if word == READY else "raw numbers to normalise"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _from(line: Sequence[tuple[str, frozenset[Held]]], first: int, most: int = 6) -> str:
    """Names of a line's slots, from the first that is to be seen."""
    names = [name for name, _ in line]
    shown = names[first : first + most]
    return ", ".join([*(["…"] if first else []), *shown, *(["…"] if first + most < len(names) else [])])


def _text(fields: Fields, name: str, longest: int) -> str | None:
    value = fields.take(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > longest or not encodes(value):
        raise fields.fail(name, f"must be null or text of at most {longest} characters, not {short(value)}")
    return value


def _layout(fields: Fields) -> Layout | None:
    value = fields.take("layout")
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry) for entry in value
    ):
        raise fields.fail("layout", f"must be null or a list of [name, kind], not {short(value)}")
    return tuple((name, kind) for name, kind in value)


def _words(fields: Fields, name: str) -> dict[str, str]:
    value = fields.mapping(name)
    for key, word in value.items():
        if word not in WORDS or not encodes(key):
            raise fields.fail(name, f"says {short(word)} of {short(key)}; allowed are {', '.join(WORDS)}")
    return dict(value)
