"""Jobs under a killer, many rounds of each mode: is every sample in the model once, and how long does healing take?

    python scripts/test_chaos.py                     50 rounds of each mode
    python scripts/test_chaos.py --rounds 5 --modes sync,geo --seed 7

Each round is a job of two servers and two trainers (`tests/healing/counting_job.py`), of which one to three processes
are killed at random moments. Prints a line a round and a table at the end; the status is 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "healing"), str(TESTS / "helpers")]

from healing_jobs import Job  # noqa: E402

MODES = ("sync", "half_async", "async", "geo")


def one_round(mode: str, seed: str) -> tuple[int, list[float], str | None]:
    """Kills, seconds that healing took, and what was wrong."""
    chance, kills = random.Random(seed), 0
    with tempfile.TemporaryDirectory(prefix="sparsefleet-chaos-") as folder:
        job = Job(Path(folder), mode, restarts=50)

        def killer(job: Job) -> None:
            nonlocal kills
            job.wait_for(lambda: len(job.view.processes) == 4)
            for _ in range(chance.randint(1, 3)):
                time.sleep(chance.uniform(0.5, 8.0))
                if job.outcome is None:
                    kills += 1
                    job.send(chance.choice(sorted(job.view.processes)), signal.SIGKILL)

        wrong: str | None = None
        try:
            outcome = job.run(killer)
            if outcome.exit_code:
                wrong = f"exit status {outcome.exit_code}\n{job.logs()}"
            else:
                job.check_counts()
        except (AssertionError, Exception) as error:
            wrong = f"{error!r}\n{job.logs()}"
        healed = [float(found[1]) for line in job.view.said if (found := re.search(r"trains on, ([\d.]+) s", line))]
        return kills, healed, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="of each mode (%(default)s)")
    parser.add_argument("--modes", default=",".join(MODES), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims (%(default)s)")
    options = parser.parse_args()
    table, bad = [], 0
    for mode in options.modes.split(","):
        kills, healed, wrong = 0, list[float](), 0
        for number in range(options.rounds):
            since = time.monotonic()
            killed, seconds, error = one_round(mode, f"{options.seed} {mode} {number}")
            kills, healed, wrong = kills + killed, healed + seconds, wrong + (error is not None)
            took = time.monotonic() - since
            print(f"{mode} {number}: {killed} kills, {took:.0f} s: {error or 'every sample once'}", flush=True)
        quantiles = np.quantile(healed, [0.5, 0.9, 1.0]) if healed else [float("nan")] * 3
        table.append((mode, options.rounds, kills, wrong, *(f"{one:.1f}" for one in quantiles)))
        bad += wrong
    print("\nmode        rounds  kills  wrong  healed after (s): p50  p90  most")
    for mode, rounds, kills, wrong, *quantiles in table:
        print(f"{mode:<11} {rounds:>6} {kills:>6} {wrong:>6}  {'  '.join(quantiles)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
