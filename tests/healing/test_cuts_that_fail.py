"""Cuts on a disk that is full, on a store that refuses, and cuts that were damaged: the job goes on, and goes back to
the last good one."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from healing_jobs import Job
from pyarrow import fs
from s3_server import BUCKET, S3, s3

__all__ = ["s3"]
pytestmark = pytest.mark.slow


@contextlib.contextmanager
def full_disk(folder: Path, size: str = "64k") -> Iterator[None]:
    """A small disk in the folder's place, for a while."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no disk can be mounted here, which needs root: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_full_disk_the_job_goes_on_and_keeps_the_last_good_cut(tmp_path: Path) -> None:
    if shutil.which("mount") is None:
        pytest.skip("there is no command mount here")
    job, skipped = Job(tmp_path, "async", samples=4000, pace=0.3), list[str]()

    def killer(job: Job) -> None:
        job.wait_for_cut()
        (cuts,) = (tmp_path / "log").glob("cuts-*")
        try:
            with full_disk(cuts):
                (cuts / "filled").write_bytes(bytes(60_000))
                job.wait_for(lambda: "a cut was not written, training goes on" in job.log("worker 0"))
        except pytest.skip.Exception as error:
            skipped.append(str(error))
            job.hurry()
            return
        job.wait_for(lambda: "cuts are written again" in job.log("worker 0"))
        job.send("server 1", signal.SIGKILL)
        job.wait_for_attempt(2)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()
    if skipped:
        pytest.skip(skipped[0])
    assert any("attempt 2 trains on" in line for line in job.view.said), job.logs()


NOT_WRITTEN = "a cut was not written, training goes on"


def begun_from(job: Job, attempt: int) -> str:
    (line,) = [line for line in job.view.said if f"attempt {attempt} begins from" in line]
    return line.split(f"attempt {attempt} begins from ")[1].split(" (")[0]


def fill(file: Path) -> None:
    """Take all that is left of the disk."""
    with open(file, "wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(4096))


def test_a_loss_while_the_disk_is_full_goes_back_to_the_last_good_cut(tmp_path: Path) -> None:
    """And so does the next one, while none could be written since."""
    if shutil.which("mount") is None:
        pytest.skip("there is no command mount here")
    place = tmp_path / "place"
    place.mkdir()
    job = Job(tmp_path, "async", samples=4000, pace=0.3, cuts=str(place))

    def killer(job: Job) -> None:
        job.wait_for_cut()
        fill(place / "filled")
        job.wait_for(lambda: NOT_WRITTEN in job.log("worker 0"))
        for attempt, lost in ((2, "server 1"), (3, "server 0")):
            told = job.log("worker 0").count(NOT_WRITTEN)
            job.send(lost, signal.SIGKILL)
            job.wait_for_attempt(attempt)
            job.wait_for(lambda told=told: job.log("worker 0").count(NOT_WRITTEN) > told + 1)
        (place / "filled").unlink()
        job.wait_for(lambda: "cuts are written again" in job.log("worker 0"))
        job.send("worker 1", signal.SIGKILL)
        job.wait_for_attempt(4)
        job.hurry()

    with full_disk(place, "2m"):
        assert job.run(killer).exit_code == 0, job.logs()
        assert list(place.iterdir()) == [], "cuts stay behind"
    job.check_counts()
    good = begun_from(job, 2)
    assert Path(good).parent.name == "attempt-0001"
    assert begun_from(job, 3) == good, "no other was written meanwhile"
    assert Path(begun_from(job, 4)).parent.name == "attempt-0003"
    assert "disk full while saving" in job.log("worker 0")


def test_cuts_on_an_object_store_that_refuses(tmp_path: Path, s3: S3) -> None:
    """First it takes nothing more, then it gives nothing either: a loss waits until it does."""
    job = Job(tmp_path, "async", samples=4000, pace=0.3, timeout=30.0, cuts=s3.uri("cuts"))

    def killer(job: Job) -> None:
        try:
            job.wait_for_cut()
            s3.refuse("PUT", "POST", "DELETE")
            job.wait_for(lambda: NOT_WRITTEN in job.log("worker 0"))
            job.send("server 1", signal.SIGKILL)
            job.wait_for_attempt(2)
            s3.refuse()
            job.wait_for(lambda: "cuts are written again" in job.log("worker 0"))
            s3.refuse("PUT", "POST", "DELETE", "GET", "HEAD")
            job.send("worker 1", signal.SIGKILL)
            job.wait_for(lambda: any("the job's cuts cannot be read" in line for line in job.view.said))
            s3.refuse()
            job.wait_for_attempt(3)
            job.hurry()
        finally:
            s3.refuse()

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()
    assert "/attempt-0001/step-" in begun_from(job, 2)
    assert "/attempt-0002/step-" in begun_from(job, 3)
    assert "closed" in job.log("worker 0").partition(NOT_WRITTEN)[2], "why the store refuses is told"
    left = s3.filesystem.get_file_info(fs.FileSelector(f"{BUCKET}/cuts", recursive=True, allow_not_found=True))
    assert [file.path for file in left if "cuts-" in file.path] == [], "cuts stay behind"


def test_without_the_cut_at_the_end_a_loss_does_not_leave_out_shares_of_those_that_have_ended(
    tmp_path: Path, s3: S3
) -> None:
    """Worker 1 has ended, worker 0 is about to save; the newest cut is from within the epoch."""
    job = Job(tmp_path, "async", samples=800, pace=0.1, cuts=s3.uri("cuts"), options=["last=0", "alone"])

    def killer(job: Job) -> None:
        try:
            job.wait_for_cut()
            s3.refuse("PUT", "POST", "DELETE")
            job.hurry()
            job.wait_for(lambda: "the end\n" in job.log("worker 0") and not job.view.processes["worker 1"].running)
            job.send("server 1", signal.SIGKILL)
            job.wait_for(lambda: any("giving up" in line or "begins from" in line for line in job.view.said))
        finally:
            s3.refuse()
            (tmp_path / "go").touch()

    assert job.run(killer).exit_code == 128 + signal.SIGKILL, job.logs()
    assert not (tmp_path / "saved").exists()
    (told,) = [line for line in job.view.said if line.startswith("giving up:")]
    assert "worker 1 had come to the end of the job, with a share of the data of its own" in told
    again = Job(tmp_path, "async", samples=800, restarts=0, options=[f"resume={told.split('--resume ')[1]}"])
    assert again.run().exit_code == 0, again.logs()
    again.check_model()


def test_a_damaged_cut_is_passed_over_for_the_one_before_it(tmp_path: Path) -> None:
    job, damaged = Job(tmp_path, "async", samples=4000, pace=0.3, cut_every=1.0), list[Path]()

    def killer(job: Job) -> None:
        job.wait_for(lambda: job.log("worker 0").count("a cut of what changed since") >= 2)
        process = job.view.processes["worker 0"]
        process_stopped = process.pid
        job.send("worker 0", signal.SIGSTOP)  # so that no other cut comes
        (attempt,) = (tmp_path / "log").glob("cuts-*/attempt-0001")
        newest = attempt / (attempt / "latest").read_text().strip()
        file = max((newest / "sparse" / "counts").iterdir(), key=lambda one: one.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 0xFF
        file.write_bytes(data)
        damaged.append(newest)
        job.send("server 1", signal.SIGKILL)
        job.wait_for(lambda: any("server 1 ended" in line for line in job.view.said))
        job.send("worker 0", signal.SIGCONT)
        assert process_stopped == job.view.processes["worker 0"].pid
        job.wait_for_attempt(3)
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()
    said = "\n".join(job.view.said)
    assert f"attempt 2 begins from {damaged[0]}" in said
    assert f"the cut {damaged[0]} cannot be read" in said
    assert "attempt 3 begins from" in said
    (third,) = [line for line in job.view.said if "attempt 3 begins from" in line]
    assert damaged[0].name not in third.split("attempt 3 begins from")[1]
