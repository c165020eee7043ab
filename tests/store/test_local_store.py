"""LocalStore: the contract, and what is true in process only."""

from __future__ import annotations

import numpy as np
import pytest
from store_contract import SPEC, CutContract, StoreContract, u64

from sparsefleet import optim
from sparsefleet.store import LocalStore


class TestLocalStore(StoreContract, CutContract):
    @pytest.fixture
    def store(self):
        store = LocalStore()
        yield store
        store.close()

    def test_the_dense_array_is_the_block_itself(self, store):
        values = np.zeros(10, np.float32)
        store.create_dense("net", values, optim.SGD(0.5), [("w", (10,))])
        store.push_dense("net", np.full(10, -1.0, np.float32))
        assert (values == 0.5).all()
        assert store.dense_tables()["net"].values is values

    def test_tables_are_there_to_look_at_but_not_to_replace(self, store):
        store.create_table(SPEC)
        store.push("ads", u64(1, 2), np.zeros((2, 4), np.float32))
        assert store.sparse_tables()["ads"].rows == 2
        with pytest.raises(TypeError, match="does not support item assignment"):
            store.sparse_tables()["ads"] = None
