"""Cuts on a disk that is full, and cuts that were damaged: the job goes on, and goes back to the last good one."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from healing_jobs import Job

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """A disk of 64 KB in the folder's place, for a while."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True
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
