"""Scripts with several calls: what is lost between two of them, and what a trainer that starts again does of the first.

Such a trainer runs its script from the top. What the others are past, it must neither wait for nor do again.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from healing_jobs import Job

from sparsefleet.checkpoint import Checkpoint, latest

pytestmark = pytest.mark.slow
KILL = signal.SIGKILL


def in_second_call(job: Job, role: str) -> bool:
    return "step " in job.log(role).partition("again\n")[2]


def check_twice(job: Job, times: float = 2.0) -> None:
    counts, everything = job.counts()
    assert (counts == times).all(), f"{counts[counts != times][:10]}\n{job.logs()}"
    assert everything == times * job.samples


@pytest.mark.parametrize("lost", ["worker 1", "server 1"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_is_lost_between_two_calls_of_fit_is_started_again(tmp_path: Path, mode: str, lost: str) -> None:
    """Worker 0 is in its second call by then, and waits for worker 1 at its beginning."""
    job = Job(tmp_path, mode, samples=200, options=["again", "wait=1"])

    def killer(job: Job) -> None:
        job.wait_for(lambda: "between two calls" in job.log("worker 1") and "again\n" in job.log("worker 0"))
        job.send(lost, KILL)
        (tmp_path / "go").touch()

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job)
    assert any("attempt 2 begins from" in line for line in job.view.said)
    if lost == "worker 1":
        assert "call 1 of fit had come to its end when this attempt of the job began" in job.log("worker 1")
        assert job.log("worker 1").count("rows 100\n") == 3, "what its first call came to is known to the cut"


@pytest.mark.parametrize("options", [[], ["leased"]])
def test_one_that_starts_again_in_the_second_call_does_nothing_of_the_first_again(
    tmp_path: Path, options: list[str]
) -> None:
    job = Job(tmp_path, "async", samples=400, pace=0.8, options=["again", "score", "wait=1", *options])
    job.hurry()  # through the first call

    def killer(job: Job) -> None:
        job.wait_for(lambda: "between two calls" in job.log("worker 1") and "again\n" in job.log("worker 0"))
        (tmp_path / "hurry").unlink()
        (tmp_path / "go").touch()
        job.wait_for(lambda: in_second_call(job, "worker 0") and in_second_call(job, "worker 1"))
        job.send("worker 0", KILL)
        job.wait_for(lambda: "nothing is written" in job.log("worker 0"))
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job)
    assert Checkpoint.open(tmp_path / "saved-1").dense_cut("dense", 0, 1).values[0] == job.samples
    if options:  # what it scores by itself is all of the data, and nobody's pass is in its way
        assert job.log("worker 0").count(f"scored {job.samples} samples") == 2, job.logs()


@pytest.mark.parametrize("lost", ["worker 0", "server 0"])
def test_one_that_starts_again_does_not_fill_the_model_anew(tmp_path: Path, lost: str) -> None:
    before = Job(tmp_path, "async", samples=200, restarts=0)
    assert before.run().exit_code == 0, before.logs()
    begun = (tmp_path / "saved").rename(tmp_path / "begun")
    job = Job(tmp_path, "async", samples=200, pace=0.05, options=[f"load={begun}"])

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send(lost, KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job)


def test_what_the_script_filled_the_model_with_is_not_lost_with_a_server_before_the_first_cut(tmp_path: Path) -> None:
    """The servers of the next attempt begin empty, and trainers that live in `fit` are past the call of `load`."""
    before = Job(tmp_path, "async", samples=200, restarts=0)
    assert before.run().exit_code == 0, before.logs()
    begun = (tmp_path / "saved").rename(tmp_path / "begun")
    job = Job(tmp_path, "async", samples=200, options=[f"load={begun}", "first=1"])

    def killer(job: Job) -> None:
        job.wait_for(lambda: "before the first call" in job.log("worker 1") and "first\n" in job.log("worker 0"))
        job.send("server 1", KILL)
        (tmp_path / "go").touch()

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job)


@pytest.mark.parametrize("lost", ["worker 0", "server 1"])
def test_a_later_call_resumes_though_the_attempt_began_within_an_earlier_one(tmp_path: Path, lost: str) -> None:
    """The attempt's cut is of the first call, and not of its end: it has nothing to say to the second."""
    before = Job(tmp_path, "async", samples=200, restarts=0)
    assert before.run().exit_code == 0, before.logs()
    once = (tmp_path / "saved").rename(tmp_path / "once")
    again = Job(tmp_path, "async", samples=200, restarts=0, options=[f"load={once}"])
    assert again.run().exit_code == 0, again.logs()
    twice = (tmp_path / "saved").rename(tmp_path / "twice")  # after one epoch: two of each sample
    job = Job(tmp_path, "async", samples=200, pace=0.1, options=["again", f"later={twice}"])

    def killer(job: Job) -> None:
        job.wait_for_cut()
        job.send(lost, KILL)
        job.wait_for_attempt(2)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job, 3.0)
    assert not any("attempt 3 begins" in line for line in job.view.said)
    (begun,) = [line for line in job.view.said if "attempt 2 begins from" in line]
    assert "/attempt-0001/step-" in begun


@pytest.mark.parametrize("lost", ["worker 0", "server 1"])
@pytest.mark.parametrize("options", [[], ["leased"]])
def test_a_job_does_not_end_well_without_the_model_that_a_lost_trainer_was_to_save(
    tmp_path: Path, options: list[str], lost: str
) -> None:
    """Worker 1 knows by then that it is not the first, and waits at the barrier for worker 0, which is to save.
    That both ask to be started again is no loss besides."""
    job = Job(tmp_path, "async", samples=200, restarts=1, options=[*options, "last=0"])

    def killer(job: Job) -> None:
        job.wait_for(lambda: "the end\n" in job.log("worker 0") and "the end\n" in job.log("worker 1"))
        job.send(lost, KILL)
        (tmp_path / "go").touch()

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job, 1.0)
    for worker in range(job.workers):  # both were started again, so none has gone past what it does after fit
        assert "2 trainers meet" in job.log(f"worker {worker}"), job.logs()


@pytest.mark.parametrize("lost", ["worker 1", "server 1"])
def test_what_the_script_filled_the_model_with_between_two_calls_is_filled_in_anew(tmp_path: Path, lost: str) -> None:
    """Worker 0 waits at the beginning of its second call, for which no cut is there yet."""
    made = Job(tmp_path, "async", samples=200, restarts=0)
    assert made.run().exit_code == 0, made.logs()
    (tmp_path / "saved").rename(tmp_path / "made")
    job = Job(tmp_path, "async", samples=200, options=["again", f"reload={tmp_path / 'made'}", "loaded=1"])

    def killer(job: Job) -> None:
        job.wait_for(lambda: "loaded" in job.log("worker 1") and "again\n" in job.log("worker 0"))
        job.send(lost, KILL)
        (tmp_path / "go").touch()

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job)


def test_one_that_starts_again_before_the_first_cut_goes_past_the_meetings_of_its_script(tmp_path: Path) -> None:
    made = Job(tmp_path, "async", samples=200, restarts=0)
    assert made.run().exit_code == 0, made.logs()
    (tmp_path / "saved").rename(tmp_path / "made")
    # A call that resumes begins without a cut.
    options = ["meets", "epochs=2", f"resume={tmp_path / 'made'}"]
    job = Job(tmp_path, "async", samples=200, pace=0.3, cut_every=1000.0, options=options)

    def killer(job: Job) -> None:
        job.wait_for_step(12, "worker 1")
        job.send("worker 1", KILL)
        job.wait_for_attempt(2)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job)
    assert any("attempt 2 begins from the beginning" in line for line in job.view.said), job.logs()


def test_a_call_after_one_that_stopped_early_trains_as_many_epochs_as_it_was_asked_for(tmp_path: Path) -> None:
    """Whoever starts again within it did not see the first one stop."""
    job = Job(tmp_path, "async", samples=200, pace=0.1, workers=1, options=["stops", "again", "epochs=4"])

    def killer(job: Job) -> None:
        job.wait_for(lambda: in_second_call(job, "worker 0"))
        cuts = job.log("worker 0").count(" cut ")
        job.wait_for(lambda: job.log("worker 0").count(" cut ") > cuts + 1)
        job.send("worker 0", KILL)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    check_twice(job, 1 + 4)


def test_an_epoch_is_saved_though_its_trainer_died_between_its_last_cut_and_that(tmp_path: Path) -> None:
    job = Job(
        tmp_path, "async", samples=100, pace=0.2, workers=1, cut_every=0.01, options=[f"epoch={tmp_path / 'epochs'}"]
    )
    assert job.run().exit_code == 0, job.logs()
    job.check_counts()
    saved = Checkpoint.open(latest(str(tmp_path / "epochs")))
    assert saved.manifest.step == 10
