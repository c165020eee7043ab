"""What a trainer asks of readers that it is given: threads as was said, and samples read as the model knows them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.inputs import READY, Inputs
from sparsefleet.core.schema.document import meaning_of
from sparsefleet.core.schema.kept_values import kept_hashes
from sparsefleet.data.base import Reader

logger = logging.getLogger("sparsefleet.train")

Document = Mapping[str, Any]

OF_KEYS = ("hash_prefix", "keys", "lower", "split", "length", "buckets", "derive", "cross")
"""Settings of a slot by which a value of the data gets its key."""
OF_BAGS = ("first", "missing", "rare")
"""Settings of a slot by which a sample has other values: another day's data may have others, what is scored may not."""
OF_NUMBERS = ("clip", "function", "missing")
"""Settings of a dense feature beside those that a document always has."""
OF_SCALE = ("minimum", "diff")
OF_FILES = ("name", "column", "min_count")
"""Where files have a feature says nothing of what it becomes; of a min_count the values that are kept count."""
OF_TIMES = ("hour", "weekday")
"""What slots derive of a time, which the schema's time_format says how to read."""
MOST = 5
"""Differences that are told one by one."""
VOUCH = "open_reader(…, same_inputs=True), or --same-inputs at the command line"


def threads_for(data: Reader, given: int | None, otherwise: int = 1) -> int:
    """`given`: Trainer(threads=…); the reader may have been told too (`set_thread`), and both must mean the same."""
    asked = data.asked_threads
    if given is not None and asked is not None and given != asked:
        raise ConfigError(
            f"Trainer(threads={given}), but the dataset says set_thread({asked}): both are the number of training "
            "threads; give one of them, or the same number"
        )
    return given or asked or otherwise


def require_same_threads(call: str, thread: int, data: Reader, given: int | None) -> None:
    """`thread`: what a call in the shape of Fluid's asks for, 0: nothing; who else says a number must mean the same."""
    if isinstance(thread, bool) or not isinstance(thread, int) or thread < 0:
        raise ConfigError(f"{call}: it must be a whole number, 0 for as many as the dataset says")
    others = {"Trainer(threads={})": given, "the dataset says set_thread({})": data.asked_threads}
    for words, number in others.items():
        if thread and number is not None and number != thread:
            raise ConfigError(
                f"{call}, but {words.format(number)}: both are the number of training threads; give one of them, or "
                "the same number"
            )


class TrainedOn:
    """How the samples were read that the trainer's model knows, and by which schema, once something is known of it."""

    def __init__(self) -> None:
        self._where, self._inputs, self._schema = "", None, None  # type: str, Inputs | None, Document | None

    @staticmethod
    def by(data: Reader) -> TrainedOn:
        """What a model knows once it is trained on this."""
        known = TrainedOn()
        known.learn(data)
        return known

    def learn(self, data: Reader) -> None:
        """The model is trained on this."""
        self._where, self._schema = "the model", data.schema.to_dict()
        self._inputs = data.inputs() or self._inputs

    def learn_saved(self, where: str, inputs: Document | None, schema: Document | None) -> None:
        """The model is what a checkpoint holds; None: it does not say that of its samples."""
        self._where, self._schema = where, schema
        self._inputs = None if inputs is None else Inputs.from_dict(inputs, f"{where}: inputs", CheckpointError)

    def check(self, data: Reader, what: str = "these samples") -> None:
        """Refuse samples to score that are read otherwise, or by a schema that makes other keys or numbers of them."""
        self._require_same_inputs(data)
        if self._schema is not None and not data.same_inputs:
            self._refuse(read_otherwise(self._schema, data.schema.to_dict(), self._ready(data)), what)

    def check_to_train_on(self, data: Reader, *, tell: bool) -> None:
        """Refuse samples that would have other keys than those before; there may be more features, or fewer.

        tell: log what else is otherwise.
        """
        self._require_same_inputs(data)
        problems, hints = self.differing_keys(data)
        self._refuse(problems, "these samples")
        for hint in hints if tell else ():
            logger.warning("%s: %s", self._where, hint)

    def differing_keys(self, data: Reader) -> tuple[list[str], list[str]]:
        """As the function of this name says it, of the model's samples and these."""
        if self._schema is None or data.same_inputs:
            return [], []
        return differing_keys(self._schema, data.schema.to_dict(), self._ready(data))

    def _require_same_inputs(self, data: Reader) -> None:
        if self._inputs is not None:
            self._inputs.require_same(data.inputs(), self._where, VOUCH)

    def _refuse(self, problems: Sequence[str], what: str) -> None:
        if problems:
            more = f"; and {len(problems) - MOST} differences more" if len(problems) > MOST else ""
            raise ConfigError(
                f"{self._where} was trained by another schema than that of {what}: {'; '.join(problems[:MOST])}{more}. "
                "Their keys and numbers would mean something else to it: read them by the schema of its training (a "
                "checkpoint has it: saved_model). If you know that both give the same keys and numbers, say " + VOUCH
            )

    def _ready(self, data: Reader) -> frozenset[str]:
        """Slots and dense features of which no schema makes anything, neither in training nor here."""
        here = data.inputs()
        if self._inputs is None or here is None:
            return frozenset()
        words = [{**inputs.dense, **inputs.slots} for inputs in (self._inputs, here)]
        raw = {name for side in words for name, word in side.items() if word != READY}
        return frozenset({*words[0], *words[1]} - raw)


def differing_schemas(then: Document, now: Document) -> list[str]:
    """In what two schemas differ, in words; of features the settings that differ.

    An order of lines that only one of them says is none: older releases left it out, and readers tell it (`Inputs`).
    """
    then, now = meaning_of(then), meaning_of(now)
    found = []
    for name in dict.fromkeys([*then, *now]):
        before, after = then.get(name), now.get(name)
        if before == after or (name == "multislot" and None in (before, after)):
            continue
        if name in ("dense", "slots", "more_labels"):
            found += _differing_parts(name, before or (), after or ())
        else:
            found.append(f"{name} is {before!r:.80} there, {after!r:.80} here")
    return found


def _differing_parts(what: str, then: Sequence[Document], now: Sequence[Document]) -> list[str]:
    before, after = ({one.get("name"): one for one in parts} for parts in (then, now))
    found = []
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            found.append(f"{what} has {name!r} only {'here' if name in after else 'there'}")
            continue
        one, other = before[name], after[name]
        for setting in dict.fromkeys([*one, *other]):
            mine, others = one.get(setting), other.get(setting)
            if mine != others:
                found.append(f"{setting} of {name!r} is {mine!r:.80} there, {others!r:.80} here")
    more = [f"{len(found) - MOST} more in {what}"] if len(found) > MOST else []
    return [*found[:MOST], *more] or [f"{what} are in another order"]


def differing_keys(then: Document, now: Document, ready: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Of two schemas, to train on: why the same value has another key, or numbers stand in another order; and what else
    makes samples look otherwise. In words.

    Features that only one of them has are fine: a new run may have more of them, or fewer. `ready`: those of which
    neither schema makes anything.
    """
    then, now = meaning_of(then), meaning_of(now)
    problems = [*_differing_hashing(then, now, ready), *_moved("labels", _labels(then), _labels(now))]
    releases = then.get("version"), now.get("version")
    for name, one, other in _shared("slots", then, now, ready):
        settings = _with_given(_of_keys(releases, one, other), one, other)
        problems += _differing_settings(f"slot {name!r}", one, other, settings)
    hints = []
    changed = [
        name
        for name, one, other in _shared("dense", then, now, ready)
        if _differing_settings(name, one, other, _with_given(OF_NUMBERS, one, other))
    ]
    if changed:
        hints.append(f"dense features are normalised otherwise here: {', '.join(changed[:MOST])}")
    before, after = _dense_names(then), _dense_names(now)
    if len(before) == len(after):  # else the layers that take them have another shape, and begin afresh
        problems += _moved("dense features", before, after)
        if replaced := _replaced(before, after):
            hints.append(f"dense features stand in the place of others: {'; '.join(replaced[:MOST])}")
    if other_times := _other_times(then, now, ready):
        hints.append(
            f"{other_times}: only if the times of these files are written in that other way do they get the keys that "
            "the model knows"
        )
    return problems, [*hints, *_other_kept_values(then, now)]


def _other_kept_values(then: Document, now: Document) -> list[str]:
    """Of slots that both have, where a min_count keeps other values: rows get no samples any more, or new ones."""
    before, after = then.get("kept", {}), now.get("kept", {})
    both = [{str(entry.get("name")) for entry in schema.get("slots", ())} for schema in (then, now)]
    told = []
    for name in dict.fromkeys([*before, *after]):
        if not all(name in names for names in both):
            continue
        if name not in before or name not in after:
            why = "rare values are told apart here" if name in before else "only here are values rare"
            told.append(f"{name} ({why})")
            continue
        old, new = (kept_hashes(kept[name], f"slot {name!r}") for kept in (before, after))
        gone, come = len(np.setdiff1d(old, new)), len(np.setdiff1d(new, old))
        if gone or come:
            told.append(f"{name} ({gone:,} of {len(old):,} are rare here, {come:,} new)")
    if not told:
        return []
    more = f" and {len(told) - MOST} more" if len(told) > MOST else ""
    return [
        f"other values are kept (min_count) of slot {', '.join(told[:MOST])}{more}: rows of values that are rare here "
        "get no samples any more. `sparsefleet data prepare --keep-constants` with the schema of before keeps its "
        "values"
    ]


def read_otherwise(then: Document, now: Document, ready: Collection[str] = ()) -> list[str]:
    """Of two schemas, to score: why a value has another key, or a number another value or place. In words.

    Slots that only one of them has are fine: a model that lacks one says so itself. `ready`: features of which neither
    schema makes anything.
    """
    then, now = meaning_of(then), meaning_of(now)
    found = [*_differing_hashing(then, now, ready), *_moved("labels", _labels(then), _labels(now))]
    releases = then.get("version"), now.get("version")
    for name, one, other in _shared("slots", then, now, ready):
        found += _differing_settings(f"slot {name!r}", one, other, (*_of_keys(releases, one, other), *OF_BAGS))
        if _kept(then, name) != _kept(now, name):
            found.append(f"slot {name!r} has other rare values (min_count)")
    if other_times := _other_times(then, now, ready):
        found.append(other_times)
    for name, one, other in _shared("dense", then, now, ready):
        found += _differing_settings(f"dense feature {name!r}", one, other, (*OF_NUMBERS, *OF_SCALE))
    before, after = _dense_names(then), _dense_names(now)
    found += _moved("dense features", before, after)
    # Whoever has made all numbers may call them as they like.
    if len(before) == len(after) and not ({*before}.isdisjoint(after) and {*before, *after} <= {*ready}):
        found += _replaced(before, after)
    return found


def _other_times(then: Document, now: Document, ready: Collection[str]) -> str | None:
    """In words, where the same text of a time is read as another time and a slot that both have is made of it.

    It is a setting of files: other files may have the same times in another format. A number means the same to auto as
    to seconds, and the text that auto takes besides is none to seconds.
    """
    before, after = (str(schema.get("time_format") or "auto") for schema in (then, now))
    if before == after or {before, after} == {"auto", "seconds"}:
        return None
    slots = [
        name
        for name, one, other in _shared("slots", then, now, ready)
        if one.get("derive") in OF_TIMES and other.get("derive") in OF_TIMES
    ]
    if not slots:
        return None
    of = f"slot {', '.join(map(repr, slots[:MOST]))}" + (f" and {len(slots) - MOST} more" if len(slots) > MOST else "")
    return f"time_format, by which {of} is made, is {before!r} there, {after!r} here"


def _differing_hashing(then: Document, now: Document, ready: Collection[str]) -> list[str]:
    hashed = any(True for _ in _shared("slots", then, now, ready)) or not any(True for _ in _shared("slots", then, now))
    return [
        f"{name} is {then[name]!r} there, {now[name]!r} here"
        for name in ("sparse_feature_dim", "hash_seed")
        if name in then and name in now and then[name] != now[name] and (hashed or name != "hash_seed")
    ]


def _shared(
    part: str, then: Document, now: Document, left_out: Collection[str] = ()
) -> Iterator[tuple[str, Document, Document]]:
    """Name, and what each schema says, of the features that both have."""
    before = {str(entry.get("name")): entry for entry in then.get(part, ())}
    for entry in now.get(part, ()):
        name = str(entry.get("name"))
        if name in before and name not in left_out:
            yield name, before[name], entry


def _of_keys(releases: tuple[Any, Any], one: Document, other: Document) -> Sequence[str]:
    """Settings that decide a value's key. In version 1 whole numbers were keys in all slots: such a slot is what one of
    ready-made keys is now, and to which nothing is put in front."""
    if releases[0] == releases[1]:
        return OF_KEYS
    without = ("keys", "hash_prefix") if one.get("keys") or other.get("keys") else ("keys",)
    return [name for name in OF_KEYS if name not in without]


def _with_given(decisive: Sequence[str], one: Document, other: Document) -> list[str]:
    """And the settings that both give, of which a new run may have others only where one has none."""
    passed_over = (*decisive, *OF_KEYS, *OF_FILES)
    return [*decisive, *(name for name in one if name in other and name not in passed_over)]


def _differing_settings(what: str, one: Document, other: Document, settings: Sequence[str]) -> list[str]:
    return [
        f"{name} of {what} is {_given(one, name)!r:.80} there, {_given(other, name)!r:.80} here"
        for name in settings
        if _given(one, name) != _given(other, name)
    ]


def _given(entry: Document, key: str) -> Any:
    """A document leaves out what has its default."""
    value = entry.get(key)
    if value is None and key == "hash_prefix":
        return f"{entry.get('name')}\x1f"
    return None if value is False else value


def _kept(schema: Document, name: str) -> str | None:
    """The values of a slot that are not rare, without what they were counted by (`core/schema/kept_values.py`)."""
    text = schema.get("kept", {}).get(name)
    return None if text is None else str(text).partition(" ")[2]


def _dense_names(schema: Document) -> list[str]:
    return [str(entry.get("name")) for entry in schema.get("dense", ())]


def _labels(schema: Document) -> list[str]:
    return [str(schema.get("label")), *(str(entry.get("name")) for entry in schema.get("more_labels", ()))]


def _moved(what: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """A network knows numbers, and a loss labels, by their place alone."""
    for place, name in enumerate(before, 1):
        if name in after and after.index(name) + 1 != place:
            here = after.index(name) + 1
            return [f"{what} are in another order: {name!r} is number {place} there, {here} here"]
    return []


def _replaced(before: Sequence[str], after: Sequence[str]) -> list[str]:
    return [
        f"dense feature number {place} is {old!r} there, {new!r} here"
        for place, (old, new) in enumerate(zip(before, after, strict=True), 1)
        if old not in after and new not in before
    ]
