"""A folder of bundles with a file `current` that names the one to serve: switching is replacing that file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsefleet.core.errors import BundleError
from sparsefleet.core.json_fields import path_problem
from sparsefleet.export.bundle import is_remote, local_path
from sparsefleet.export.remote import beside, read_small, shown
from sparsefleet.serving.source import NotPublishedError, SourceError
from sparsefleet.serving.versions import Versions

CURRENT = "current"
MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pointer:
    """The file `current` of a folder: a local path, or a URI."""

    folder: str

    @property
    def shown(self) -> str:
        return f"{shown(self.folder) if is_remote(self.folder) else self.folder}/{CURRENT}"

    def read(self) -> bytes | None:
        """What the file says; None where there is none."""
        if is_remote(self.folder):
            return read_small(beside(self.folder, CURRENT), MAX_BYTES)
        path = Path(self.folder) / CURRENT
        try:
            return path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error}") from error

    def names(self, raw: bytes | None) -> str:
        """The bundle that the file's bytes name."""
        if raw is None:
            raise BundleError(f"there is no {self.shown} any more")
        name = raw.decode(errors="replace").strip()
        problem = "it is empty" if not name else path_problem(name, "pointer")
        if problem or len(raw) > MAX_BYTES:
            raise BundleError(
                f"{self.shown}: it must name a bundle beside it, such as v7; it says {name!r:.80}: "
                f"{problem or 'too long'}"
            )
        return beside(self.folder, name) if is_remote(self.folder) else str(Path(self.folder) / name)


def resolve(path: str) -> tuple[str, Pointer | None]:
    """The bundle to open, and the pointer file that names it, where there is one."""
    pointer = Pointer(path if is_remote(path) else str(local_path(path)))
    raw = pointer.read()
    return (path, None) if raw is None else (pointer.names(raw), pointer)


async def follow(
    pointer: Pointer, versions: Versions, serves: str, seconds: float, tell: Callable[[str], None]
) -> None:
    """Switch to the bundle that the pointer names, whenever that changes.

    A refused bundle is reported once, and the old one serves on. If rows are not published yet or Redis cannot be
    reached, the bundle is tried again every `seconds`.
    """
    seen: str | None = serves
    told = ""
    while True:
        await asyncio.sleep(seconds)
        wanted = None
        try:
            wanted = pointer.names(await asyncio.to_thread(pointer.read))
            if wanted == seen:
                continue
            taken = await versions.load(wanted)
            tell(f"now serving {taken.version} from {taken.bundle.origin}")
        except (NotPublishedError, SourceError) as error:
            if str(error) != told:
                tell(f"{error}; {versions.current.version} serves on until then")
                told = str(error)
            continue
        except BundleError as error:
            if wanted is None and seen is None:
                continue
            tell(f"{error}; {versions.current.version} serves on")
        seen, told = wanted, ""
