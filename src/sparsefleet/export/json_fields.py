"""JSON of unknown origin, taken apart field by field; what does not fit is a BundleError that names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from sparsefleet.core.errors import BundleError

T = TypeVar("T")

MAX_COUNT = 2**62
"""Of rows and bytes: above it something is damaged."""
CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


class Fields:
    """A JSON object: every field is asked for once, and what is left over is an error."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise BundleError(f"{where}: must be a JSON object, not {kind(data)}")
        self.data, self.where, self._asked = data, where, set[str]()

    def fail(self, name: str, reason: str) -> BundleError:
        return BundleError(f"{self.where}: field {name!r} {reason}")

    def take(self, name: str) -> Any:
        self._asked.add(name)
        if name not in self.data:
            raise self.fail(name, "is missing")
        return self.data[name]

    def header(self, format_name: str, version: int, what: str) -> None:
        found = self.take("format")
        if found != format_name:
            raise BundleError(f"{self.where}: format is {short(found)}, not {format_name!r}: no {what}")
        number = self.take("version")
        if number != version or isinstance(number, bool):
            raise BundleError(
                f"{self.where}: version {short(number)} of the {what} format; this release reads version {version}: "
                "export the checkpoint anew, or serve with the release that wrote it"
            )

    def integer(self, name: str, low: int = 0, high: int = MAX_COUNT) -> int:
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(name, f"must be a whole number, not {kind(value)}")
        if not low <= value <= high:
            raise self.fail(name, f"is {short(value)}; allowed are {low} to {high}")
        return value

    def text(self, name: str, pattern: re.Pattern[str] | None = None, wanted: str = "") -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise self.fail(name, f"must be text, not {kind(value)}")
        if len(value) > 1000 or (pattern and not pattern.fullmatch(value)):
            raise self.fail(name, f"is {short(value)}; wanted is {wanted or 'at most 1000 characters'}")
        return value

    def choice(self, name: str, allowed: Collection[str]) -> str:
        value = self.text(name)
        if value not in allowed:
            raise self.fail(name, f"is {short(value)}; allowed are {', '.join(allowed)}")
        return value

    def path(self, name: str) -> str:
        value = self.text(name)
        problem = path_problem(value)
        if problem:
            raise self.fail(name, f"is {short(value)}: {problem}")
        return value

    def child(self, name: str) -> Fields:
        return Fields(self.take(name), f"{self.where}: {name}")

    def items(self, name: str, parse: Callable[[Any, str], T]) -> tuple[T, ...]:
        value = self.take(name)
        if not isinstance(value, list):
            raise self.fail(name, f"must be a list, not {kind(value)}")
        return tuple(parse(item, f"{self.where}: {name}[{index}]") for index, item in enumerate(value))

    def end(self) -> None:
        unknown = sorted(set(self.data) - self._asked)
        if unknown:
            raise BundleError(f"{self.where}: unknown fields {', '.join(map(short, unknown[:5]))}")


def document(data: bytes, where: str) -> Any:
    try:
        return json.loads(data, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: not a JSON document: {error}") from error


def path_problem(path: str) -> str | None:
    """Why a path in a manifest is refused; None when it is fine."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        return "it leads out of the bundle's directory"
    if "" in parts or "." in parts or CONTROL.search(path) or not _encodes(path):
        return "it is not a plain relative path"
    return None


def once(names: Collection[str], what: str, where: str) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise BundleError(f"{where}: {what} {short(name)} is listed twice")
        seen.add(name)


def plain_text(item: Any, where: str) -> str:
    if not isinstance(item, str) or len(item) > 1000:
        raise BundleError(f"{where}: wanted is text, got {short(item)}")
    return item


def kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int too long to print
        return "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return result


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
