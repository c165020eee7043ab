"""README's rows by curl, as `sparsefleet infer` scores them: export, serve and ask as a user does."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from bundle_fixtures import NAMES, probabilities_in
from command_line import command_line
from http_server import serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "rows.json"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl on this machine")
def test_the_examples_rows_by_curl_are_what_infer_wrote(trained, tmp_path):
    rows = json.loads(EXAMPLE.read_text())["rows"]
    lines = ["\t".join(["0", *("" if row[name] is None else str(row[name]) for name in NAMES)]) for row in rows]
    (tmp_path / "rows").write_text("".join(line + "\n" for line in lines))
    with command_line(tmp_path) as user:
        user.result("export", trained.checkpoint(3), "--out", "bundle")
        user.result("infer", trained.checkpoint(3), "--data", "rows", "--output", "scores.csv")
        with serving(tmp_path / "bundle") as server:
            command = ["curl", "-s", "--max-time", "20", f"{server.url}/v1/predict", "-d", f"@{EXAMPLE}"]
            said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    scores = json.loads(said)["scores"]
    assert len(scores) == 2
    np.testing.assert_allclose(scores, probabilities_in(tmp_path / "scores.csv"), atol=1e-6, rtol=0)
