"""Training with exact tables: resumed to the same bits, scored as saved, with many threads at once."""

from __future__ import annotations

import numpy as np
from fit_jobs import assert_same_bits, every, network, rows_of, trainer
from small_jobs import in_threads

from sparsefleet import optim
from sparsefleet.table import SparseTable, TableSpec

EXACT = optim.Adam(1e-3, epsilon=1e-6, weight_decay=1e-3, exact=True, schedule=optim.schedule.LinearWarmup(40))


def test_a_resumed_run_ends_with_the_same_bits(clicks, tmp_path):
    whole = trainer(rule=EXACT)
    whole.fit(network(), rows_of(clicks), epochs=2)
    trainer(rule=EXACT).fit(network(), rows_of(clicks), epochs=2, save=every(tmp_path / "run", 25))
    for step in (25, 60, 75):
        job = trainer(rule=EXACT)
        job.fit(network(seed=99), rows_of(clicks), epochs=2, resume=str(tmp_path / "run" / f"step-{step:08d}"))
        assert_same_bits(whole, job)


def test_what_is_scored_is_what_is_saved(clicks, tmp_path):
    job, model, test = trainer(rule=EXACT), network(), rows_of(clicks, part="test")
    job.fit(model, rows_of(clicks), save=every(tmp_path / "run"))
    for values_only in (False, True):
        other, again = trainer(rule=EXACT), network(seed=99)
        other.load(again, str(tmp_path / "run"), values_only=values_only)
        assert other.evaluate(again, test) == job.evaluate(model, test)
    lazy, lazy_model = trainer(rule=optim.Adam(1e-3, epsilon=1e-6, weight_decay=1e-3)), network()
    lazy.fit(lazy_model, rows_of(clicks))
    assert lazy.evaluate(lazy_model, test) != job.evaluate(model, test)


def test_threads_that_read_and_push_at_once_leave_rows_of_the_last_step():
    table = SparseTable(TableSpec("ads", 8, EXACT))

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(100):
            keys = rng.permutation(300)[:40].astype(np.uint64)
            table.push(keys, 1e-3 * table.pull(keys))

    in_threads([lambda seed=seed: work(seed) for seed in range(4)])
    assert table.step == 400
    for rows in table.scan():
        assert (rows.touched == 400).all()
        assert np.isfinite(rows.values).all()
    everything = np.arange(300, dtype=np.uint64)
    cut = table.begin_cut()
    before = table.pull(everything)
    in_threads([lambda seed=seed: work(seed) for seed in range(4)])
    with cut:  # as of its own step, whatever has been caught up since
        found = {int(key): values for rows in cut.scan() for key, values in zip(rows.keys, rows.values, strict=True)}
    np.testing.assert_array_equal(np.stack([found[int(key)] for key in everything]), before)
