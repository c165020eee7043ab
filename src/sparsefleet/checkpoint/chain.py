"""Chain: which checkpoint of a row of them the next one is a delta of, and when the row begins anew.

A delta holds the rows that changed since the checkpoint before it (FORMAT.md). Loading one reads all before it too,
down to the last whole one, and none of those may be removed. Both are bounded: after so many deltas, or so many bytes
of them, the next checkpoint is whole again.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.checkpoint.manifest import MAX_DELTAS, Manifest
from sparsefleet.checkpoint.storage import locate
from sparsefleet.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ChainPolicy:
    """When a whole checkpoint follows a row of deltas."""

    deltas: int = 32
    """As many of them, at the most, stand on one whole checkpoint."""
    share: float = 1.0
    """Once deltas together have more than this share of the whole one's bytes, the next is whole: to load one then
    reads twice as much as a whole one has, and a disk holds as much."""

    def __post_init__(self) -> None:
        if not 0 <= self.deltas <= MAX_DELTAS:
            raise ConfigError(f"deltas={self.deltas} must be 0 to {MAX_DELTAS}")
        if not self.share > 0:
            raise ConfigError(f"share={self.share} must be above 0")


class Chain:
    def __init__(self, policy: ChainPolicy | None = None) -> None:
        self._policy = policy or ChainPolicy()
        self._paths: list[str] = []
        """The whole one, and the deltas upon it, as they came."""
        self._whole = self._upon = 0

    def base_for(self, path: str) -> str | None:
        """What the checkpoint that is to be written at `path` is a delta of; None: it is to be whole."""
        policy = self._policy
        if not self._paths or len(self._paths) > policy.deltas or self._upon > policy.share * self._whole:
            return None
        if locate(path).name in (locate(one).name for one in self._paths):
            return None  # it takes the place of one that it would stand on
        last = self._paths[-1]
        return last if str(locate(last).parent) == str(locate(path).parent) else None

    def written(self, path: str, manifest: Manifest) -> None:
        """A checkpoint was committed, whole or as a delta of what `base_for` said."""
        size = sum(entry.bytes for entry in manifest.files)
        if manifest.base is None:
            self._paths, self._whole, self._upon = [path], size, 0
        else:
            self._paths.append(path)
            self._upon += size
