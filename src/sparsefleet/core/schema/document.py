"""A schema as a plain document, the content of its JSON or TOML file: every field by its name, defaults left out.

Version 1 had neither transforms nor several labels, and took a whole number in a slot as a feature key; a document of
version 1 keeps that meaning, and is written as version 1 again. In version 2 a whole number in a slot is hashed as its
decimal text, in every format, unless the slot is marked as ready-made keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema.csv_dialect import CsvDialect
from sparsefleet.core.schema.features import DenseFeature, Label, Slot

if TYPE_CHECKING:
    from sparsefleet.core.schema.schema import Schema

FORMAT = "sparsefleet-schema"
VERSION = 2

_WRONG = "a field is missing, surplus or mistyped"

T = TypeVar("T")


def to_document(schema: Schema) -> dict[str, Any]:
    """Plain JSON. What has its default value is left out, but for what version 1 had."""
    always = ("dense", "slots", "label", "sparse_feature_dim", "hash_seed")
    document = {"format": FORMAT, "version": schema.version, **_as_plain(schema, always)}
    keep: dict[str, tuple[str, ...]] = {"dense": ("minimum", "diff"), "slots": ("hash_prefix",)}
    for name, kept in keep.items():
        document[name] = [_as_plain(part, ("name", *kept)) for part in getattr(schema, name)]
    kept_values = {slot.name: slot.kept for slot in schema.slots if slot.kept is not None}
    for part in document["slots"]:
        part.pop("kept", None)
    for part, feature in zip(document["dense"], schema.dense, strict=True):
        if not feature.measured:
            del part["minimum"], part["diff"]
    document["more_labels"] = [_as_plain(extra, ("name",)) for extra in schema.more_labels]
    if not schema.more_labels:
        del document["more_labels"]
    if schema.csv is not None:
        document["csv"] = _as_plain(schema.csv, ("delimiter", "header"))
    document["version"] = schema.version
    if kept_values:
        document["kept"] = kept_values
    return document


def from_document(kind: type[Schema], data: Mapping[str, Any], where: str) -> Schema:
    """`kind`: the class, which stands above this module."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ConfigError(f"{where}: not a {FORMAT} document")
    version = data.get("version")
    if isinstance(version, bool) or version not in (1, VERSION):
        raise ConfigError(f"{where}: schema version {version!r}; this release reads versions 1 and {VERSION}")
    given = {name: value for name, value in data.items() if name != "format"}
    try:
        if version == 1:
            _check_version_1(given)
        parts: dict[str, Any] = {
            "label": given["label"],
            "dense": _parts(DenseFeature, given["dense"], "dense"),
            "slots": _with_kept(_parts(Slot, given["slots"], "slots"), given.pop("kept", {})),
            "more_labels": _parts(Label, given.get("more_labels", []), "more_labels"),
        }
        if given.get("csv") is not None:
            parts["csv"] = _part(CsvDialect, given["csv"], "csv")
        return _part(kind, {**given, **parts}, "the document")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except (KeyError, TypeError, OverflowError) as error:
        raise ConfigError(f"{where}: {_WRONG}: {error}") from error


def meaning_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without the settings that only `data prepare` reads (`buckets`, `minimum` and `diff` alone count), and
    without what JSON lines may be without, which says nothing of what a sample becomes.
    """
    asked = ("quantiles", "measure")
    parts = {name: document[name] for name in ("dense", "slots") if name in document}
    told = {name: [{k: v for k, v in one.items() if k not in asked} for one in part] for name, part in parts.items()}
    return {name: value for name, value in {**document, **told}.items() if name != "optional"}


def _as_plain(part: Any, always: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them; without those that have their default."""
    plain = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if each.name in always or each.default is MISSING or value != each.default:
            plain[each.name] = list(value) if isinstance(value, tuple) else value
    return plain


def _part(kind: type[T], given: Any, where: str) -> T:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{_WRONG}: {where} must be a table of settings, not {given!r:.60}")
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    surplus = [str(name) for name in given if name not in known]
    if surplus:
        raise ConfigError(f"{_WRONG}: {where} has {surplus[0]!r}; there is {', '.join(known)}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _parts(kind: type[T], given: Any, where: str) -> tuple[T, ...]:
    if not isinstance(given, list | tuple):
        raise ConfigError(f"{_WRONG}: {where} must be a list, not {given!r:.60}")
    return tuple(_part(kind, one, f"{where}[{index}]") for index, one in enumerate(given))


def _with_kept(slots: tuple[Slot, ...], given: Any) -> tuple[Slot, ...]:
    """Kept values stand behind everything else in a document, by slot: nobody edits them."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{_WRONG}: kept must be a table of slots, not {given!r:.60}")
    unknown = [name for name in given if name not in [slot.name for slot in slots]]
    if unknown:
        raise ConfigError(f"kept has values of {unknown[0]!r}, which is no slot; take it out, or put the slot back")
    return tuple(replace(slot, kept=given[slot.name]) if slot.name in given else slot for slot in slots)


def _check_version_1(given: Mapping[str, Any]) -> None:
    """Documents of version 1 have every field, and no other."""
    for name in ("dense", "slots", "label", "sparse_feature_dim", "hash_seed"):
        given[name]  # a KeyError says which one is missing
    for name, wanted in (("dense", {"name", "minimum", "diff"}), ("slots", {"name", "hash_prefix"})):
        for one in given[name]:
            surplus = set(one) - wanted
            if surplus:
                raise ConfigError(f"{_WRONG}: {name} of version 1 has no {sorted(surplus)[0]!r}")
