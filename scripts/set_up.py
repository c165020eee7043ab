"""Installs the project, with what building and testing it needs, into the environment of this Python: `make setup`.

The native module takes minutes to compile, and so do the requirements to fetch and unpack; neither needs the other, so
they go side by side.

What building needs goes into the environment too. An environment made for each build would lie in another place each
time: every path to nanobind's headers would change, and everything be compiled anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "install", "--quiet"]
ASK_BACKEND = "from scikit_build_core.build import get_requires_for_build_editable as ask; print(*ask(), sep='\\n')"
COMPILE = "import sys; from scikit_build_core.build import build_editable; build_editable(sys.argv[1])"


def install(*arguments: str) -> None:
    # With byte code: where PYTHONDONTWRITEBYTECODE is set, as in many containers, every process would compile anew what
    # it imports, torch for one.
    subprocess.run([*PIP, *arguments], cwd=ROOT, check=True)


def build_tools(project: dict[str, object]) -> None:
    install(*project["build-system"]["requires"])  # type: ignore[index]
    # CMake and Ninja, where the machine has none.
    asked = subprocess.run([sys.executable, "-c", ASK_BACKEND], cwd=ROOT, check=True, capture_output=True, text=True)
    if wanted := asked.stdout.split():
        install(*wanted)


@contextmanager
def compiling() -> Iterator[None]:
    """The native module is compiled, into the folder where pip's build finds it, while the block runs."""
    with tempfile.TemporaryDirectory() as unused, tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            [sys.executable, "-c", COMPILE, unused],
            cwd=ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that the compilers can be ended with it
        )
        try:
            yield
            failed = child.wait()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                child.wait(timeout=60)
        if failed:
            said.seek(0)
            raise SystemExit(f"{said.read()}\nthe native module could not be compiled: see above")


def main() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    install("--upgrade", "pip")
    build_tools(project)
    wanted = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["test"]]
    with compiling():
        install("-c", "constraints.txt", *wanted)
    # Nothing is left to fetch or to compile: this puts the package itself into the environment.
    install("--no-build-isolation", "-c", "constraints.txt", "-e", ".[test]")


if __name__ == "__main__":
    main()
