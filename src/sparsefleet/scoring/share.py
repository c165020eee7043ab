"""One worker of `sparsefleet infer --workers N`: scores the share of the input that a folder describes.

    python -m sparsefleet.scoring.share FOLDER INDEX

The folder is the parent's; see workers.py for what lies in it. The end of standard input is the parent's end:
then there is nobody else to remove it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.core.interrupts import sigterm_interrupts
from sparsefleet.data.formats.command import kill_commands
from sparsefleet.scoring.scoring import Scoring
from sparsefleet.scoring.workers import FOLDER_PREFIX

END_SECONDS = 5.0
TELL_SECONDS = 0.2

_orphaned = threading.Event()


def main(folder: Path, index: int) -> None:
    threading.Thread(target=_end_with_parent, args=(folder,), name="parent-watch", daemon=True).start()
    job = json.loads((folder / "job.json").read_text())
    output = folder / f"predictions-{index}{job['suffix']}" if job["suffix"] else None
    note = Note(folder / f"progress-{index}")
    scoring = {**job["scoring"], "segments": tuple(job["scoring"]["segments"])}
    metrics, skipped = Scoring(**scoring).score(job["shares"][index], output, note)
    note.write()
    (folder / f"result-{index}.json").write_text(json.dumps({"metrics": metrics.to_dict(), "skipped": skipped}))


class Note:
    """How far this worker is, in a file that is complete at any time."""

    def __init__(self, path: Path) -> None:
        self._path, self._next = path, 0.0
        self._now: tuple[int, float | None] = (0, None)

    def __call__(self, rows: int, share: float | None) -> None:
        self._now = (rows, share)
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        self._next = time.monotonic() + TELL_SECONDS
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self._now))
        os.replace(beside, self._path)


def _end_with_parent(folder: Path) -> None:
    os.read(0, 1)
    _orphaned.set()
    # Like Ctrl-C, so that readers end the commands they have started; but not for ever.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    kill_commands(for_good=True)
    _remove(folder)
    os._exit(1)


def _remove(folder: Path) -> None:
    if folder.name.startswith(FOLDER_PREFIX):  # whoever calls this by hand may mean another one
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # The parent asks a slow worker to end more than once. Within the block below that breaks off what readers do to end
    # their commands, so these are killed in the end; outside of it, it must not end this process before that.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with sigterm_interrupts():
            main(Path(sys.argv[1]), int(sys.argv[2]))
    except SparseFleetError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("ended")
    finally:
        kill_commands(for_good=True)
        if _orphaned.is_set():
            _remove(Path(sys.argv[1]))
