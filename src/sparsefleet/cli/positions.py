"""Reader positions in words: where a trainer stood in its input when a checkpoint was saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.data.units import marks_of, units_of

SHOWN_PLACES = 8
"""There are as many as threads read; more than these are only counted."""


def describe_position(position: Mapping[str, Any], epoch: int) -> str:
    """epoch: the one that the position is in, from 1."""
    if not position:
        return f"epoch {epoch}, at its beginning"
    try:
        match position:
            case {"kind": "memory", "rows": int(rows)}:
                done = sum(mark.samples for mark in marks_of(position, len(units_of(position))).values())
                return f"epoch {epoch}, row {done:,} of {rows:,} in memory"
            case {"kind": "files"}:
                return f"epoch {epoch}, {_in_files(position)}"
            case {"kind": "iterable", "rows": int(rows)}:
                return f"epoch {epoch}, row {rows:,}"
    except ConfigError:
        pass  # another release's, or a reader's of someone's own
    return f"epoch {epoch}, {json.dumps(position)}"


def _in_files(position: Mapping[str, Any]) -> str:
    units = units_of(position)
    marks = marks_of(position, len(units))
    read = sum(mark.samples for mark in marks.values())
    places = []
    for index, mark in marks.items():
        if not mark.done:
            where = f"byte {mark.offset:,}" if mark.offset >= 0 else f"row {mark.samples:,}"
            places.append(f"{units[index].file} at {where}")
    if len(places) > SHOWN_PLACES:
        places[SHOWN_PLACES:] = [f"and {len(places) - SHOWN_PLACES} more"]
    open_files = {unit.file for index, unit in enumerate(units) if index not in marks or not marks[index].done}
    files = {unit.file for unit in units}
    done = f"{len(files) - len(open_files)} of {len(files)} files done"
    return f"{read:,} rows of it, {done}" + (f": {', '.join(places)}" if places else "")
