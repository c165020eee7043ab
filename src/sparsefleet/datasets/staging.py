"""Out folders: filled under a temporary name, and put in place only when everything is written.

An interrupted or failed run leaves the folder as it was. The staging folder lies inside the out folder, so
that a rename never crosses a file system.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sparsefleet.core.errors import ConfigError, DataError, SparseFleetError

STAGING_PREFIX = ".unfinished-"


@contextmanager
def staged(out: str | Path, entries: Sequence[str], *, overwrite: bool) -> Iterator[Path]:
    """Give a folder to write `entries` into; when the block ends well, move them into `out`, in that order.

    With `overwrite`, older entries of these names are replaced, and nothing else in `out` is touched.
    """
    out = Path(out)
    _check_empty(out, overwrite)
    fresh = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=out))
    except OSError as error:
        raise DataError(f"cannot write to the folder {out}: {error.strerror}") from error
    try:
        try:
            yield stage
            _put_in_place(stage, out, entries)
        except OSError as error:
            raise explained(error, out) from error
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        if fresh:
            with suppress(OSError):
                out.rmdir()
        raise
    shutil.rmtree(stage, ignore_errors=True)


def explained(error: OSError, out: Path) -> SparseFleetError:
    """What an error of the file system means for someone who writes to `out`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"no space left on the disk of {out}; nothing was kept. Free some space, or choose another --out"
        )
    where = f" ({error.filename})" if error.filename else ""
    return DataError(f"cannot write to {out}: {error.strerror or error}{where}")


def check_space(out: str | Path, needed: int) -> None:
    """Refuse early what cannot fit."""
    place = Path(out).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise DataError(
            f"this writes about {needed / 1e9:.1f} GB, and the disk of {out} has {free / 1e9:.1f} GB free. "
            "Ask for less, or choose another --out"
        )


def _check_empty(out: Path, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; give a folder")
    try:
        inside = sorted(entry.name for entry in out.iterdir()) if out.exists() else []
    except OSError as error:
        raise ConfigError(f"cannot look into the folder {out}: {error.strerror}") from error
    if overwrite:
        for name in inside:
            if name.startswith(STAGING_PREFIX):
                shutil.rmtree(out / name, ignore_errors=True)
    elif inside:
        shown = ", ".join(inside[:3]) + (", …" if len(inside) > 3 else "")
        raise ConfigError(
            f"the folder {out} is not empty (it has {shown}); choose another --out, "
            "or give --overwrite to replace what is there"
        )


def _put_in_place(stage: Path, out: Path, entries: Sequence[str]) -> None:
    # The last entry says "complete" to whoever looks, so the old one goes first.
    for name in reversed(entries):
        old = out / name
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
    for name in entries:
        if (stage / name).exists():
            os.replace(stage / name, out / name)
