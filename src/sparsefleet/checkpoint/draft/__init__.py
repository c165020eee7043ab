"""A checkpoint being written: begun, filled by one process or many, then committed or given up.

```
with begin(path) as draft:                               coordinator
    files = write_sparse_shard(draft.directory, …)       any process that reaches str(draft.directory)
    commit(draft, Manifest(files=tuple(files), …))       coordinator; leaving the block without it gives up
```
How the bytes get to their place, and what is left when any of this is killed, is told in FORMAT.md.
"""

from __future__ import annotations

from dataclasses import replace

from sparsefleet.checkpoint import parse
from sparsefleet.checkpoint.draft.base import CheckpointDraft
from sparsefleet.checkpoint.draft.in_place import InPlaceDraft
from sparsefleet.checkpoint.draft.renamed import RenamedDraft, replaced
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.storage import AnyPath, Location, locate
from sparsefleet.checkpoint.storage.base import writing
from sparsefleet.checkpoint.storage.local import LocalStorage
from sparsefleet.core.errors import CheckpointError

__all__ = ["CheckpointDraft", "abort", "begin", "commit", "replaced"]


def begin(path: AnyPath) -> CheckpointDraft:
    """Start a save to `path`, after cleaning up what dead saves left beside it."""
    target = locate(path)
    if not target.name:
        raise CheckpointError(f"cannot save a checkpoint to {target}: it must be a directory with a name")
    with writing(target):
        if target.size() is not None:
            raise CheckpointError(f"cannot save a checkpoint to {target}: there is a file of that name")
        if isinstance(target.storage, LocalStorage):
            return RenamedDraft.begin(target, target.storage)
        return InPlaceDraft.begin(target)


def commit(draft: CheckpointDraft, manifest: Manifest) -> Location:
    """Make the draft the checkpoint at its target, all at once, and return where it is."""
    if draft.finished:
        raise CheckpointError(f"the draft of {draft.target} is finished already")
    for entry in manifest.files:
        written = draft.directory / entry.path
        size = written.size()
        if size != entry.bytes:
            found = "missing" if size is None else f"{size} bytes"
            raise CheckpointError(
                f"{written}: {found} where {entry.bytes} bytes were reported written; "
                "do all processes write to the same, shared filesystem?"
            )
    files = tuple(replace(entry, path=draft.prefix + entry.path) for entry in manifest.files)
    data = replace(manifest, files=files).to_json()
    # One that nobody could load must not replace one that loads.
    parse.manifest(data, "the manifest to be written")
    with writing(draft.target):
        draft.publish(data)
    return draft.target


def abort(draft: CheckpointDraft) -> None:
    """Give up and remove what was written. What cannot be removed now is left to the next save."""
    if not draft.finished:
        draft.discard()
