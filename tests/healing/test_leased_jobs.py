"""Jobs of real processes whose data is handed out in pieces; the model says how often each sample was trained."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from healing_jobs import Job

from sparsefleet.checkpoint import Checkpoint

KILL = signal.SIGKILL
MODES = ["sync", "half_async", "async", "geo"]


def rows_of(job: Job) -> list[int]:
    return [int(job._last_rows(worker)[0].split()[1]) for worker in range(job.workers)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_within_an_epoch_is_resumed_by_another_number_of_trainers(tmp_path: Path, mode: str) -> None:
    saves = tmp_path / "saves"
    # Worker 0 saves, by its own steps: the other must not have all pieces, however late worker 0 may start.
    first = Job(tmp_path, mode, restarts=0, pace=0.02, options=["leased", f"save={saves}", "slow=1"])
    assert first.run().exit_code == 0, first.logs()
    first.check_counts()
    cut = sorted(saves.glob("step-*"))[1]
    manifest = Checkpoint.open(cut).manifest
    assert set(manifest.positions) == {"leases"}, "it is of the middle of the epoch"
    second = Job(tmp_path, mode, restarts=0, pace=0.0, workers=3, servers=1, options=["leased", f"resume={cut}"])
    assert second.run().exit_code == 0, second.logs()
    counts, everything = second.counts()
    assert counts == pytest.approx(1.0, abs=1e-4), "of three trainers, geo adds thirds"
    assert everything == pytest.approx(second.samples, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_sample_is_trained_once_in_each_epoch_and_a_slow_trainer_takes_fewer(tmp_path: Path, mode: str) -> None:
    job = Job(tmp_path, mode, samples=2000, restarts=0, pace=0.003, epochs=2, options=["leased", "epochs=2", "slow=1"])
    assert job.run().exit_code == 0, job.logs()
    job.check_counts()
    fast, slow = rows_of(job)
    if mode == "sync":  # all make the same number of steps, and pieces go by turns
        assert abs(fast - slow) < 200
    else:
        assert fast > 2 * slow, (fast, slow)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_jobs_of_leased_data_heal(tmp_path: Path, mode: str) -> None:
    job = Job(tmp_path, mode, samples=600, options=["leased"])

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send("server 1", KILL)
        job.wait_for_attempt(2)
        job.send("worker 1", KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    counts, everything = job.counts()  # the lost life's own figures are lost with it
    assert (counts == 1.0).all(), job.logs()
    assert everything == job.samples


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[:3])
def test_a_lost_trainer_costs_no_going_back_where_all_servers_have_its_last_step(tmp_path: Path, mode: str) -> None:
    # One server: there is none that could lack it.
    job = Job(tmp_path, mode, servers=1, samples=1500, pace=0.03, options=["leased"])

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send("worker 1", KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    counts, everything = job.counts()
    assert (counts == 1.0).all(), job.logs()
    assert everything == job.samples
    said = "\n".join(job.view.said)
    assert "worker 1 ended (killed by SIGKILL): it joins attempt 1" in said, said
    assert "samples are trained again" not in job.log("worker 0")


@pytest.mark.slow
def test_one_that_is_lost_while_it_has_a_share_of_its_own_trains_the_rest_of_it(tmp_path: Path) -> None:
    job = Job(tmp_path, "async", servers=1, epochs=2, options=["leased", "shares"])

    def killer(job: Job) -> None:
        job.wait_for(lambda: "step " in job.log("worker 1").partition("on shares")[2])
        job.send("worker 1", KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    counts, everything = job.counts()
    assert (counts == 2.0).all(), job.logs()
    assert everything == 2 * job.samples
    assert any("attempt 2 begins from" in line for line in job.view.said)


@pytest.mark.slow
def test_what_a_lost_trainer_had_scored_is_scored_by_others(tmp_path: Path) -> None:
    job = Job(tmp_path, "async", servers=1, options=["leased", "test", "scores=1"])
    assert job.run().exit_code == 0, job.logs()
    job.check_model()
    assert any("worker 1 ended (killed by SIGKILL): it joins attempt 1" in line for line in job.view.said), job.logs()
    assert "a trainer was lost with what it had scored; the data is scored again" in job.log("worker 0")
    assert f"tested {job.samples} samples" in job.log("worker 0")


@pytest.mark.slow
def test_all_trainers_are_lost_while_they_score_one_after_the_other(tmp_path: Path) -> None:
    """When the second one dies, the first one's next life has not been let in: nobody is there to go on."""
    job = Job(tmp_path, "async", servers=1, options=["leased", "test", "scores=1", "rescores=0"])
    assert job.run().exit_code == 0, job.logs()
    job.check_model()
    said = "\n".join(job.view.said)
    assert "worker 1 ended (killed by SIGKILL): it joins attempt 1" in said, said
    assert "worker 0 ended (killed by SIGKILL): attempt 2 begins from" in said, said
