"""Formats by name. Each is imported when it is asked for: reading text does not wait for Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparsefleet.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sparsefleet.core.schema import Schema
    from sparsefleet.data.formats.base import Format

NAMES = ("criteo", "multislot", "pipe", "parquet")


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
    if name == "auto":
        if pipe_command:
            name = "pipe"
        elif files:
            name = guess_format(files[0], schema)
        else:
            raise ConfigError(f"format 'auto' needs files to look at; give some, or choose {', '.join(NAMES)}")
    if name not in NAMES:
        raise ConfigError(f"format={name!r} is not a format; choose auto, {', '.join(NAMES)}")
    if pipe_command and name != "pipe":
        raise ConfigError(f"pipe_command is given, but format={name!r}; choose pipe or auto")
    from sparsefleet.kernels.rowtypes import MAX_LINE

    longest = MAX_LINE if max_line is None else max_line
    if name == "criteo":
        from sparsefleet.data.formats.criteo import CriteoFormat

        return CriteoFormat(schema, labelled=labelled, max_line=longest)
    if name == "multislot":
        from sparsefleet.data.formats.multislot import MultiSlotFormat

        return MultiSlotFormat(schema, layout=layout, labelled=labelled, max_line=longest)
    if name == "pipe":
        from sparsefleet.data.formats.pipe import PIPE_TIMEOUT, PipeFormat

        if not pipe_command:
            raise ConfigError("format 'pipe' needs a pipe_command, such as 'python dataset_generator.py'")
        seconds = PIPE_TIMEOUT if timeout is None else timeout
        return PipeFormat(schema, pipe_command, layout=layout, labelled=labelled, timeout=seconds, max_line=longest)
    from sparsefleet.data.formats.parquet import ParquetFormat

    return ParquetFormat(schema, labelled=labelled)


def guess_format(file: str, schema: Schema) -> str:
    """parquet by name or first bytes; else criteo or multislot by the first line."""
    import gzip
    import zlib

    from sparsefleet.data.files import check_file, is_gzip, open_file
    from sparsefleet.kernels.rowtypes import MAX_LINE

    if file.endswith((".parquet", ".pq")):
        return "parquet"
    check_file(file)
    try:
        with gzip.open(file) if is_gzip(file) else open_file(file) as stream:
            head = stream.read(MAX_LINE)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error
    if head.startswith(b"PAR1"):
        return "parquet"
    line = head.split(b"\n", 1)[0]
    fields = line.count(b"\t") + 1
    features = len(schema.dense) + len(schema.slots)
    if fields in (features, features + 1) or (fields > 1 and b" " not in line):
        return "criteo"
    words = line.split()
    if fields == 1 and len(words) > 1 and words[0].isdigit():
        return "multislot"
    raise DataError(
        f"{file}: its first line looks like no known format: neither {features + 1} tab-separated fields "
        f"(criteo) nor 'n v1 … vn' (multislot): {line[:60].decode(errors='backslashreplace')!r}; "
        "name the format"
    )
