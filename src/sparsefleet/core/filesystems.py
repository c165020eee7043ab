"""Filesystems behind URIs, for data and checkpoints: whatever pyarrow opens (s3://, gs://, abfs://, hdfs://, file://)."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import unquote, urlsplit

from sparsefleet.core.errors import SparseFleetError

_NO_JAVA = (
    "HDFS needs Java and Hadoop's client libraries here: install a JRE and Hadoop, set JAVA_HOME and HADOOP_HOME, and "
    "CLASSPATH to what `hadoop classpath --glob` prints"
)

_known: dict[tuple[str, str, str], tuple[Any, str]] = {}
_opening = threading.Lock()


def is_uri(path: str) -> bool:
    return "://" in path


def open_filesystem(uri: str, error: type[SparseFleetError]) -> tuple[Any, str]:
    """The pyarrow filesystem of a URI, and the path in it. Opened once per place: that may ask the network."""
    import pyarrow as pa
    from pyarrow import fs

    parts = urlsplit(uri)
    place = (parts.scheme, parts.netloc, parts.query)
    inner = unquote(parts.path)
    with _opening:
        if place in _known:
            filesystem, prefix = _known[place]
            return filesystem, prefix + inner
        try:
            filesystem, found = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ValueError, ImportError) as problem:
            raise error(f"cannot open {uri!r}: {_reason(parts.scheme, problem)}") from problem
        if found.rstrip("/").endswith(inner.rstrip("/")):
            prefix = found.rstrip("/").removesuffix(inner.rstrip("/"))
            _known[place] = filesystem, prefix
        return filesystem, found


def _reason(scheme: str, problem: BaseException) -> str:
    text = str(problem).strip()
    if scheme in ("hdfs", "viewfs") and any(
        word in text.lower() for word in ("libjvm", "libhdfs", "classpath", "java")
    ):
        return _NO_JAVA
    first = text.splitlines()[0] if text else type(problem).__name__
    return f"{first}; give a local path or a URI such as s3://, gs://, abfs://, hdfs:// or file://"
