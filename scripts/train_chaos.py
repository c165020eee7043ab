"""A job of two servers and two trainers under a killer, beside an undisturbed one; with a picture of it.

    python scripts/train_chaos.py --data runs/quickstart/data --out runs/chaos --mode async

Trains twice with `sparsefleet train`, the second time with `--restarts`, while a process of the job is killed every few
seconds. Prints samples, seconds and test AUC of both, and writes `chaos.svg`: rows a second over time, with the kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

LOOK_SECONDS = 0.5
WIDTH, HEIGHT, EDGE = 960, 320, 60


class Training:
    """One `sparsefleet train`, watched: what its launcher says, and how fast it trains."""

    def __init__(self, options: argparse.Namespace, name: str, *more: str) -> None:
        folder = Path(options.out) / name
        folder.mkdir(parents=True, exist_ok=True)
        self.token = secrets.token_hex(16)
        words = ["--data", f"{options.data}/train", "--test-data", f"{options.data}/test", "--mode", options.mode]
        words += ["--servers", "2", "--workers", "2", "--log-dir", str(folder / "log"), "--json", *more]
        self.begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparsefleet", "train", *words],
            env={**os.environ, "SPARSEFLEET_TOKEN": self.token},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids: dict[str, int] = {}
        self.said: list[tuple[float, str]] = []
        self.speeds: list[tuple[float, float]] = []
        self._endpoints: tuple[str, ...] = ()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._look)]
        for thread in self._threads:
            thread.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        out = self._process.stdout.read()
        status = self._process.wait()
        self.took = self.seconds
        self._threads[0].join(10)
        if status:
            sys.exit("\n".join(["the job failed:", *(text for _, text in self.said)]))
        return dict(json.loads(out.splitlines()[-1]))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.rstrip()
            self.said.append((self.seconds, text))
            if found := re.search(r"servers at (\S+)", text):
                self._endpoints = tuple(found[1].split(","))
            if found := re.search(r"((?:server|worker) \d+): running, pid (\d+)", text):
                self.pids[found[1]] = int(found[2])

    def _look(self) -> None:
        while self.running:
            time.sleep(LOOK_SECONDS)
            if self._endpoints:
                self.speeds.append((self.seconds, self._speed()))

    def _speed(self) -> float:
        """Rows a second of all trainers, as the servers know them; of each what the one says that heard of it last."""
        newest: dict[str, dict[str, Any]] = {}
        for index in range(len(self._endpoints)):
            link = ServerLink(RemoteConfig(self._endpoints, token=self.token), index)
            try:
                for worker, told in link.action("stats", {}, 1.0)["workers"].items():
                    if worker not in newest or told["last_seen_s"] < newest[worker]["last_seen_s"]:
                        newest[worker] = told
            except SparseFleetError:  # it is being started again, or the job is over
                return 0.0
            finally:
                link.client.close()
        at_work = [one for one in newest.values() if one.get("doing") == "training" and one["state"] == "present"]
        return float(sum(one.get("rows_per_s", 0.0) for one in at_work))


def kill_now_and_then(training: Training, kills: int, every: float, seed: int) -> list[tuple[float, str]]:
    chance, done = random.Random(seed), list[tuple[float, str]]()
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


def picture(calm: Training, killed: Training, kills: list[tuple[float, str]], path: Path) -> None:
    longest = max([at for at, _ in calm.speeds + killed.speeds], default=1.0)
    most = max([speed for _, speed in calm.speeds + killed.speeds], default=1.0) or 1.0

    def x(at: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * at / longest

    def y(speed: float) -> float:
        return HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * speed / most

    def line(speeds: list[tuple[float, float]], colour: str) -> str:
        points = " ".join(f"{x(at):.1f},{y(speed):.1f}" for at, speed in speeds)
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'

    def text(left: float, top: float, words: str, colour: str = "#333") -> str:
        return (
            f'<text x="{left:.1f}" y="{top:.1f}" font-size="11" font-family="sans-serif" fill="{colour}">{words}</text>'
        )

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', line(calm.speeds, "#bbb")]
    for at, role in kills:
        parts.append(f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y(most)}" y2="{y(0)}" stroke="#d33"/>')
        parts.append(text(x(at) + 2, y(most) - 4, role, "#d33"))
    parts += [line(killed.speeds, "#06c"), text(EDGE, HEIGHT - 20, f"0 to {longest:.0f} s")]
    parts += [text(4, y(most), f"{most:,.0f}"), text(4, y(0), "0 rows/s")]
    parts.append(text(EDGE + 120, HEIGHT - 20, "grey: undisturbed; blue: under a killer; red: a process is killed"))
    body = "\n".join(parts)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">\n{body}\n</svg>\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder with train and test")
    parser.add_argument("--out", default="runs/chaos", help="for logs and the picture (%(default)s)")
    parser.add_argument("--mode", default="async", help="(%(default)s)")
    parser.add_argument("--kills", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two, about (%(default)s)")
    parser.add_argument("--cut-every", type=float, default=3.0, help="seconds between cuts (%(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims (%(default)s)")
    options = parser.parse_args()
    epochs = ("--epochs", str(options.epochs))
    calm = Training(options, "calm", *epochs)
    calm_result = calm.result()
    heals = ("--restarts", str(2 * options.kills + 1), "--cut-every", str(options.cut_every))
    killed = Training(options, "killed", *epochs, *heals)
    kills = kill_now_and_then(killed, options.kills, options.every, options.seed)
    killed_result = killed.result()
    for at, said in killed.said:
        if "attempt" in said:
            print(f"{at:6.1f} s  {said}")
    print(f"\n{'':<14}{'samples':>12}{'seconds':>10}{'test AUC':>10}{'kills':>7}")
    for name, training, result, count in (
        ("undisturbed", calm, calm_result, 0),
        ("killed", killed, killed_result, len(kills)),
    ):
        print(f"{name:<14}{result['rows']:>12,}{training.took:>10.1f}{result['test_auc']:>10.4f}{count:>7}")
    path = Path(options.out) / "chaos.svg"
    picture(calm, killed, kills, path)
    print(f"\npicture: {path}")
    if calm_result["rows"] != killed_result["rows"]:
        sys.exit("samples were lost or counted twice")


if __name__ == "__main__":
    main()
