"""RemoteStore: the contract, over real servers."""

from __future__ import annotations

import pytest
from server_processes import servers
from store_contract import StoreContract


class RemoteContract(StoreContract):
    count: int

    @pytest.fixture
    def store(self):
        with servers() as fleet:
            yield fleet.start(self.count).store()


class TestOneServer(RemoteContract):
    count = 1


class TestTwoServers(RemoteContract):
    count = 2


class TestThreeServers(RemoteContract):
    count = 3
