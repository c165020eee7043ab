"""The Makefile and its scripts: nothing that fails is lost, and help names every target."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def all_of(*commands: str) -> subprocess.CompletedProcess[str]:
    script = ["sh", str(ROOT / "scripts" / "all_of.sh"), *commands]
    return subprocess.run(script, capture_output=True, text=True, timeout=30)


def test_all_commands_run_and_those_that_failed_are_named_at_the_end():
    ended = all_of("echo one; exit 3", "echo two", "echo 'three  spaced'; false")
    assert ended.returncode == 1
    said = [line for line in ended.stdout.splitlines() if not line.startswith("echo")]
    assert said == ["one", "two", "three  spaced"]
    assert ended.stderr.splitlines() == ["FAILED:", "  echo one; exit 3", "  echo 'three  spaced'; false"]


def test_all_commands_that_succeed_are_a_success():
    ended = all_of("true", "echo fine")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_help_names_every_target():
    declared = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert declared
    for target in set(declared[1].split()) - {"help", "setup"}:
        assert f'@echo "make {target} ' in MAKEFILE, f"make help does not name {target}"


def test_a_dry_run_runs_nothing():
    """Make runs every line with its own variable in it, even when it is only asked what it would do."""
    assert "$(MAKE)" not in MAKEFILE
