"""CheckpointDraft: where a save under way is written, and the moment it becomes the checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from sparsefleet.checkpoint.storage import Location


class CheckpointDraft(ABC):
    """Leaving its `with` block uncommitted removes what was written."""

    target: Location
    """The checkpoint to be."""
    directory: Location
    """Where shards go; `str(draft.directory)` is what to tell other processes."""
    prefix: str
    """What comes before the files' paths in the manifest."""
    finished: bool
    """Committed or given up."""

    def __init__(self, target: Location, directory: Location, prefix: str) -> None:
        self.target, self.directory, self.prefix, self.finished = target, directory, prefix, False

    @abstractmethod
    def publish(self, manifest: bytes) -> None:
        """Put the manifest: before this the previous checkpoint stands, after it this one."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written; never raises for what cannot be removed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self.finished:
            self.discard()
