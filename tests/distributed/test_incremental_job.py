"""Incremental training with real processes: a job starts from what another job, on other servers, has saved."""

from __future__ import annotations

import pytest
from role_processes import role_job

from sparsefleet.checkpoint import Checkpoint


def manifest_of_job(folder, **settings):
    folder.mkdir()
    with role_job(folder, pace=0.0, timeout=20.0, save_to=str(folder / "saved"), **settings) as job:
        job.start_all()
        for name in job.processes:
            assert job.exit_of(name, 40) == 0, job.logs()
    return Checkpoint.open(folder / "saved").manifest


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "async"])
def test_a_job_goes_on_from_another_with_new_features(tmp_path, mode):
    first = manifest_of_job(tmp_path / "first", servers=2, workers=2, mode=mode, steps=20)
    rounds = 20 if mode == "sync" else 40
    assert {info.step for info in (*first.tables, *first.blocks)} == {rounds}
    second = manifest_of_job(
        tmp_path / "second",
        servers=3,
        workers=1,
        mode=mode,
        steps=15,
        first_key=150,
        start_from=str(tmp_path / "first" / "saved"),
    )
    assert {info.step for info in (*second.tables, *second.blocks)} == {rounds + 15}
    rows = [sum(entry.rows for entry in each.files if entry.rows) for each in (first, second)]
    assert rows == [200, 350]  # keys 0-199, then 150-349
