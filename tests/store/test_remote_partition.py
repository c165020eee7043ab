"""Which server holds what."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.store.partition import dense_cut, server_of, split_keys
from sparsefleet.store.remote.config import RemoteConfig


def test_keys_keep_their_servers_for_ever():
    keys = np.array([0, 1, 2, 1382, 1_000_000, 2**63, 2**64 - 1], np.uint64)
    assert server_of(keys, 3).tolist() == [0, 2, 0, 0, 0, 1, 1]
    assert server_of(keys, 1).tolist() == [0] * 7


@pytest.mark.parametrize("servers", [2, 3, 7])
def test_keys_of_any_kind_spread_evenly(servers):
    for keys in (np.arange(100_000), np.arange(100_000) * 64, np.random.default_rng(0).integers(0, 2**63, 100_000)):
        counts = np.bincount(server_of(keys.astype(np.uint64), servers).astype(int), minlength=servers)
        assert abs(counts * servers / 100_000 - 1).max() < 0.05


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_a_split_takes_every_key_once(servers):
    keys = np.random.default_rng(1).integers(0, 2**63, 1000).astype(np.uint64)
    split, seen = split_keys(keys, servers), []
    for server in range(servers):
        mine = keys[split.places(server)]
        assert len(mine) == split.counts[server]
        assert (server_of(mine, servers) == server).all()
        seen += mine.tolist()
    assert sorted(seen) == sorted(keys.tolist())


def test_dense_cuts_cover_a_block_once():
    for size, servers in ((10, 3), (2, 5), (0, 2), (431_000, 7)):
        cuts = [dense_cut(size, server, servers) for server in range(servers)]
        assert cuts[0][0] == 0
        assert cuts[-1][1] == size
        assert all(left[1] == right[0] for left, right in pairwise(cuts))


def test_wrong_addresses_are_refused():
    for endpoints, reason in [
        ((), "endpoints is empty"),
        (("localhost",), "'localhost' must be host:port"),
        (("a:0",), "'a:0' must be host:port"),
        (("a:1", "a:1"), "a server is named twice"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            RemoteConfig(endpoints)
    with pytest.raises(ConfigError, match="worker=2 must be 0 to 1: there are 2 workers"):
        RemoteConfig(("a:1",), 2, 2)
