"""Losses while a cut is written, while servers load, while trainers join; and the loss of the launcher itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from healing_jobs import HERE, LIMIT, Job
from waiting import wait_until

pytestmark = pytest.mark.slow
KILL = signal.SIGKILL


def drafts(folder: Path) -> set[str]:
    """Cuts that are being written, or whose writer has died meanwhile."""
    return {draft.name for draft in (folder / "log").glob("cuts-*/attempt-*/.step-*.tmp-*[0-9a-f]")}


def strike_within_a_cut(job: Job, role: str) -> bool:
    """Kill it once a cut is being written; whether it was in time. Tables are small: a cut takes milliseconds."""
    before = drafts(job.folder)  # of those that died before
    while not (seen := drafts(job.folder) - before) and job.outcome is None:
        time.sleep(0.0005)
    process = job.view.processes[role]
    job.send(role, KILL)
    job.wait_for(lambda: not process.running)
    # A writer that lives takes its draft away; a dead one's stays until another saves to that folder.
    return role != "worker 0" or bool(seen & drafts(job.folder))


@pytest.mark.parametrize("lost", ["worker 0", "server 1"])
def test_a_cut_that_was_being_written_when_a_process_died_is_none(tmp_path: Path, lost: str) -> None:
    job = Job(tmp_path, "async", samples=6000, pace=0.1, restarts=50, cut_every=0.05)
    caught: list[bool] = []

    def killer(job: Job) -> None:
        job.wait_for_cut()
        while not any(caught) and len(caught) < 20 and job.outcome is None:
            caught.append(strike_within_a_cut(job, lost))
            job.wait_for_attempt(1 + len(caught))
        job.hurry()

    assert job.run(killer).exit_code == 0, job.logs()
    assert any(caught), "the killer was too slow each time"
    job.check_counts()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("second", ["server 0", "server 1", "worker 0"])
def test_a_second_loss_while_the_first_one_is_healed(tmp_path: Path, mode: str, second: str) -> None:
    """Server 0 is being started again, server 1 loads the cut, worker 0 joins the attempt."""
    job = Job(tmp_path, mode, samples=1000, pace=0.03, restarts=20)

    def killer(job: Job) -> None:
        job.wait_for_cut()
        first = job.view.processes["server 0"].pid
        job.send("server 0", KILL)
        if second == "worker 0":
            job.wait_for(lambda: "this attempt of the job is over" in job.log("worker 0"))
        else:
            job.wait_for(lambda: any("attempt 2 begins" in line for line in job.view.said))
            job.wait_for(lambda: job.view.processes["server 0"].pid != first)
        job.send(second, KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_counts()
    assert any("attempt 3 begins" in line for line in job.view.said), job.logs()


@pytest.mark.parametrize("options", [[], ["leased"]])
def test_one_that_is_stopped_before_it_has_come_is_started_again(tmp_path: Path, options: list[str]) -> None:
    """No server has heard of worker 0. Of leased data worker 1, lost too, waits for it to train, not to come."""
    job = Job(tmp_path, "sync", timeout=8.0, options=options)

    def killer(job: Job) -> None:
        job.wait_for(lambda: len(job.view.processes) == 4)
        job.send("worker 0", signal.SIGSTOP)
        job.wait_for(lambda: "first\n" in job.log("worker 1"))
        job.send("worker 1", KILL)

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_model()
    assert "worker 0 gives no sign of life: killing it" in job.view.said


def processes_of(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if str(folder).encode() in b" ".join(words) and (process / "stat").read_text().split(") ")[1][0] != "Z":
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_killed_launcher_leaves_no_process_and_the_same_command_goes_on(tmp_path: Path) -> None:
    job, saves = Job(tmp_path, "async", samples=2000), tmp_path / "saves"
    command = [sys.executable, "-m", "sparsefleet.launch", "--server_num=2", "--worker_num=2", "--restarts=3"]
    arguments = [job.mode, job.make_data(), str(tmp_path / "saved"), "0.03", "20"]
    command += ["--cut_every=0.3", str(HERE / job.script), *arguments, "leased", f"save={saves}", "resume=auto"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as launcher:
        try:
            wait_until(lambda: len(list(saves.glob("step-*/manifest.json"))) > 3, LIMIT, job.logs)
        finally:
            launcher.kill()
    wait_until(lambda: not processes_of(tmp_path), LIMIT, lambda: f"{processes_of(tmp_path)} live on")
    assert not (tmp_path / "saved").exists(), "the job was over before its launcher was killed"
    job.hurry()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr + job.logs()
    job.check_model()
    assert sum(int(line.split()[1]) for worker in range(2) for line in job._last_rows(worker)) < job.samples


@pytest.mark.slow
def test_one_that_hangs_while_it_saves_and_the_others_have_stopped_is_started_again(tmp_path: Path) -> None:
    job = Job(tmp_path, "async", samples=200, timeout=4.0, options=["last=0", "alone"])

    def killer(job: Job) -> None:
        job.wait_for(lambda: "the end\n" in job.log("worker 0") and not job.view.processes["worker 1"].running)
        job.send("worker 0", signal.SIGSTOP)
        job.wait_for(lambda: "worker 0 gives no sign of life: killing it" in job.view.said)
        (tmp_path / "go").touch()

    assert job.run(killer).exit_code == 0, job.logs()
    job.check_model()
