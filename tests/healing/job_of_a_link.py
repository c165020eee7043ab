"""Run within a network namespace: a counting job whose link, loopback, goes down for a while.

Arguments: folder, seconds that the link is down, time-out of the job. Prints how many attempts it took, as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "helpers")]

from healing_jobs import Job  # noqa: E402


def link(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def main(folder: str, down: float, timeout: float) -> None:
    link("up")
    job = Job(Path(folder), "async", samples=1000, timeout=timeout, restarts=20)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        link("down")
        time.sleep(down)
        link("up")

    outcome = job.run(killer)
    if outcome.exit_code:
        print(job.logs())
        raise SystemExit(1)
    job.check_counts()
    attempts = 1 + sum("begins from" in line for line in job.view.said)
    print(json.dumps({"attempts": attempts, "said": job.view.said}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
