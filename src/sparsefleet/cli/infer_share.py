"""One worker of `sparsefleet infer --workers N`: scores the share of the input that a folder describes.

    python -m sparsefleet.cli.infer_share FOLDER INDEX

The folder is the parent's; see infer_workers.py for what lies in it. The end of standard input is the parent's end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from sparsefleet.cli.console import sigterm_interrupts
from sparsefleet.cli.scoring import Scoring
from sparsefleet.core.errors import SparseFleetError

END_SECONDS = 5.0


def main(folder: Path, index: int) -> None:
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    job = json.loads((folder / "job.json").read_text())
    output = folder / f"predictions-{index}{job['suffix']}" if job["suffix"] else None
    metrics, skipped = Scoring(**job["scoring"]).score(job["shares"][index], output)
    (folder / f"result-{index}.json").write_text(json.dumps({"metrics": metrics.to_dict(), "skipped": skipped}))


def _end_with_parent() -> None:
    os.read(0, 1)
    # Like Ctrl-C, so that readers end the commands they have started; but not for ever.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    try:
        with sigterm_interrupts():
            main(Path(sys.argv[1]), int(sys.argv[2]))
    except SparseFleetError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("ended")
