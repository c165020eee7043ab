"""A whole job in a network of its own, whose link goes down for a while."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
LIMIT = 200.0


def run(folder: Path, down: float, timeout: float) -> dict[str, Any]:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("network namespaces need the commands unshare and ip")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here, which needs root")
    command = ["unshare", "--net", sys.executable, str(HERE / "job_of_a_link.py"), str(folder), str(down), str(timeout)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_link_that_is_down_for_three_seconds_heals_without_a_restart(tmp_path: Path) -> None:
    found = run(tmp_path, 3.0, 20.0)
    assert found["attempts"] == 1, found


def test_one_that_is_down_for_longer_than_the_time_out_is_a_loss(tmp_path: Path) -> None:
    found = run(tmp_path, 8.0, 4.0)
    assert found["attempts"] > 1, found
