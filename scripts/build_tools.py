"""Installs what building needs into the environment of this Python, so that builds can go without one of their own.

An environment made for each build lies in another place each time: every path to nanobind's headers would change, and
everything be compiled anew.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
ASK_BACKEND = "from scikit_build_core.build import get_requires_for_build_editable as ask; print(*ask(), sep='\\n')"


def install(requirements: list[str]) -> None:
    if requirements:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *requirements], check=True)


def main() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        install(tomllib.load(file)["build-system"]["requires"])
    # CMake and Ninja, where the machine has none.
    asked = subprocess.run([sys.executable, "-c", ASK_BACKEND], cwd=ROOT, check=True, capture_output=True, text=True)
    install(asked.stdout.split("\n")[:-1])


if __name__ == "__main__":
    main()
