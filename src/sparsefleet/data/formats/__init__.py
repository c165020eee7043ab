"""The table of formats. A format is a file here, a line in `FORMATS`, and its test.

Each is imported when it is asked for: reading text does not wait for Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from sparsefleet.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sparsefleet.core.schema import Schema
    from sparsefleet.data.formats.base import Format

FORMATS: dict[str, str | type[Format]] = {
    "csv": "sparsefleet.data.formats.csv:CsvFormat",
    "jsonl": "sparsefleet.data.formats.jsonl:JsonLinesFormat",
    "libsvm": "sparsefleet.data.formats.libsvm:LibsvmFormat",
    "libffm": "sparsefleet.data.formats.libffm:LibffmFormat",
    "criteo": "sparsefleet.data.formats.criteo:CriteoFormat",
    "multislot": "sparsefleet.data.formats.multislot:MultiSlotFormat",
    "pipe": "sparsefleet.data.formats.pipe:PipeFormat",
    "parquet": "sparsefleet.data.formats.parquet:ParquetFormat",
}
"""Name of a format to its class, or to "module:class". "auto" asks them in this order whether a file is theirs."""


def format_class(name: str) -> type[Format]:
    """The class behind a name of the table."""
    entry = FORMATS.get(name)
    if entry is None:
        raise ConfigError(f"format={name!r} is not a format; choose auto, {', '.join(FORMATS)}")
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    found: type[Format] = getattr(import_module(module), attribute)
    return found


def file_formats() -> tuple[str, ...]:
    """What a user may call the format of a file: "auto", and all but `pipe`, which is chosen by its command."""
    return ("auto", *(name for name in FORMATS if name != "pipe"))


def format_help() -> str:
    """The same for the help of an option: "auto, libsvm, libffm, csv, jsonl, criteo, multislot or parquet."."""
    *most, last = file_formats()
    return f"{', '.join(most)} or {last}."


def can_be_cut(name: str, pipe_command: str | None) -> bool:
    """Whether files of this format may be shared out by byte ranges. "auto" leaves that to a look at each file."""
    if pipe_command:
        name = "pipe"
    return name == "auto" or format_class(name).cuttable


def format_for(
    name: str,
    schema: Schema,
    *,
    files: Sequence[str] = (),
    labelled: bool = True,
    pipe_command: str | None = None,
    layout: Sequence[tuple[str, str]] | None = None,
    timeout: float | None = None,
    max_line: int | None = None,
) -> Format:
    """The format called `name`; "auto" looks at the first of `files`.

    `pipe_command` (with `timeout`, seconds without output) is for pipe, `layout` for multislot and pipe,
    `max_line` for all text.
    """
    from sparsefleet.data.formats.base import FormatOptions

    if name == "auto":
        if pipe_command:
            name = "pipe"
        elif files:
            name = guess_format(files[0], schema)
        else:
            raise ConfigError(f"format 'auto' needs files to look at; give some, or choose {', '.join(FORMATS)}")
    found = format_class(name)
    if pipe_command and name != "pipe":
        raise ConfigError(f"pipe_command is given, but format={name!r}; choose pipe or auto")
    return found.create(schema, FormatOptions(labelled, pipe_command, layout, timeout, max_line))


def guess_format(file: str, schema: Schema) -> str:
    """The first format of the table that takes the file for its own."""
    from sparsefleet.data.formats.base import Head

    head = Head.of(file)
    asked = []
    for name in FORMATS:
        found = format_class(name)
        if found.guess(head, schema):
            return name
        if found.looks:
            asked.append(f"{name}: {found.looks}")
    raise DataError(
        f"{file}: its beginning looks like no known format ({'; '.join(asked)}): "
        f"{head.line[:60].decode(errors='backslashreplace')!r}; name the format"
    )
