"""What the tests of table kernels share."""

from __future__ import annotations

import threading
from types import ModuleType

import numpy as np
import pytest
from hypothesis import strategies as st
from level_faces import others

from sparsefleet.kernels import table as native
from sparsefleet.kernels.reference import table as reference

SGD, ADAGRAD, ROWWISE, ADAM, FTRL = PLAIN = range(5)
NOTING_SGD, NOTING_ADAGRAD, NOTING_ROWWISE, NOTING_ADAM, NOTING_FTRL = NOTED = [native.NOTING + kind for kind in PLAIN]
_HYPER = {
    SGD: [0.01],
    ADAGRAD: [1e-10, 0.01],
    ROWWISE: [1e-8, 0.01],
    ADAM: [0.9, 0.999, 1e-8, 0.01],
    FTRL: [0.05, 0.1, 1.0],
}
HYPER = _HYPER | {native.NOTING + kind: numbers for kind, numbers in _HYPER.items()}
UNIFORM, NORMAL, CONSTANT = range(3)
BOTH = pytest.mark.parametrize(
    "kernels", [pytest.param(native, id="native"), *others("table"), pytest.param(reference, id="reference")]
)

keys_of = st.lists(
    st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1), st.just(2**64 - 1)), unique=True, max_size=300
)


def width(kind: int, dim: int) -> int:
    if kind in NOTED:
        return width(kind - native.NOTING, dim) + dim
    return {SGD: 0, ADAGRAD: dim, ROWWISE: 1, ADAM: 2 * dim, FTRL: 2 * dim}[kind]


def make(kernels: ModuleType, dim: int, kind: int, initial_state: float = 0.0):
    return kernels.RowTable(dim, width(kind, dim), 11, UNIFORM, -0.5, 0.5, initial_state, notes=kind in NOTED)


def u64(values) -> np.ndarray:
    return np.array(values, np.uint64)


def hyper(kind: int) -> np.ndarray:
    return np.array(HYPER[kind], np.float64)


def pulled(table, keys: np.ndarray, create: bool = True) -> np.ndarray:
    out = np.full((len(keys), table.dim), np.nan, np.float32)
    table.pull(keys, out, create)
    return out


def all_rows(table, max_rows: int = 1000) -> dict[int, tuple[bytes, bytes, int, int]]:
    rows, cursor = {}, 0
    while True:
        keys, values, state, seen, touched, cursor = table.scan(cursor, max_rows)
        if len(keys) == 0:
            return rows
        for i, key in enumerate(keys.tolist()):
            assert key not in rows, "a row came twice"
            rows[key] = (values[i].tobytes(), state[i].tobytes(), int(seen[i]), int(touched[i]))


def run_threads(jobs) -> None:
    errors = []

    def guarded(job):
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a thread hangs"
    assert not errors
