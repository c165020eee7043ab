from __future__ import annotations

from pathlib import Path

import pytest
from topical_text import topical_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 words in 2,000 lines, 24,000 words in all."""
    file = tmp_path_factory.mktemp("text") / "topics.txt"
    file.write_text(topical_text(2000))
    return file
