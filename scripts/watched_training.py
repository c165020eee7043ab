"""A `sparsefleet train` of two servers that is watched, and a picture of its speed over time."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
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
        words += ["--servers", "2", "--log-dir", str(folder / "log"), "--json", *more]
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
        self.endpoints: tuple[str, ...] = ()
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
                self.endpoints = tuple(found[1].split(","))
            if found := re.search(r"((?:server|worker) \d+): running, pid (\d+)", text):
                self.pids[found[1]] = int(found[2])

    def _look(self) -> None:
        while self.running:
            time.sleep(LOOK_SECONDS)
            if self.endpoints:
                self.speeds.append((self.seconds, self._speed()))

    def _speed(self) -> float:
        """Rows a second of all trainers, as the servers know them; of each what the one says that heard of it last."""
        newest: dict[str, dict[str, Any]] = {}
        for index in range(len(self.endpoints)):
            link = ServerLink(RemoteConfig(self.endpoints, token=self.token), index)
            try:
                for worker, told in link.action("stats", {}, 1.0)["workers"].items():
                    if worker not in newest or told["last_seen_s"] < newest[worker]["last_seen_s"]:
                        newest[worker] = told
            except SparseFleetError:  # it is being started again, or the job is over
                return 0.0
            finally:
                link.client.close()
        at_work = [one for one in newest.values() if one.get("doing") == "training" and one["state"] == "present"]
        return float(sum(one.get("rows_per_s") or 0.0 for one in at_work))  # None: not known yet


def picture(
    path: Path, lines: dict[str, list[tuple[float, float]]], events: list[tuple[float, str]], words: str
) -> None:
    """Draw rows a second over time.

    lines: by their colour.
    events: when what happened.
    """
    longest = max([at for speeds in lines.values() for at, _ in speeds], default=1.0)
    most = max([speed for speeds in lines.values() for _, speed in speeds], default=1.0) or 1.0

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

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for number, (at, what) in enumerate(events):
        parts.append(f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y(most)}" y2="{y(0)}" stroke="#d33"/>')
        parts.append(text(x(at) + 2, y(most) - 4 - 12 * (number % 2), what, "#d33"))  # neighbours may be close
    parts += [line(speeds, colour) for colour, speeds in lines.items()]
    parts += [text(EDGE, HEIGHT - 20, f"0 to {longest:.0f} s"), text(EDGE + 120, HEIGHT - 20, words)]
    parts += [text(4, y(most), f"{most:,.0f}"), text(4, y(0), "0 rows/s")]
    body = "\n".join(parts)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">\n{body}\n</svg>\n')
