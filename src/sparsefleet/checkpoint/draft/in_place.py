"""Drafts on object stores and the like: no rename; the manifest, put last, is what makes a checkpoint."""

from __future__ import annotations

import re
import secrets
from contextlib import suppress

from sparsefleet.checkpoint.draft.base import CheckpointDraft
from sparsefleet.checkpoint.manifest import FILE_NAME
from sparsefleet.checkpoint.storage import Location

DATA = re.compile(r"data-[0-9a-f]{12}")


class InPlaceDraft(CheckpointDraft):
    """Files go to a folder of their own in the target, so the previous manifest's files stay untouched."""

    @staticmethod
    def begin(target: Location) -> InPlaceDraft:
        folder = f"data-{secrets.token_hex(6)}"
        directory = target / folder
        target.storage.make_dir(directory.path)
        return InPlaceDraft(target, directory, folder + "/")

    def publish(self, manifest: bytes) -> None:
        storage = self.target.storage
        storage.replace_file((self.target / FILE_NAME).path, manifest)
        self.finished = True
        with suppress(OSError):  # of the previous checkpoint or a dead save: the next commit tries again
            for entry in self.target.list():
                if DATA.fullmatch(entry.name) and entry.name != self.directory.name:
                    storage.delete_dir((self.target / entry.name).path)

    def discard(self) -> None:
        self.finished = True
        with suppress(OSError):
            self.target.storage.delete_dir(self.directory.path)
