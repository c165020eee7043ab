"""The schema that lies beside data: `data prepare` and `data synth` write one, and readers of the data go by it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparsefleet.core.errors import DataError
from sparsefleet.core.filesystems import is_uri
from sparsefleet.core.schema import CRITEO, FILE_NAME, Schema
from sparsefleet.data.files import local_name, open_file
from sparsefleet.data.split import parse_unit


def schema_beside(
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], otherwise: Schema = CRITEO
) -> Schema:
    """`schema.json` in the data's folder, or in the one above; where there is none, `otherwise`.

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
        if (place / FILE_NAME).is_file():
            return Schema.load(place / FILE_NAME)
    return otherwise


def _remote(data: str, otherwise: Schema) -> Schema:
    from sparsefleet.data.remote import kind_of, with_name

    path = unquote(urlsplit(data).path)
    folder = path.rstrip("/") if kind_of(data) == "folder" else posixpath.dirname(path)
    for place in dict.fromkeys((folder, posixpath.dirname(folder))):
        beside = with_name(data, posixpath.join(place or "/", FILE_NAME))
        if kind_of(beside) == "file":
            with open_file(beside) as file:
                return Schema.from_text(file.read() or b"", beside)
    return otherwise
