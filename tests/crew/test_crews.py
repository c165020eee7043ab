"""One process, and trainers on servers, are crews by the same contract."""

from __future__ import annotations

import pytest
from crew_contract import CrewContract
from server_processes import servers

from sparsefleet.crew import CrewOfOne


class TestCrewOfOne(CrewContract):
    size = 1

    @pytest.fixture
    def crews(self):
        return [CrewOfOne()]


class TestRemoteCrew(CrewContract):
    size = 3

    @pytest.fixture
    def crews(self):
        with servers() as fleet:
            yield [store.crew for store in fleet.start(2).stores_of_all(3)]
