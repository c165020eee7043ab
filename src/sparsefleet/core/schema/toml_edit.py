"""Put measured numbers beside their settings in a TOML schema, as a person has written it: nothing else changes.

A feature stands as `{ name = "price", measure = "min-max" }` in a list, or as lines under `[[dense]]`. Either way it is
settings with a comma or a line end between them, which stands in no text, comment, list or table.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
    r"""|(?P<open>[\[{])|(?P<close>[\]}])|[,\n]""",
    re.S,
)


def with_settings(text: str, features: Mapping[str, Mapping[str, str]], behind: tuple[str, ...]) -> str:
    """`features`: by name, settings and their values in TOML. They replace what a feature has under their names, and
    stand behind the first of its settings that is named in `behind`; a feature without one stays as it is."""
    pieces, last = [], 0
    for start, end, separator in _features(text):
        inside = text[start:end]
        changed = _edited(inside, separator, features, behind)
        if changed != inside and start >= last:
            pieces += [text[last:start], changed]
            last = end
    return "".join(pieces) + text[last:]


def _features(text: str) -> Iterator[tuple[int, int, str]]:
    """Where the settings of what may be a feature begin and end, and what stands between them."""
    opened: list[int] = []
    header = block = -1
    for found in _TOKEN.finditer(text):
        if found["open"]:
            line = text.rfind("\n", 0, found.start()) + 1
            if not opened and not text[line : found.start()].strip():
                if block >= 0:
                    yield block, line, "\n"
                block, header = -1, found.start()
            opened.append(found.start())
        elif found["close"] and opened:
            start = opened.pop()
            if text[start] == "{":
                yield start + 1, found.start(), ","
        elif found.group() == "\n" and header >= 0 and not opened:
            block = found.end() if text.startswith("[[", header) else -1
            header = -1
    if block >= 0:
        yield block, len(text), "\n"


def _edited(inside: str, separator: str, features: Mapping[str, Mapping[str, str]], behind: tuple[str, ...]) -> str:
    parts = list(_parts(inside, separator))
    given = [_settings(part) for part in parts]
    name = next((found["name"] for found in given if "name" in found), None)
    place = next((at for at, found in enumerate(given) if any(one in found for one in behind)), None)
    if not isinstance(name, str) or name not in features or place is None:
        return inside
    indent = re.match(r"\s*", parts[place])
    made = [f"{indent.group() if indent else ''}{setting} = {value}" for setting, value in features[name].items()]
    kept = [not any(setting in features[name] for setting in found) for found in given]
    before = [part for part, keep in zip(parts[: place + 1], kept[: place + 1], strict=True) if keep]
    after = [part for part, keep in zip(parts[place + 1 :], kept[place + 1 :], strict=True) if keep]
    if separator == "\n":
        return separator.join([*before, *made, *after])
    closing = re.search(r"\s*$", inside)
    return ",".join(part.rstrip() for part in [*before, *made, *after]) + (closing.group() if closing else "")


def _parts(text: str, separator: str) -> Iterator[str]:
    depth = start = 0
    for found in _TOKEN.finditer(text):
        depth += bool(found["open"]) - bool(found["close"])
        if depth == 0 and found.group() == separator:
            yield text[start : found.start()]
            start = found.end()
    yield text[start:]


def _settings(part: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(part.strip())
    except tomllib.TOMLDecodeError:
        return {}
