"""Checkpoints within an epoch of several trainers: killed there and resumed, a job ends as if nothing had happened."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from role_processes import RoleJob, role_job
from small_jobs import TABLE, Given, batches, cluster, in_threads, small_model

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import CheckpointError, SparseFleetError, StoreError
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.fleet import DistributedStrategy, Role
from sparsefleet.fleet.optimizer import DistributedOptimizer
from sparsefleet.metrics import ClickMetrics
from sparsefleet.store.shards import ShardCut
from sparsefleet.train import SavePolicy, Trainer

ROWS, EPOCHS = 2000, 2
SECONDS = 60
"""For a job of 2 x 20 steps."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("within") / "d"
    synth(folder, SynthSpec(rows=ROWS, test_rows=10, parts=4, seed=11))
    return str(folder / "train")


class Saved:
    """What a checkpoint holds, in an order that does not depend on the servers."""

    def __init__(self, path: str | Path) -> None:
        self.checkpoint = Checkpoint.open(latest(path))
        self.manifest = self.checkpoint.manifest
        parts = list(self.checkpoint.sparse_rows(TABLE))
        order = np.argsort(np.concatenate([part.keys for part in parts]))
        self.keys, self.values, self.state, self.seen = (
            np.concatenate([getattr(part, name) for part in parts])[order]
            for name in ("keys", "values", "state", "seen")
        )
        (block,) = self.manifest.blocks
        self.dense = self.checkpoint.dense_cut(block.name, 0, block.size).values

    @property
    def rows(self) -> int:
        """Rows trained on, over all trainers and resumes."""
        return ClickMetrics.from_dict(self.manifest.extra["training"]["metrics"]).rows

    @property
    def within_epoch(self) -> bool:
        return bool(self.manifest.positions)


def run(folder: Path, **options: object) -> Saved:
    """A job from its beginning to its end; what its last checkpoint holds."""
    folder.mkdir()
    with role_job(folder, save=str(folder / "saved"), epochs=EPOCHS, pace=0.0, timeout=10.0, **options) as job:
        job.start_all()
        end_well(job)
    return Saved(folder / "saved")


def end_well(job: RoleJob) -> None:
    for name in job.processes:
        assert job.exit_of(name, SECONDS) == 0, job.logs()


def killed(folder: Path, paces: tuple[float, float] = (0.05, 0.05), **options: object) -> str:
    """A job of which every process is killed at once, between two checkpoints of its second epoch; the newest one."""
    folder.mkdir()
    saved = folder / "saved"
    with role_job(folder, save=str(saved), epochs=EPOCHS, timeout=10.0, **options) as job:
        for index in range(2):
            job.start_server(index)
        for index in range(2):
            job.start_worker(index, pace=paces[index])
        job.wait_until(lambda: any(step(path) >= 28 for path in saved.glob("step-*/manifest.json")), SECONDS)
        time.sleep(0.15)  # some steps more, which are lost
    return str(saved)


def step(manifest: Path) -> int:
    return int(manifest.parent.name.removeprefix("step-"))


MODES = ["sync", "half_async", "async", "async merging", "geo"]
SOME_SLOW = [
    pytest.param(mode, marks=pytest.mark.slow) if mode in ("half_async", "async merging", "geo") else mode
    for mode in MODES
]


@pytest.mark.parametrize("mode", SOME_SLOW)
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_within_an_epoch_and_resumed(tmp_path: Path, data: str, mode: str, threads: int) -> None:
    job = {"mode": mode.split()[0], "data": data, "threads": threads, "max_merge": 3 if "merging" in mode else 1}
    never_stopped = run(tmp_path / "whole", **job)
    path = killed(tmp_path / "killed", **job, save_every=7)
    cut = Saved(path)
    assert cut.within_epoch
    assert cut.manifest.positions.keys() == {"0", "1"}
    assert cut.manifest.extra["training"]["epoch"] == 1
    resumed = run(tmp_path / "resumed", **job, resume=path)
    assert not resumed.within_epoch
    assert never_stopped.rows == resumed.rows == EPOCHS * ROWS
    np.testing.assert_array_equal(resumed.keys, never_stopped.keys)
    if threads == 1 and mode in ("sync", "half_async", "async"):  # the others send several steps as one
        np.testing.assert_array_equal(resumed.seen, never_stopped.seen)
    if mode == "sync" and threads == 1:
        np.testing.assert_allclose(resumed.values, never_stopped.values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(resumed.dense, never_stopped.dense, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", SOME_SLOW)
def test_interrupted_together_trainers_save_what_they_have_done(tmp_path: Path, data: str, mode: str) -> None:
    job = {"mode": mode.split()[0], "data": data, "max_merge": 3 if "merging" in mode else 1}
    folder = tmp_path / "interrupted"
    folder.mkdir()
    with role_job(folder, save=str(folder / "saved"), epochs=EPOCHS, timeout=10.0, pace=0.05, **job) as roles:
        roles.start_all().wait_for_step(27, "worker0", "worker1")
        for name in ("worker0", "worker1"):
            roles.signal(name, signal.SIGINT)
        for name in ("worker0", "worker1"):
            assert roles.exit_of(name, 30) == 1
            assert "KeyboardInterrupt" in roles.log(name)
            assert "not saved" not in roles.log(name), roles.logs()
    cut = Saved(folder / "saved")
    assert cut.within_epoch
    assert ROWS < cut.rows < EPOCHS * ROWS
    resumed = run(tmp_path / "resumed", **job, resume=str(folder / "saved"))
    assert resumed.rows == EPOCHS * ROWS


@pytest.mark.slow
@pytest.mark.parametrize("steps", ["by interrupt", "by steps"])
def test_a_trainer_that_has_not_begun_has_its_rows_still_to_come(tmp_path: Path, data: str, steps: str) -> None:
    """It is no lost one, whose share of the epoch is left out."""
    folder = tmp_path / "interrupted"
    folder.mkdir()
    job = {"mode": "async", "data": data, "save_every": 7 if steps == "by steps" else None}
    with role_job(folder, save=str(folder / "saved"), epochs=EPOCHS, timeout=10.0, pace=0.05, **job) as roles:
        for index in range(2):
            roles.start_server(index)
        roles.start_worker(0)
        roles.start_worker(1, load=60.0)
        roles.wait_for_step(7 if steps == "by steps" else 5, "worker0")
        roles.wait_until(lambda: "loading" in roles.log("worker1"))
        for name in ("worker1", "worker0"):
            roles.signal(name, signal.SIGINT)
        for name in ("worker0", "worker1"):
            assert roles.exit_of(name, 40) == 1
    places = Saved(folder / "saved").manifest.extra["training"]["trainers"]
    assert [places[worker]["finished"] for worker in ("0", "1")] == [False, False]
    assert run(tmp_path / "resumed", mode="async", data=data, resume=str(folder / "saved")).rows == EPOCHS * ROWS


def test_a_trainer_that_has_done_its_epoch_does_not_do_it_again(tmp_path: Path, data: str) -> None:
    """The second trainer is through with its share when the first one saves."""
    path = killed(tmp_path / "killed", (0.05, 0.0), mode="async", data=data, save_every=7)
    places = Saved(path).manifest.extra["training"]["trainers"]
    assert [places[worker]["finished"] for worker in ("0", "1")] == [False, True]
    assert run(tmp_path / "resumed", mode="async", data=data, resume=path).rows == EPOCHS * ROWS


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "geo"])
def test_save_persistables_while_the_others_train(tmp_path: Path, data: str, mode: str) -> None:
    saved = tmp_path / "model"
    # Patient: a load makes no headway that one could see while a busy machine starts to read.
    job_of = {"mode": mode, "data": data, "timeout": 10.0}
    with role_job(tmp_path, save_at=9, save_to=str(saved), pace=0.01, **job_of) as job:
        job.start_all()
        end_well(job)
        assert f"saved {saved}" in job.log("worker0")
    cut = Saved(saved)
    assert cut.within_epoch
    assert cut.rows < ROWS
    if mode == "sync":
        assert cut.rows == 2 * 9 * 50, "both trainers after the same round"
    with role_job(tmp_path / "resumed", resume=str(saved), save=str(tmp_path / "end"), **job_of) as job:
        job.folder.mkdir()
        end_well(job.start_all())
    assert Saved(tmp_path / "end").rows == ROWS


@pytest.mark.slow
def test_another_number_of_trainers_is_refused(tmp_path: Path, data: str) -> None:
    path = killed(tmp_path / "killed", mode="async", data=data, save_every=7)
    with role_job(tmp_path, workers=1, mode="async", data=data, resume=path, timeout=20.0) as job:
        job.start_all()
        assert job.exit_of("worker0", SECONDS) == 1
        assert "with the reader positions of 2 trainer(s); they do not fit 1: resume with as many" in job.log("worker0")


@pytest.mark.parametrize("mode", ["sync", "half_async"])
def test_threads_that_wait_for_each_other_hold_up_no_save(tmp_path: Path, mode: str) -> None:
    """In one process, where nothing but the trainer itself keeps its threads from pushing meanwhile."""
    job = DistributedOptimizer(optim.SGD(1e-2), DistributedStrategy(mode=mode).resolved(), Role())
    policy = SavePolicy(str(tmp_path), every_steps=2, keep=100)
    result = []
    in_threads([lambda: result.append(Trainer(job, threads=3).fit(small_model(), Given(batches(60)), save=policy))])
    assert result[0].rows == 60 * 20
    for path in tmp_path.glob("step-*"):
        manifest = Checkpoint.open(path).manifest
        rounds = manifest.tables[0].step
        assert ClickMetrics.from_dict(manifest.extra["training"]["metrics"]).rows == rounds * 3 * 20


@pytest.mark.parametrize("kind", [CheckpointError, StoreError])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_save_that_fails_on_a_server_ends_no_trainer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    kind: type[SparseFleetError],
) -> None:
    """A full disk, or an object store that refuses: the job goes on with all trainers, and the next save works."""
    failures, write = [kind("cannot write: no space left on device")], ShardCut.write

    def full_at_first(cut: ShardCut, *given: object, **named: object) -> object:
        if failures:
            raise failures.pop()
        return write(cut, *given, **named)

    monkeypatch.setattr(ShardCut, "write", full_at_first)
    policy = SavePolicy(str(tmp_path / "model"), every_steps=5)
    with cluster(2, lost_trainer="drop") as servers, caplog.at_level(logging.WARNING):
        shares = [Given(batches(20, seed=seed)) for seed in (1, 2)]
        outcomes = servers.train(shares, optim.SGD(1e-2), DistributedStrategy(mode=mode), save=policy)
        assert servers.stores[0].crew.lost() == []
    assert not failures, "no save failed: nothing was tried"
    assert [outcome.result.rows for outcome in outcomes] == [400, 400]
    said = [record.getMessage() for record in caplog.records if "was not written" in record.getMessage()]
    assert len(said) == 1
    assert "training goes on (there is none yet)" in said[0]
    assert "no space left on device" in said[0]
    assert Checkpoint.open(latest(policy.folder)).manifest.tables[0].step == (20 if mode == "sync" else 40)
