"""Drafts on local paths: written to a directory beside the target, synced, and renamed.

Names beside a target `NAME`, all with the same token of 12 hexadecimal digits:
    .NAME.tmp-TOKEN         the draft
    .NAME.tmp-TOKEN.lock    locked by the process that saves, as long as it lives; made first, removed last
    .NAME.old-TOKEN         the checkpoint being replaced, between the two renames
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress

from sparsefleet.checkpoint.draft.base import CheckpointDraft
from sparsefleet.checkpoint.manifest import FILE_NAME
from sparsefleet.checkpoint.storage import Location
from sparsefleet.checkpoint.storage.local import LocalStorage
from sparsefleet.core.errors import CheckpointError

LOCK = re.compile(r"\.(?P<name>.+)\.tmp-(?P<token>[0-9a-f]{12})\.lock")


class RenamedDraft(CheckpointDraft):
    def __init__(self, target: Location, storage: LocalStorage, token: str, lock: int) -> None:
        super().__init__(target, target.parent / f".{target.name}.tmp-{token}", prefix="")
        self._storage, self._token = storage, token
        self._lock: int | None = lock

    @staticmethod
    def begin(target: Location, storage: LocalStorage) -> RenamedDraft:
        storage.make_dir(target.parent.path)
        for name, token in _dead_saves(target.parent):
            _clean_up(target.parent / name, token, storage)
        _check_replaceable(target)
        draft = RenamedDraft(target, storage, *_new_lock(target))
        try:
            os.mkdir(draft.directory.path)
        except BaseException:
            draft.discard()
            raise
        return draft

    def publish(self, manifest: bytes) -> None:
        output = (self.directory / FILE_NAME).open_output()
        try:
            output.write(manifest)
        finally:
            output.close()
        self._storage.sync_tree(self.directory.path)
        old = _old(self.target, self._token)
        if os.path.lexists(self.target.path):
            self._storage.rename(self.target.path, old.path)
        self._storage.rename(self.directory.path, self.target.path)
        self.discard()  # of the draft nothing is left; this removes the old checkpoint and the lock

    def discard(self) -> None:
        """Also puts the old checkpoint back, should we have come no further than the first rename."""
        self.finished = True
        _clean_up(self.target, self._token, self._storage)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def replaced(target: Location) -> Location | None:
    """Where the checkpoint of this name is after a save was killed between its two renames; else None."""
    if not isinstance(target.storage, LocalStorage) or os.path.lexists(target.path):
        return None
    for entry in target.parent.list():
        if re.fullmatch(re.escape(f".{target.name}.old-") + "[0-9a-f]{12}", entry.name):
            return target.parent / entry.name
    return None


def _check_replaceable(target: Location) -> None:
    """Saving replaces a checkpoint, or an empty directory; never a folder with something else in it."""
    inside = {entry.name for entry in target.list()}
    if inside and FILE_NAME not in inside:
        raise CheckpointError(
            f"cannot save a checkpoint to {target}: that directory holds other things and no checkpoint; "
            "choose a name of its own"
        )


def _new_lock(target: Location) -> tuple[str, int]:
    for _ in range(100):
        token = secrets.token_hex(6)
        lock = os.open(_lock_path(target, token), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)  # someone's clean-up saw it before it was locked, and removes it: another name
            continue
        except OSError:
            pass  # a filesystem without locks: nobody can take this one either, so nothing is taken for dead
        return token, lock
    raise CheckpointError(f"cannot lock a draft beside {target}: another process keeps cleaning up there")


def _dead_saves(folder: Location) -> Iterator[tuple[str, str]]:
    """(name, token) of saves in this folder whose process is gone. Each is locked while it is looked at."""
    for entry in folder.list():
        found = LOCK.fullmatch(entry.name)
        if not found:
            continue
        try:
            lock = os.open((folder / entry.name).path, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # alive, or a filesystem without locks
            os.close(lock)
            continue
        try:
            yield found["name"], found["token"]
        finally:
            os.close(lock)


def _clean_up(target: Location, token: str, storage: LocalStorage) -> None:
    """Remove a save's leftovers. What we may not touch is no reason to fail: the next save tries again."""
    old, temporary = _old(target, token), target.parent / f".{target.name}.tmp-{token}"
    with suppress(OSError):
        if os.path.lexists(old.path) and not os.path.lexists(target.path):
            storage.rename(old.path, target.path)
        storage.delete_dir(old.path)
        storage.delete_dir(temporary.path)
        storage.delete_file(_lock_path(target, token))


def _lock_path(target: Location, token: str) -> str:
    return (target.parent / f".{target.name}.tmp-{token}.lock").path


def _old(target: Location, token: str) -> Location:
    return target.parent / f".{target.name}.old-{token}"
