"""Errors of ours in a script: one line and exit status 1; bugs keep their traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys
from sparsefleet.core.errors import DataError, plain_errors
atexit.register(lambda: print("ended by", type(sys.last_value).__name__))
plain_errors()
raise {raised}
"""


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        ("DataError('part-0: is gone')", 1, "error: part-0: is gone\n"),
        ("KeyboardInterrupt", -2, "interrupted\n"),
    ],
)
def test_a_script_ends_without_a_traceback(raised: str, status: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(raised=raised)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, said)
    # What runs at the end still finds the error: trainers tell their job why they end.
    assert done.stdout == f"ended by {raised.partition('(')[0]}\n"


def test_a_bug_keeps_its_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(raised="KeyError('x')")], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
