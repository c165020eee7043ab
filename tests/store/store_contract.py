"""StoreContract: what every ParameterStore must do. Subclass it and give it a `store` fixture."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.core.errors import CheckpointError, StoreError
from sparsefleet.core.initializer import Constant, Uniform
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.store.base import ParameterStore, RunFacts
from sparsefleet.table import SparseTable, TableSpec

SPEC = TableSpec("ads", 4, optim.SGD(1.0), Constant(0.0))
LIMIT = 30.0
"""Seconds that any answer may take."""


def u64(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def pull(store: ParameterStore, keys: np.ndarray, table: str = "ads", create: bool = True) -> np.ndarray:
    return store.pull(table, keys, create=create).wait(LIMIT)


def push(store: ParameterStore, keys: np.ndarray, grads: np.ndarray, table: str = "ads") -> None:
    store.push(table, keys, grads).wait(LIMIT)


class StoreContract:
    @pytest.fixture
    def store(self) -> ParameterStore:
        raise NotImplementedError

    # --- sparse

    def test_rows_belong_to_their_keys_whatever_the_order(self, store):
        store.create_table(replace(SPEC, initializer=Uniform(-1, 1)))
        keys = np.random.default_rng(0).permutation(5000).astype(np.uint64)
        rows = pull(store, keys)
        assert rows.shape == (5000, 4)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(pull(store, keys[::-1]), rows[::-1])
        assert len(np.unique(rows, axis=0)) == 5000

    def test_new_rows_are_those_of_a_table_in_process(self, store):
        spec = replace(SPEC, initializer=Uniform(-1, 1), seed=5)
        store.create_table(spec)
        keys = u64(0, 1, 77, 2**63, 2**64 - 1)
        np.testing.assert_array_equal(pull(store, keys), SparseTable(spec).pull(keys))

    def test_pushes_are_steps_of_the_rule(self, store):
        spec = replace(SPEC, rule=optim.Adam(0.1), initializer=Uniform(-1, 1))
        store.create_table(spec)
        twin, rng = SparseTable(spec), np.random.default_rng(1)
        for _ in range(5):
            keys = rng.permutation(300)[:100].astype(np.uint64)
            grads = rng.standard_normal((100, 4)).astype(np.float32)
            push(store, keys, grads)
            twin.push(keys, grads)
        everything = np.arange(300, dtype=np.uint64)
        np.testing.assert_array_equal(pull(store, everything), twin.pull(everything))

    def test_a_push_without_keys_is_a_step_too(self, store):
        spec = replace(SPEC, rule=optim.Adam(0.1))
        store.create_table(spec)
        twin = SparseTable(spec)
        for keys in (u64(), u64(1)):
            grads = np.ones((len(keys), 4), np.float32)
            push(store, keys, grads)
            twin.push(keys, grads)
        np.testing.assert_array_equal(pull(store, u64(1)), twin.pull(u64(1)))

    def test_calls_of_one_caller_take_effect_in_order(self, store):
        store.create_table(SPEC)
        keys, ones = u64(1, 2, 3), np.full((3, 4), -1.0, np.float32)
        pending = [(store.push("ads", keys, ones), store.pull("ads", keys)) for _ in range(10)]
        for count, (pushed, pulled) in enumerate(pending, start=1):
            pushed.wait(LIMIT)
            assert (pulled.wait(LIMIT) == count).all()

    def test_a_push_and_a_pull_in_one_see_the_push(self, store):
        store.create_table(SPEC)
        values = np.zeros(7, np.float32)
        store.create_dense("net", values, optim.SGD(1.0), [("w", (7,))])
        pushed, asked, fresh = u64(*range(100)), u64(*range(50, 150)), values.copy()
        step = {"ads": KeyedRows(pushed, np.full((100, 4), -1.0, np.float32))}
        for count in (1, 2):
            dense = {"net": np.full(7, -1.0, np.float32)}
            rows = store.push_and_pull(step, dense, {"ads": asked}, steps=1, fresh={"net": fresh}).wait(LIMIT)["ads"]
            before = SparseTable(SPEC).pull(asked)
            before[:50] += count
            np.testing.assert_allclose(rows, before)
            store.pull_dense("net", values).wait(LIMIT)
            assert (values == count).all()
        empty = store.push_and_pull(step, {}, {"ads": u64()}, steps=1).wait(LIMIT)["ads"]
        assert empty.shape == (0, 4)

    def test_rows_of_several_tables_in_one_call(self, store):
        other = replace(SPEC, name="users", dim=3)
        store.create_table(SPEC)
        store.create_table(other)
        ads, users = u64(*range(70)), u64(*range(40, 45))
        step = {"users": KeyedRows(users, np.full((5, 3), -1.0, np.float32))}
        alone = {spec.name: SparseTable(spec) for spec in (SPEC, other)}
        for asked in ({"ads": ads, "users": users}, {"users": users, "ads": u64()}, {}):
            found = store.pull_all(asked).wait(LIMIT)
            assert list(found) == list(asked)
            for name, keys in asked.items():
                np.testing.assert_array_equal(found[name], alone[name].pull(keys))
            found = store.push_and_pull(step, {}, asked, steps=1).wait(LIMIT)
            alone["users"].push(users, step["users"].rows)
            assert list(found) == list(asked)
            for name, keys in asked.items():
                np.testing.assert_array_equal(found[name], alone[name].pull(keys))

    def test_rows_are_not_created_when_not_asked_for_and_misses_are_counted(self, store):
        store.create_table(replace(SPEC, initializer=Constant(1.0)))
        pull(store, u64(1))
        np.testing.assert_array_equal(pull(store, u64(1, 2, 3), create=False)[:, 0], [1, 0, 0])
        stats = store.stats()["tables"]["ads"]
        assert (stats["rows"], stats["misses"]) == (1, 2)

    def test_empty_calls_are_fine(self, store):
        store.create_table(SPEC)
        assert pull(store, u64()).shape == (0, 4)

    def test_tables_do_not_mix(self, store):
        store.create_table(SPEC)
        store.create_table(replace(SPEC, name="users", dim=2))
        push(store, u64(1), np.full((1, 4), -1.0, np.float32))
        assert (pull(store, u64(1), "users") == 0).all()
        assert pull(store, u64(1), "users").shape == (1, 2)
        assert set(store.stats()["tables"]) == {"ads", "users"}

    def test_a_table_may_be_created_again_with_the_same_spec_only(self, store):
        store.create_table(SPEC)
        push(store, u64(1), np.full((1, 4), -1.0, np.float32))
        store.create_table(SPEC)
        assert (pull(store, u64(1)) == 1).all()
        with pytest.raises(StoreError, match=r"(?s)'ads'.*dim.*4.*8"):
            store.create_table(replace(SPEC, dim=8))
        with pytest.raises(StoreError, match=r"(?s)'ads'.*rule.*SGD.*Adam"):
            store.create_table(replace(SPEC, rule=optim.Adam()))

    def test_wrong_calls_are_refused_and_the_store_goes_on(self, store):
        store.create_table(SPEC)
        with pytest.raises(StoreError, match=r"no table 'cats'.*ads"):
            pull(store, u64(1), "cats")
        with pytest.raises(StoreError, match=r"'ads'.*\[1, 4\]; got \[1, 5\]"):
            push(store, u64(1), np.zeros((1, 5), np.float32))
        with pytest.raises(StoreError, match=r"'ads'.*uint64; got an array of int64"):
            pull(store, np.array([1]))
        assert (pull(store, u64(1)) == 0).all()

    def test_threads_lose_no_update(self, store):
        store.create_table(SPEC)
        keys, grads, errors = np.arange(500, dtype=np.uint64), np.full((500, 4), -0.25, np.float32), []

        def work() -> None:
            try:
                for _ in range(25):
                    push(store, keys, grads)
                    pull(store, keys)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not errors
        assert (pull(store, keys) == 0.25 * 4 * 25).all()

    # --- dense

    def test_a_dense_block_is_updated_and_read(self, store):
        values = np.zeros(1000, np.float32)
        store.create_dense("net", values, optim.SGD(0.5), [("w", (len(values),))])
        store.push_dense("net", np.full(1000, -1.0, np.float32)).wait(LIMIT)
        store.pull_dense("net", values).wait(LIMIT)
        assert (values == 0.5).all()
        other = np.empty(1000, np.float32)
        store.pull_dense("net", other).wait(LIMIT)
        assert (other == 0.5).all()

    def test_a_dense_block_that_exists_fills_the_array(self, store):
        first, second = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
        store.create_dense("net", first, optim.SGD(0.5), [("w", (len(first),))])
        store.create_dense("net", second, optim.SGD(0.5), [("w", (len(second),))])
        np.testing.assert_array_equal(second, np.arange(10))

    def test_dense_rules_keep_their_state(self, store):
        values, expected = np.zeros(10, np.float32), np.zeros(10, np.float32)
        store.create_dense("net", values, optim.Adagrad(1.0), [("w", (len(values),))])
        squares = np.zeros(10, np.float32)
        for step in range(1, 4):
            grads = np.arange(10, dtype=np.float32) - step
            store.push_dense("net", grads).wait(LIMIT)
            squares += grads * grads
            expected -= grads / (np.sqrt(squares) + np.float32(1e-10))
        store.pull_dense("net", values).wait(LIMIT)
        np.testing.assert_allclose(values, expected, rtol=1e-6)

    def test_wrong_dense_calls_are_refused(self, store):
        store.create_dense("net", np.zeros(10, np.float32), optim.SGD(0.5), [("w", (10,))])
        with pytest.raises(StoreError, match=r"no dense block 'tower'.*net"):
            store.push_dense("tower", np.zeros(10, np.float32)).wait(LIMIT)
        with pytest.raises(StoreError, match=r"'net' has 10 values.*\[9\]"):
            store.push_dense("net", np.zeros(9, np.float32)).wait(LIMIT)
        with pytest.raises(StoreError, match=r"'net' has 10 values.*\[9\]"):
            store.pull_dense("net", np.zeros(9, np.float32)).wait(LIMIT)
        with pytest.raises(StoreError, match=r"'net' exists with another rule.*SGD.*Adam"):
            store.create_dense("net", np.zeros(10, np.float32), optim.Adam(), [("w", (10,))])
        with pytest.raises(StoreError, match=r"'net' exists with another layout: w \[10\] there, w \[5, 2\] here"):
            store.create_dense("net", np.zeros(10, np.float32), optim.SGD(0.5), [("w", (5, 2))])


class CutContract:
    """What a store that names a moment by itself must do, beside `StoreContract`."""

    def test_a_cut_is_written_as_of_its_moment_while_pushes_go_on(self, store, tmp_path: Path):
        store.create_table(replace(SPEC, rule=optim.Adagrad(1.0), initializer=Uniform(-1, 1)))
        store.create_table(replace(SPEC, name="users", dim=2))
        values, keys = np.zeros(10, np.float32), np.arange(3000, dtype=np.uint64)
        store.create_dense("net", values, optim.Adagrad(1.0), [("w", (10,))])

        def step(number: int) -> None:
            push(store, keys, np.full((len(keys), 4), number, np.float32))
            push(store, keys[::2], np.full((len(keys) // 2, 2), number, np.float32), "users")
            store.push_dense("net", np.full(10, number, np.float32)).wait(LIMIT)

        step(1)
        store.save(str(tmp_path / "still"), RunFacts(step=1))
        with store.cut() as cut:
            step(2)
            pull(store, np.arange(5000, 6000, dtype=np.uint64))
            cut.write(str(tmp_path / "moving"), RunFacts(step=1))
            step(3)
        still, moving = (_contents(tmp_path / name) for name in ("still", "moving"))
        assert still == moving
        assert len(still["ads"]) == 3000

    def test_one_cut_at_a_time_and_no_load_until_it_is_closed(self, store, tmp_path: Path):
        store.create_table(SPEC)
        values = np.zeros(4, np.float32)
        store.create_dense("net", values, optim.SGD(0.5), [("w", (4,))])
        push(store, u64(1, 2), np.full((2, 4), -1.0, np.float32))
        store.save(str(tmp_path / "first"), RunFacts())
        cut = store.cut()
        with pytest.raises(StoreError, match=r"'ads'.*open already"):
            store.cut()
        push(store, u64(1, 2), np.full((2, 4), -1.0, np.float32))
        store.push_dense("net", np.full(4, -2.0, np.float32)).wait(LIMIT)
        with pytest.raises(StoreError, match=r"'ads'.*cannot be replaced while a checkpoint"):
            store.load(str(tmp_path / "first"))
        assert (pull(store, u64(1)) == 2).all()
        assert (values == 1).all(), "a load that is refused changes nothing"
        cut.close()
        cut.close()
        store.load(str(tmp_path / "first"))
        assert (pull(store, u64(1)) == 1).all()
        assert (values == 0).all()
        store.cut().close()

    def test_a_cut_whose_writing_fails_leaves_the_store_as_it_is(self, store, tmp_path: Path):
        store.create_table(SPEC)
        push(store, u64(1, 2), np.full((2, 4), -1.0, np.float32))
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(CheckpointError), store.cut() as cut:
            cut.write(str(tmp_path / "file" / "there"), RunFacts())
        push(store, u64(1, 2), np.full((2, 4), -1.0, np.float32))
        store.save(str(tmp_path / "here"), RunFacts())
        assert len(_contents(tmp_path / "here")["ads"]) == 2


def _contents(path: Path) -> dict[str, object]:
    """All that a checkpoint holds, comparable."""
    checkpoint = Checkpoint.open(str(path))
    contents: dict[str, object] = {"tables": checkpoint.manifest.tables, "blocks": checkpoint.manifest.blocks}
    for info in checkpoint.manifest.tables:
        contents[info.name] = {
            int(key): (rows.values[i].tobytes(), rows.state[i].tobytes(), int(rows.seen[i]), int(rows.touched[i]))
            for rows in checkpoint.sparse_rows(info.name)
            for i, key in enumerate(rows.keys)
        }
    for block in checkpoint.manifest.blocks:
        piece = checkpoint.dense_cut(block.name, 0, block.size)
        contents[block.name] = (piece.values.tobytes(), piece.state.tobytes())
    return contents
