from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine, command_line

from sparsefleet.datasets.synth import SynthSpec, synth


@pytest.fixture(scope="session")
def small_clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Criteo-like files: train/ (4 files, 2,000 rows), test/ (1 file, 700 rows)."""
    folder = tmp_path_factory.mktemp("clicks") / "data"
    synth(folder, SynthSpec(rows=2000, test_rows=700, parts=4, seed=3))
    return folder


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path) as made:
        yield made
