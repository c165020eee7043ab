"""A job of two servers and two trainers under a killer, beside undisturbed ones; with a picture of it.

    python scripts/train_chaos.py --data runs/quickstart/data --out runs/chaos --mode async

Trains with `sparsefleet train`, first some times undisturbed, which tells how much the test AUC differs between runs
(where trainers do not wait for each other it does), then with `--restarts`, while a process of the job is killed every
few seconds. Prints the samples of an epoch, seconds and test AUC of all, and writes `chaos.svg`: rows a second over
time, with the kills. The status is 1 where samples were lost or doubled, or where the test AUC is further from the
undisturbed runs' than those are from each other.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from watched_training import Training, picture

NOISE = 0.002
"""Allowed in any case: a few undisturbed runs may happen to lie closer together than others would."""


def kill_now_and_then(training: Training, kills: int, every: float, seed: int) -> list[tuple[float, str]]:
    chance, done = random.Random(seed), list[tuple[float, str]]()
    while training.running and not any(speed for _, speed in training.speeds):
        time.sleep(0.1)
    while training.running and len(done) < kills:
        until = training.seconds + every * chance.uniform(0.5, 1.5)
        while training.running and training.seconds < until:
            time.sleep(0.1)
        if training.running and training.pids:
            role = chance.choice(sorted(training.pids))
            try:
                os.kill(training.pids[role], signal.SIGKILL)
                done.append((training.seconds, role))
            except OSError:  # it is being started again
                continue
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder with train and test")
    parser.add_argument("--out", default="runs/chaos", help="for logs and the picture (%(default)s)")
    parser.add_argument("--mode", default="async", help="(%(default)s)")
    parser.add_argument("--calm", type=int, default=3, help="undisturbed runs (%(default)s)")
    parser.add_argument("--kills", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two, about (%(default)s)")
    parser.add_argument("--cut-every", type=float, default=3.0, help="seconds between cuts (%(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the victims (%(default)s)")
    options = parser.parse_args()
    if options.calm < 1:
        parser.error("--calm must be 1 or above")
    usual = ("--workers", "2", "--epochs", str(options.epochs))
    calm = list[tuple[Training, dict[str, Any]]]()
    for _ in range(options.calm):
        training = Training(options, "calm", *usual)
        calm.append((training, training.result()))
    heals = ("--restarts", str(2 * options.kills + 1), "--cut-every", str(options.cut_every))
    killed = Training(options, "killed", *usual, *heals)
    kills = kill_now_and_then(killed, options.kills, options.every, options.seed)
    killed_result = killed.result()
    for at, said in killed.said:
        if "attempt" in said:
            print(f"{at:6.1f} s  {said}")
    print(f"\n{'':<14}{'an epoch':>12}{'seconds':>10}{'test AUC':>10}{'kills':>7}")
    for name, training, result, count in (
        *(("undisturbed", *each, 0) for each in calm),
        ("killed", killed, killed_result, len(kills)),
    ):
        print(f"{name:<14}{result['epoch_samples']:>12,}{training.took:>10.1f}{result['test_auc']:>10.4f}{count:>7}")
    path = Path(options.out) / "chaos.svg"
    words = "grey: undisturbed; blue: under a killer; red: a process is killed"
    picture(path, {"#bbb": calm[0][0].speeds, "#06c": killed.speeds}, kills, words)
    print(f"\npicture: {path}")
    if len(kills) < options.kills:
        sys.exit(
            f"the job was over after {len(kills)} of {options.kills} kills: give more --epochs, or a smaller --every"
        )
    if calm[0][1]["epoch_samples"] != killed_result["epoch_samples"]:
        sys.exit("samples were lost or counted twice")
    low, high = within([result["test_auc"] for _, result in calm])
    if not low <= killed_result["test_auc"] <= high:
        sys.exit(f"the test AUC is not within the noise of undisturbed runs: {low:.4f} to {high:.4f}")


def within(undisturbed: list[float]) -> tuple[float, float]:
    """Where another run's AUC is to be expected: as far outside of these as they lie apart, and at least `NOISE`."""
    noise = max(NOISE, max(undisturbed) - min(undisturbed))
    return min(undisturbed) - noise, max(undisturbed) + noise


if __name__ == "__main__":
    main()
