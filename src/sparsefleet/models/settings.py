"""Settings of a model: a frozen dataclass, a line of help for each field, and how a text (`--set name=value`) is read.

A setting is a whole number, a number, yes or no, text, or a list of whole numbers or of texts (a tuple in Python).
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from sparsefleet.core.errors import ConfigError

T = TypeVar("T")
HELP, CHOICES = "help", "choices"


def setting(default: T, help: str, choices: Sequence[str] = ()) -> T:
    """A field of a settings dataclass: its default, its line of help and, of a text, what it may be."""
    made: T = field(default=default, metadata={HELP: help, CHOICES: tuple(choices)})
    return made


@dataclass(frozen=True)
class Settings:
    """Derive from it, with `setting(…)` for each field; `checks` says what is sensible."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            choices, value = entry.metadata.get(CHOICES, ()), getattr(self, entry.name)
            if choices and value not in choices:
                raise ConfigError(f"{entry.name}={value!r} is not a choice; choose {' or '.join(choices)}")
        self.checks()

    def checks(self) -> None:
        """Refuse settings that make no model, with `self.require`."""

    def require(self, name: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise ConfigError(f"{name}={_text(getattr(self, name))} must be {wanted}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> typing.Self:
        """What `to_dict` gave: TypeError where a setting is unknown or of another type."""
        kinds = typing.get_type_hints(cls)
        known = {entry.name for entry in fields(cls)}
        if unknown := sorted(data.keys() - known):
            raise TypeError(f"unknown settings {', '.join(unknown)}")
        return cls(**{name: _checked(name, kinds[name], value) for name, value in data.items()})


@dataclass(frozen=True)
class Described:
    """One setting, for people."""

    name: str
    kind: str
    default: str
    help: str


def described(model: type) -> list[Described]:
    """The settings of a model's class, as `sparsefleet models` shows them."""
    found = []
    for name, (kind, default, help) in _known(model).items():
        shown = "" if default is MISSING else _text(default)
        found.append(Described(name, _kind_text(kind), shown, help))
    return found


def from_texts(model: type, given: Mapping[str, str]) -> dict[str, Any]:
    """Settings of this class from texts, by the types of its fields; those that it lacks are refused."""
    known = _known(model)
    made = {}
    for name, text in given.items():
        if name not in known:
            raise ConfigError(
                f"{_called(model)} has no setting {name!r}; "
                + (f"it has {', '.join(known)}" if known else "it has no settings at all")
            )
        made[name] = _parsed(name, known[name][0], text)
    return made


def has_setting(model: type, name: str) -> bool:
    return name in _known(model)


def _called(model: type) -> str:
    return str(vars(model).get("name", model.__qualname__))


def _known(model: type) -> dict[str, tuple[Any, Any, str]]:
    """Type, default and help of each setting: of the class's `Settings`, else of the arguments of `from_schema`."""
    kept = getattr(model, "Settings", None)
    if isinstance(kept, type) and is_dataclass(kept):
        kinds = typing.get_type_hints(kept)
        return {
            entry.name: (kinds[entry.name], entry.default, str(entry.metadata.get(HELP, ""))) for entry in fields(kept)
        }
    made: Callable[..., Any] | None = getattr(model, "from_schema", None)
    if made is None:
        return {}
    hints = typing.get_type_hints(made)
    found = {}
    for name, parameter in list(inspect.signature(made).parameters.items())[1:]:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            default = MISSING if parameter.default is parameter.empty else parameter.default
            found[name] = (hints.get(name, str), default, "")
    return found


def _parsed(name: str, kind: Any, text: str) -> Any:
    """The value that a text stands for."""
    wrong = ConfigError(f"{name}={text}: give {_kind_text(kind)}")
    kind = _without_none(kind)
    parts = _items_of(kind)
    try:
        if parts is not None:
            pieces = [piece.strip() for piece in text.split(",")] if text.strip() else []
            return tuple(_parsed(name, parts, piece) for piece in pieces)
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if kind in (int, float):
            return kind(text)
    except (ValueError, KeyError):
        raise wrong from None
    if kind is not str:
        raise ConfigError(f"{name}: a setting of type {kind} cannot be given as text; make the model in a script")
    return text


def _checked(name: str, kind: Any, value: Any) -> Any:
    kind = _without_none(kind)
    parts = _items_of(kind)
    if parts is not None:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{name}={value!r:.80} is no list")
        return tuple(_checked(name, parts, item) for item in value)
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name}={value!r:.80} is not {_kind_text(kind)}")
    return float(value) if kind is float else value


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def _items_of(kind: Any) -> Any:
    """The type of a list's items; None where it is no list."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) in (tuple, list) else None


def _kind_text(kind: Any) -> str:
    kind = _without_none(kind)
    if (items := _items_of(kind)) is not None:
        return {int: "whole numbers", float: "numbers"}.get(items, "names") + ", separated by commas"
    return {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}.get(kind, str(kind))


def _text(value: Any) -> str:
    """As it is written on a command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
