"""A job of two servers whose trainers come and go: from one to four and back to two within an epoch; with a picture.

    python scripts/train_elastic.py --data runs/quickstart/data --out runs/elastic --mode async

Trains with `sparsefleet train --elastic 1:4`, and asks for other numbers of trainers by `sparsefleet scale`. Every
trainer is held to a part of a core, as if each had a slow machine of its own, so that one more can be seen on a machine
of few cores. Prints the speed with each number of trainers and the samples that were trained, and writes `elastic.svg`.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from watched_training import Training, picture

TURN_SECONDS = 0.1
"""A trainer works for its part of every so many seconds, and stands still for the rest."""
SETTLED_SECONDS = 4.0
"""After trainers have come or gone: the speed is told over some seconds past."""
ENDING_SECONDS = 10.0


def slow_down(training: Training, share: float, trainers: int) -> None:
    """Hold every trainer to this part of a core, until the job ends."""
    held: dict[int, threading.Thread] = {}
    while training.running:
        for name, pid in list(training.pids.items()):
            kind, number = name.split()
            if kind == "worker" and pid not in held:
                # One after another: all at once, they would want more cores than there are for a moment, then none.
                later = int(number) % trainers / trainers
                held[pid] = threading.Thread(target=hold, args=(training, pid, share, later), daemon=True)
                held[pid].start()
        time.sleep(TURN_SECONDS)
    for thread in held.values():
        thread.join()


def hold(training: Training, pid: int, share: float, later: float) -> None:
    """Let one process work for a share of every turn, from this part of the turn on."""
    try:
        process = os.pidfd_open(pid)  # it can mean no other process that gets the same number later
    except ProcessLookupError:
        return
    try:
        while training.running:
            now = time.monotonic()
            begin = now - (now - later * TURN_SECONDS) % TURN_SECONDS
            works = now < begin + share * TURN_SECONDS
            signal.pidfd_send_signal(process, signal.SIGCONT if works else signal.SIGSTOP)
            time.sleep(max(0.0, begin + (share if works else 1.0) * TURN_SECONDS - time.monotonic()))
        signal.pidfd_send_signal(process, signal.SIGCONT)
    except ProcessLookupError:  # it has left the job
        pass
    finally:
        os.close(process)


def scale(training: Training, workers: int) -> None:
    words = ["scale", ",".join(training.endpoints), "--workers", str(workers)]
    environment = {**os.environ, "SPARSEFLEET_TOKEN": training.token}
    command = [sys.executable, "-m", "sparsefleet", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    if done.returncode:
        wait(training, ENDING_SECONDS)  # its servers may have ended just now
        if training.running:
            sys.exit(f"sparsefleet {' '.join(words)} failed:\n{done.stderr}")


def wait(training: Training, seconds: float) -> None:
    until = training.seconds + seconds
    while training.running and training.seconds < until:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder with train and test")
    parser.add_argument("--out", default="runs/elastic", help="for logs and the picture (%(default)s)")
    parser.add_argument("--mode", default="async", help="(%(default)s)")
    parser.add_argument("--trainers", default="1,4,2", help="how many, one after another (%(default)s)")
    parser.add_argument("--every", type=float, default=12.0, help="seconds with each number (%(default)s)")
    parser.add_argument("--share", type=float, default=0.3, help="of a core for each trainer (%(default)s)")
    options = parser.parse_args()
    numbers = [int(number) for number in options.trainers.split(",")]
    elastic = ("--workers", str(numbers[0]), "--elastic", f"1:{max(numbers)}", "--threads", "1")
    training = Training(options, "job", *elastic)
    threading.Thread(target=slow_down, args=(training, options.share, max(numbers)), daemon=True).start()
    while training.running and not any(speed for _, speed in training.speeds):
        time.sleep(0.1)
    changes, spans = list[tuple[float, str]](), list[tuple[int, float, float]]()
    for place, number in enumerate(numbers):
        if place:
            changes.append((training.seconds, f"{number} trainers asked for"))
            scale(training, number)
            changes.append((training.seconds, f"{number} are there"))
        since = training.seconds
        wait(training, options.every)
        spans.append((number, since, training.seconds))
        if not training.running and place + 1 < len(numbers):
            sys.exit("the data was trained before all numbers of trainers were tried: give more, or a smaller --every")
    result = training.result()
    print(f"{'trainers':>8}{'rows/s':>10}{'of one':>8}")
    speeds = dict[int, float]()
    for number, since, until in spans:
        seen = [speed for at, speed in training.speeds if since + SETTLED_SECONDS <= at <= until and speed]
        speeds[number] = statistics.median(seen) if seen else float("nan")
        print(f"{number:>8}{speeds[number]:>10,.0f}{speeds[number] / speeds[numbers[0]]:>8.2f}")
    print(f"\nsamples {result['epoch_samples']:,}, test AUC {result['test_auc']:.4f}, {training.took:.0f} s")
    path = Path(options.out) / "elastic.svg"
    picture(path, {"#06c": training.speeds}, changes, f"each trainer has {options.share:g} of a core")
    print(f"picture: {path}")
    samples = sum(1 for file in Path(options.data, "train").iterdir() for _ in file.open("rb"))
    if result["epoch_samples"] != samples:  # "rows" are those of the trainers that are left
        sys.exit(f"{samples:,} samples are in the data: some were lost or counted twice")


if __name__ == "__main__":
    main()
