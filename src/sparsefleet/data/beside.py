"""The schema that lies beside data: `data prepare` and `data synth` write one, and readers of the data go by it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.core.schema import CRITEO, FILE_NAME, TOML_NAME, Schema
from sparsefleet.data.files import local_name, open_file
from sparsefleet.data.split import parse_unit


def schema_beside(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], otherwise: Schema = CRITEO
) -> Schema:
    """`schema.json` or `schema.toml` in the data's folder, or in the one above; where there is none, `otherwise`.

    Where both lie in one place, they must mean the same.

    data: a folder, a file, a pattern, or a list of files, of which the first counts.
    """
    first = data if isinstance(data, str | os.PathLike) else next(iter(data), None)
    if first is None:
        raise DataError("no input files were given; give a file, a folder or a pattern")
    name = parse_unit(local_name(first)).file
    return _remote(name, otherwise) if is_uri(name) else _local(Path(name), otherwise)


def _local(data: Path, otherwise: Schema) -> Schema:
    folder = data if data.is_dir() else data.parent
    for place in (folder, folder.resolve().parent):
        files = [place / name for name in (FILE_NAME, TOML_NAME) if (place / name).is_file()]
        found = [Schema.load(file) for file in files]
        if len(found) == 2 and found[0] != found[1]:
            raise ConfigError(
                f"{place} has {FILE_NAME} and {TOML_NAME}, and they differ; say which one (--schema), or remove one"
            )
        if found:
            return found[0]
    return otherwise


def _remote(data: str, otherwise: Schema) -> Schema:
    from sparsefleet.data.remote import kind_of, with_name

    path = unquote(urlsplit(data).path)
    folder = path.rstrip("/") if kind_of(data) == "folder" else posixpath.dirname(path)
    for place in dict.fromkeys((folder, posixpath.dirname(folder))):
        found: list[Schema] = []
        for name in (FILE_NAME, TOML_NAME):
            beside = with_name(data, posixpath.join(place or "/", name))
            if kind_of(beside) == "file":
                with open_file(beside) as file:
                    found.append(Schema.from_text(file.read() or b"", beside))
        if len(found) == 2 and found[0] != found[1]:
            raise ConfigError(f"{data}: beside it lie {FILE_NAME} and {TOML_NAME}, and they differ; remove one")
        if found:
            return found[0]
    return otherwise
