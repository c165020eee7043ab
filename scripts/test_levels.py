"""Runs the tests whose results depend on the kernels' level, once on every level that this machine has.

Levels that it lacks are named at the end: a run without them says nothing about them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sparsefleet.kernels import levels

ROOT = Path(__file__).parents[1]
TESTS = ("tests/kernels", "tests/nn", "tests/train")


def tested(level: str, arguments: list[str]) -> bool:
    print(f"\n=== level {level}", flush=True)
    command = [sys.executable, "-m", "pytest", "-m", "not slow", "-n", "2", *TESTS, *arguments]
    environment = {**os.environ, levels.VARIABLE: level, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


def main(arguments: list[str]) -> int:
    """`arguments` go to pytest."""
    available = levels.chosen.available
    failed = [level for level in available if not tested(level, arguments)]
    print(f"\nlevels tested: {', '.join(available)}")
    processor = levels.this_processor()
    for level in levels.LEVELS:
        if level.name not in available:
            print(f"!!! NOT TESTED: {level.name}: {levels.missing(level, processor) or 'it was not built'}")
    if failed:
        print(f"FAILED on: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
