"""A folder of bundles with a file `current` that names the one to serve: switching is replacing that file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sparsefleet.core.errors import BundleError
from sparsefleet.core.json_fields import path_problem
from sparsefleet.serving.source import NotPublishedError, SourceError
from sparsefleet.serving.versions import Versions

CURRENT = "current"


def resolve(path: str) -> tuple[str, Path | None]:
    """The bundle to open, and the pointer file that names it, where there is one."""
    pointer = Path(path).expanduser().absolute() / CURRENT
    if not pointer.is_file():
        return path, None
    return named_by(pointer), pointer


def named_by(pointer: Path) -> str:
    try:
        name = pointer.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"cannot read {pointer}: {error}") from error
    problem = "it is empty" if not name else path_problem(name, "pointer")
    if problem:
        raise BundleError(f"{pointer}: it must name a bundle beside it, such as v7; it says {name!r:.80}: {problem}")
    return str(pointer.parent / name)


async def follow(pointer: Path, versions: Versions, seconds: float, tell: Callable[[str], None]) -> None:
    """Switch to the bundle that the pointer names, whenever that changes.

    A refused bundle is reported once, and the old one serves on. If rows are not published yet or Redis cannot be
    reached, the bundle is tried again every `seconds`.
    """
    seen: str | None = str(versions.current.bundle.path)
    told = ""
    while True:
        await asyncio.sleep(seconds)
        wanted = None
        try:
            wanted = named_by(pointer)
            if wanted == seen:
                continue
            taken = await versions.load(wanted)
            tell(f"now serving {taken.version} from {wanted}")
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
