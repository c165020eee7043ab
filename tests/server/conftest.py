from __future__ import annotations

import pytest
from server_processes import Servers, servers


@pytest.fixture
def fleet() -> Servers:
    """Server processes to start; all are ended with the test."""
    with servers() as made:
        yield made
