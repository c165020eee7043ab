"""What a trainer asks of readers that it is given: threads as was said, and samples read as the model knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.schema.document import meaning_of
from sparsefleet.data.base import Reader

OF_KEYS = ("hash_prefix", "keys", "lower", "split", "length", "buckets", "derive", "cross")
"""Settings of a slot by which a value of the data gets its key."""
OF_NUMBERS = ("clip", "function", "missing")
"""Settings of a dense feature beside those that a document always has."""
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


class TrainedOn:
    """How the samples were read that the trainer's model knows, once something is known of it."""

    def __init__(self) -> None:
        self._where, self._inputs = "", None  # type: str, Inputs | None

    def learn(self, where: str, inputs: Inputs | None) -> None:
        if inputs is not None:
            self._where, self._inputs = where, inputs

    def learn_saved(self, where: str, saved: Mapping[str, Any] | None) -> None:
        if saved is not None:
            self.learn(where, Inputs.from_dict(saved, f"{where}: inputs", CheckpointError))

    def check(self, data: Reader) -> None:
        """Refuse samples that are read otherwise."""
        if self._inputs is not None:
            self._inputs.require_same(data.inputs(), self._where, VOUCH)


def differing_schemas(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In what two schemas differ, in words; of features the settings that differ."""
    then, now = meaning_of(then), meaning_of(now)
    found = []
    for name in dict.fromkeys([*then, *now]):
        before, after = then.get(name), now.get(name)
        if before == after:
            continue
        if name in ("dense", "slots", "more_labels"):
            found += _differing_parts(name, before or (), after or ())
        else:
            found.append(f"{name} is {before!r:.80} there, {after!r:.80} here")
    return found


def _differing_parts(
    what: str, then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], most: int = 5
) -> list[str]:
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
    more = [f"{len(found) - most} more in {what}"] if len(found) > most else []
    return [*found[:most], *more] or [f"{what} are in another order"]


def differing_keys(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Of two schemas: why the same value has another key; and what else makes samples look otherwise. In words.

    Slots and dense features that only one of them has are fine: a new run may have more of them, or fewer.
    """
    problems = [
        f"{name} is {then[name]!r} there, {now[name]!r} here"
        for name in ("sparse_feature_dim", "hash_seed")
        if name in then and name in now and then[name] != now[name]
    ]
    then, now = meaning_of(then), meaning_of(now)
    problems += [f"slot {name}" for name in _differing(then.get("slots", ()), now.get("slots", ()), OF_KEYS)]
    changed = _differing(then.get("dense", ()), now.get("dense", ()), OF_NUMBERS)
    hints = [f"dense features are normalised otherwise here: {', '.join(changed[:5])}"] if changed else []
    return problems, hints


def _differing(
    then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], decisive: Sequence[str]
) -> list[str]:
    """Names of those that both have, and that say different things: of the decisive settings, which have their default
    where they are not given, and of others that both give."""
    before = {str(entry.get("name")): entry for entry in then}
    shared = [(str(entry.get("name")), entry) for entry in now if str(entry.get("name")) in before]
    return [
        name
        for name, entry in shared
        if any(key in entry and entry[key] != value for key, value in before[name].items())
        or any(_given(before[name], key) != _given(entry, key) for key in decisive)
    ]


def _given(entry: Mapping[str, Any], key: str) -> Any:
    value = entry.get(key)
    return None if value is False else value
