"""Builds the native module with AddressSanitizer and UndefinedBehaviorSanitizer, and runs tests of kernels on it.

    python scripts/test_native.py [arguments of pytest; default: tests/kernels]

The first report of a sanitizer ends the run. The build has a folder of its own and stays there for the next time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sparsefleet.kernels import levels

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "sanitized"
INSTALLED = BUILD / "installed"
SETTINGS = {
    "build-dir": str(BUILD / "cmake"),
    "cmake.define.SPARSEFLEET_SANITIZE": "address,undefined",
    "install.strip": "false",  # reports name functions and lines
}
POOR_LEVELS = ("baseline", "avx2")
"""Where the machine has no richer one, the others are left out: nothing would run them, and they take long to build."""

RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so")
"""Python itself is compiled without sanitizers, so they must be there before it. The last: for exceptions in C++."""

TESTS = f"""
import sys
from pathlib import Path
import pytest
from sparsefleet.kernels import _native
module = Path(_native.__file__)
assert module.is_relative_to({str(INSTALLED)!r}), f"{{module}} is not the sanitized module"
for name in (b"__asan_init", b"__ubsan_handle"):
    assert name in module.read_bytes(), f"{{module}} was built without sanitizers"
sys.exit(pytest.main(sys.argv[1:]))
"""


def install() -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--upgrade"]
    settings = dict(SETTINGS)
    if levels.chosen.level in POOR_LEVELS:
        settings["cmake.define.SPARSEFLEET_LEVELS"] = ";".join(POOR_LEVELS)
    given = [f"--config-settings={name}={value}" for name, value in settings.items()]
    subprocess.run([*pip, f"--target={INSTALLED}", *given, "."], cwd=ROOT, check=True)


def runtime(library: str) -> str:
    asked = subprocess.run(["gcc", f"-print-file-name={library}"], check=True, capture_output=True, text=True)
    return asked.stdout.strip()


def main(arguments: list[str]) -> int:
    install()
    environment = {
        **os.environ,
        # Without `site` (-S) nothing of this environment's own install of the package gets in between.
        "PYTHONPATH": os.pathsep.join([str(INSTALLED), *filter(None, sys.path)]),
        "PYTHONMALLOC": "malloc",  # Python's own would hide writes beyond the end
        "LD_PRELOAD": " ".join(map(runtime, RUNTIMES)),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaves things to the system when it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    tests = ["-p", "no:xdist", "--timeout=600", *(arguments or ["tests/kernels"])]
    return subprocess.run([sys.executable, "-S", "-c", TESTS, *tests], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
