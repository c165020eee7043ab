"""Fetch a file over HTTP, go on where an earlier attempt stopped, check it, and unpack it.

While it comes in, the file is `NAME.part`, with `NAME.part.json` beside it: where it comes from and which
version of it. The server is asked to go on (Range) only if it still has that version (If-Range with its ETag
or date); otherwise the file starts anew.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.datasets.progress import OnProgress, ignore_progress
from sparsefleet.datasets.staging import check_space
from sparsefleet.datasets.unpack import is_archive, unpack

CHUNK_BYTES = 1 << 18
WORTH_A_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
LONGEST_PAUSE = 60.0

OnRetry = Callable[[str, float], None]
"""Called before each new attempt with what happened and the seconds to wait."""


@dataclass(frozen=True, slots=True)
class DownloadSpec:
    url: str
    sha256: str | None = None
    """The file's SHA-256 as 64 hexadecimal digits; None: not checked."""
    unpack: bool = True
    """Unpack .tar, .tar.gz, .tgz, .zip and .gz."""
    timeout: float = 30.0
    """Seconds without a byte after which an attempt has failed."""
    retries: int = 5
    """Failed attempts in a row without a new byte before giving up."""
    pause: float = 1.0
    """Seconds before the first retry; doubled for each further one."""

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise ConfigError(
                f"--url {self.url!r} is not an address; give one that starts with http:// or https://, "
                "with spaces and special characters written as %20 and the like"
            )
        if self.sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", self.sha256):
            raise ConfigError(f"--sha256 {self.sha256!r} is not a SHA-256 sum; give 64 hexadecimal digits")
        if self.timeout <= 0:
            raise ConfigError(f"--timeout {self.timeout} must be above 0 seconds")
        if self.retries < 0:
            raise ConfigError(f"--retries {self.retries} must be 0 or above")

    @property
    def file_name(self) -> str:
        last = urllib.parse.unquote(urllib.parse.urlsplit(self.url).path).replace("\\", "/").rsplit("/", 1)[-1]
        return last if last.strip(". ") and "\0" not in last else "download"


@dataclass(frozen=True, slots=True)
class DownloadReport:
    file: Path
    bytes: int
    sha256: str
    fetched: int
    """Bytes that came over the network in this run; the rest was there already."""
    unpacked: tuple[str, ...]
    """Names unpacked into the folder."""


def download(
    spec: DownloadSpec,
    out: str | Path,
    *,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
    on_unpack: OnProgress = ignore_progress,
    on_retry: OnRetry = lambda reason, pause: None,
) -> DownloadReport:
    """Fetch `spec.url` into the folder `out`. What is already there whole is checked, and not fetched or
    unpacked again.

    Progress is in bytes of the file: first as it comes, then as it is unpacked.
    """
    out = Path(out)
    target = out / spec.file_name
    try:
        out.mkdir(parents=True, exist_ok=True)
        part = _PartFile(target, spec.url)
        if overwrite:
            target.unlink(missing_ok=True)
            part.discard()
        fetched = 0
        if not target.exists():
            fetched = _fetch(spec, part, on_progress, on_retry)
            digest = _checked(part.path, spec)
            part.path.replace(target)
            part.discard()
        else:
            digest = _checked(target, spec)
        unpacked: tuple[str, ...] = ()
        if spec.unpack and is_archive(target):
            unpacked = _unpacked_once(target, out, digest, overwrite, on_unpack)
        return DownloadReport(target, target.stat().st_size, digest, fetched, unpacked)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"no space left on the disk of {out}; what has come so far is kept: "
                "free some space, and repeat the command"
            ) from error
        raise DataError(f"cannot write to {out}: {error.strerror or error}") from error


def _unpacked_once(archive: Path, out: Path, digest: str, overwrite: bool, on_unpack: OnProgress) -> tuple[str, ...]:
    """Unpack, unless a note says that just this archive has been unpacked, and all of it is still there."""
    note = out / f".{archive.name}.unpacked.json"
    try:
        before = json.loads(note.read_text())
        names = tuple(before["names"]) if before["sha256"] == digest else ()
    except (OSError, ValueError, KeyError, TypeError):
        names = ()
    if names and not overwrite and all((out / str(name)).exists() for name in names):
        return names
    names = tuple(unpack(archive, out, overwrite=overwrite, on_progress=on_unpack))
    note.write_text(json.dumps({"sha256": digest, "names": names}))
    return names


class _PartFile:
    """The unfinished file and what is known of its origin."""

    def __init__(self, target: Path, url: str) -> None:
        self.path = target.with_name(target.name + ".part")
        self._notes = target.with_name(target.name + ".part.json")
        self._url = url

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def validator(self) -> str | None:
        """What identifies the version at hand; None: unknown, so it can't be continued."""
        try:
            notes = json.loads(self._notes.read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(notes, dict) or notes.get("url") != self._url:
            return None
        validator = notes.get("validator")
        return validator if isinstance(validator, str) and "\n" not in validator else None

    def begin(self, headers: Mapping[str, str]) -> None:
        """Start anew, with a version that the server has just named."""
        etag = headers.get("ETag")
        # A weak ETag says "much the same", which is not enough to glue two halves together.
        validator = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
        self.path.write_bytes(b"")
        self._notes.write_text(json.dumps({"url": self._url, "validator": validator}))

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)


class _Unfinished(Exception):
    """An attempt failed in a way that another may not."""

    def __init__(self, reason: str, pause: float = 0.0, reached: bool = True) -> None:
        super().__init__(reason)
        self.pause = pause
        """Seconds that the server asked to wait."""
        self.reached = reached
        """False: no server was there at all."""


def _fetch(spec: DownloadSpec, part: _PartFile, on_progress: OnProgress, on_retry: OnRetry) -> int:
    """Bring the part file to its full length; the bytes that came."""
    fetched, failures, furthest = 0, 0, part.size()

    def count(size: int) -> None:
        nonlocal fetched
        fetched += size

    while True:
        try:
            _attempt(spec, part, on_progress, count)
            return fetched
        except _Unfinished as failure:
            # Bytes count as progress only beyond the furthest point: a server that can't resume may send the
            # same ones for ever.
            failures = 1 if part.size() > furthest else failures + 1
            furthest = max(furthest, part.size())
            hint = " What has come so far is kept: repeat the command to go on." if part.size() else ""
            if not failure.reached and not fetched:
                raise DataError(f"cannot reach {spec.url}: {failure}. Is there a network?{hint}") from failure
            if failures > spec.retries:
                raise DataError(f"{spec.url}: gave up after {failures} attempts: {failure}.{hint}") from failure
            pause = min(LONGEST_PAUSE, max(failure.pause, spec.pause * 2.0 ** (failures - 1)))
            on_retry(str(failure), pause)
            time.sleep(pause)


def _attempt(spec: DownloadSpec, part: _PartFile, on_progress: OnProgress, count: Callable[[int], None]) -> None:
    have, validator = part.size(), part.validator()
    headers = {"User-Agent": "sparsefleet", "Accept-Encoding": "identity"}
    if have and validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    request = urllib.request.Request(spec.url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=spec.timeout) as response:
            if response.status == 206:
                total = _resumed_total(response.headers.get("Content-Range", ""), have)
                if total is None:
                    part.discard()
                    raise _Unfinished("the server went on at another place than asked; starting anew")
            else:
                part.begin(response.headers)
                length = response.headers.get("Content-Length", "")
                have, total = 0, int(length) if length.isdigit() else None
            if total is not None:
                check_space(part.path.parent, total - have)
            on_progress(have, total)
            with part.path.open("ab") as file:
                while chunk := _read(response):
                    file.write(chunk)
                    count(len(chunk))
                    have += len(chunk)
                    on_progress(have, total)
            if total is not None and have != total:
                raise _Unfinished(f"the connection was cut after {have:,} of {total:,} bytes")
    except urllib.error.HTTPError as error:
        with error:
            _refused(error, spec, part)
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise DataError(f"{spec.url}: the server's certificate is not valid: {reason.verify_message}") from error
        if isinstance(reason, TimeoutError):
            raise _Unfinished(f"no answer within {spec.timeout:g} s") from error
        gone = isinstance(reason, OSError) and not isinstance(reason, ConnectionResetError | BrokenPipeError)
        detail = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
        raise _Unfinished(detail, reached=not gone) from error
    except TimeoutError as error:
        raise _Unfinished(f"no answer within {spec.timeout:g} s") from error
    except (http.client.HTTPException, ConnectionError) as error:
        raise _Unfinished(f"the connection was cut: {error or type(error).__name__}") from error


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK_BYTES)
    except TimeoutError as error:
        raise _Unfinished("the server stopped sending") from error
    except (http.client.HTTPException, OSError) as error:
        raise _Unfinished(f"the connection was cut: {error or type(error).__name__}") from error


def _refused(error: urllib.error.HTTPError, spec: DownloadSpec, part: _PartFile) -> None:
    if error.code == 416:
        # Nothing is left to send. Either all has come already, or the file has become shorter than what we
        # have.
        if error.headers.get("Content-Range", "") == f"bytes */{part.size()}":
            return
        part.discard()
        raise _Unfinished("the file on the server has changed; starting anew") from error
    if error.code in WORTH_A_RETRY:
        after = error.headers.get("Retry-After", "")
        raise _Unfinished(f"the server answered {error.code} {error.reason}", float(after) if after.isdigit() else 0.0)
    advice = {
        404: "is the address right?",
        410: "is the address right?",
        401: "it asks for a login",
        403: "it refuses access",
    }
    raise DataError(
        f"{spec.url}: the server answered {error.code} {error.reason}"
        + (f"; {advice[error.code]}" if error.code in advice else "")
    ) from error


def _resumed_total(content_range: str, have: int) -> int | None:
    """Total size from `bytes 5-9/10` if it starts where we asked."""
    unit, _, rest = content_range.partition(" ")
    span, _, total = rest.partition("/")
    if unit != "bytes" or span.partition("-")[0] != str(have) or not total.isdigit():
        return None
    return int(total)


def _checked(path: Path, spec: DownloadSpec) -> str:
    """The file's SHA-256; a file with a wrong one is removed, for going on from it would never help."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if spec.sha256 is not None and digest != spec.sha256.lower():
        size = path.stat().st_size
        if path.suffix == ".part":
            path.unlink()
            remedy = "it has been removed; check the sum, and repeat the command"
        else:
            remedy = "--overwrite fetches it again"
        raise DataError(
            f"{path.name}: wrong checksum: its SHA-256 is {digest} ({size:,} bytes), "
            f"expected {spec.sha256.lower()}; {remedy}"
        )
    return digest


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = all("!" <= character <= "~" for character in url)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and plain
