"""Schema files as text: JSON for programs, TOML for people. Both hold the same document, field by field."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema.toml_edit import with_settings

if TYPE_CHECKING:
    from sparsefleet.core.schema.schema import Schema

FILE_NAME = "schema.json"
TOML_NAME = "schema.toml"

_COUNTED = "# Counted by `sparsefleet data prepare`: the values that min_count keeps."


def parse_schema_text(text: str | bytes, where: str) -> Any:
    if not where.partition("?")[0].endswith(".toml"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not JSON: {error}") from error
    try:
        return tomllib.loads(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not TOML: {error}") from error


def schema_text(schema: Schema, *, toml: bool = False, comments: Mapping[str, str] | None = None) -> str:
    """The content of a schema file. `comments`: of a field, or of a feature by its name; "" is the head. TOML only."""
    plain = schema.to_dict()
    return _toml(plain, comments or {}) if toml else json.dumps(plain, indent=1) + "\n"


def _toml(plain: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    lines = [f"# {line}".rstrip() for line in comments.get("", "").splitlines()]
    if lines:
        lines.append("")
    for name, value in plain.items():
        if name in ("dense", "slots", "more_labels", "kept") or value is None:
            continue
        if name in comments:
            lines += [f"# {line}" for line in comments[name].splitlines()]
        lines.append(f"{name} = {_value(value)}")
    for name in ("more_labels", "dense", "slots"):
        if name not in plain:
            continue
        lines.append("")
        if name in comments:
            lines += [f"# {line}" for line in comments[name].splitlines()]
        lines.append(f"{name} = [")
        entries = [_value({key: one for key, one in part.items() if one is not None}) for part in plain[name]]
        width = min(60, max((len(entry) for entry in entries), default=0))
        for part, entry in zip(plain[name], entries, strict=True):
            comment = comments.get(part["name"])
            lines.append(f"  {entry + ',':<{width + 1}}  # {comment}" if comment else f"  {entry},")
        lines.append("]")
    if "#left out" in comments:
        lines += ["", *(f"# {line}" for line in comments["#left out"].splitlines())]
    return "\n".join(lines) + "\n" + kept_section(plain.get("kept", {}))


def kept_section(kept: Mapping[str, str]) -> str:
    """The end of a TOML schema: kept values by slot. It can be put behind a file that has none."""
    if not kept:
        return ""
    lines = [f"{_value(name)} = {_value(text)}" for name, text in kept.items()]
    return "\n".join(["", _COUNTED, "[kept]", *lines, ""])


def with_measured(text: str, schema: Schema) -> str:
    """A TOML schema with what was measured, beside the settings that ask for it."""
    found = {
        slot.name: {"buckets": _value(slot.buckets)}
        for slot in schema.slots
        if slot.quantiles is not None and slot.buckets is not None
    }
    found |= {
        feature.name: {"minimum": _value(feature.minimum), "diff": _value(feature.diff)}
        for feature in schema.dense
        if feature.measure is not None and feature.measured
    }
    return with_settings(text, found, ("quantiles", "measure")) if found else text


def without_kept(text: str) -> str:
    """A TOML schema without the section of kept values, as it was before they were counted."""
    if "[kept]" not in text:
        return text
    lines, left = [], False
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            left = line.strip() == "[kept]"
        if not left and line.strip() != _COUNTED:
            lines.append(line)
    return "".join(lines).rstrip("\n") + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's too, but for DEL, which JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
