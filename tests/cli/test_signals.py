"""Ctrl-C, SIGTERM and SIGKILL at a real process: how soon it ends, what it leaves behind, and how it goes on."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from waiting import wait_until

from sparsefleet.checkpoint import Checkpoint, diff, latest
from sparsefleet.core.errors import CheckpointError

SMALL = ("--hidden", "16,16", "--embedding-size", 4, "--batch-size", 20, "--learning-rate", 0.01)
READY_SECONDS = 60


def wait_for(condition, child, what):
    def there():
        found = condition()
        assert found or child.poll() is None, f"ended before {what}: {child.communicate()[1]}"
        return found

    wait_until(there, READY_SECONDS, what)


def processes_with(word: str) -> list[int]:
    """Processes whose command line holds the word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until_none_has(word: str) -> None:
    """Whoever was killed is gone as soon as it runs once more, which takes a moment on a busy machine."""
    wait_until(lambda: not processes_with(word), 10, "the end of the command")


def limit() -> float:
    """Two seconds, on a machine that has a core to spare."""
    return 2 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def ends(child, signum) -> tuple[float, str]:
    begun = time.monotonic()
    child.send_signal(signum)
    _, errors = child.communicate(timeout=30)
    return time.monotonic() - begun, errors


EPOCH = 3000
"""Steps of an epoch of the 6,000 samples at batch 2. Runs that are to be interrupted between two saves save at its end
alone, and their network is large enough that it takes seconds: a save is a small part of it, on a slow disk too."""
SLOW_STEPS = ("--hidden", "256,256", "--embedding-size", 4, "--learning-rate", 0.01, "--batch-size", 2)


def wait_for_another_checkpoint(folder, child) -> None:
    before = newest(folder)
    wait_for(lambda: newest(folder) > before, child, "another checkpoint")
    time.sleep(0.3)  # some steps more, at any moment: it is to save where it stands then


def stopped_between_saves(interrupt, folder) -> Checkpoint:
    """Interrupt a run, and go on with it, until it stood elsewhere than at one of its own saves."""
    for again in range(5):
        interrupt(again)
        found = Checkpoint.open(latest(folder))
        found.verify()
        if found.manifest.step % EPOCH:
            return found
    pytest.fail(f"interrupted five times, saved at a planned step each time, at last at {found.manifest.step}")


@pytest.mark.parametrize(
    ("signum", "reader"),
    [pytest.param(signal.SIGINT, "queue", marks=pytest.mark.slow), (signal.SIGTERM, "memory")],
)
def test_an_interrupted_run_saves_and_goes_on_to_the_same_bits(cli, clicks, children, tmp_path, signum, reader):
    """Stopped at some step nobody chose, resumed: tables, state, parameters and metrics as if never stopped."""
    shuffle = ("--shuffle",) if reader == "memory" else ()
    base = (
        "train",
        "--data",
        clicks / "train",
        "--reader",
        reader,
        *shuffle,
        "--threads",
        1,
        *SLOW_STEPS,
    )
    saved = ("--save", tmp_path / "M", "--keep", 2)

    def interrupt(again):
        child = children.start(*base, "--epochs", 10_000, *saved, *(("--resume", tmp_path / "M") if again else ()))
        wait_for_another_checkpoint(tmp_path / "M", child)
        took, errors = ends(child, signum)
        assert child.returncode == 130, errors
        assert "interrupted" in errors
        assert "Traceback" not in errors
        assert took < limit()

    found = stopped_between_saves(interrupt, tmp_path / "M")
    step, epochs = found.manifest.step, found.manifest.extra["training"]["epoch"] + 1
    resumed = cli(*base, "--epochs", epochs, "--save", tmp_path / "M", "--resume", tmp_path / "M", "--json")
    assert resumed.exit_code == 0, resumed.output
    whole = cli(*base, "--epochs", epochs, "--save", tmp_path / "W", "--json")
    assert whole.exit_code == 0, whole.output
    assert diff(str(tmp_path / "M"), str(tmp_path / "W"))["same"]
    said, again = json.loads(whole.stdout), json.loads(resumed.stdout)
    for name in ("train_auc", "train_logloss", "steps"):
        assert said[name] == again[name]
    assert again["rows"] == said["rows"] - step * 2


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "mode"), [(signal.SIGINT, "async"), (signal.SIGTERM, "sync")])
def test_an_interrupted_job_of_many_processes_saves_and_goes_on(clicks, shell, signum, mode):
    job = ("--servers", 2, "--workers", 2, "--mode", mode, *SMALL, "--batch-size", 2)
    base = ("train", "--data", clicks / "train", *job, "--save", "M")

    def interrupt(again):
        resume = ("--resume", "M") if again else ()
        child = shell.start(*base, "--epochs", 10_000, "--keep", 2, *resume)
        wait_for_another_checkpoint(shell.folder / "M", child)
        child.send_signal(signum)
        ended = shell.finish(child, 60)
        assert ended.returncode == 128 + signum, ended.stderr
        may = "workers may end by themselves, and save if their script does, up to 70 s (once more: at once)"
        assert f"{signum.name}: {may}" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert f"go on with: --resume M (checkpoint {latest(shell.folder / 'M').name})\n" in ended.stderr
        assert shell.left() == []

    found = stopped_between_saves(interrupt, shell.folder / "M")
    step, epoch = found.manifest.step, found.manifest.extra["training"]["epoch"]
    resumed = shell.result(*base, "--epochs", epoch + 1, "--resume", "M")
    assert resumed["steps"] > step
    assert resumed["rows"] <= 6000


@pytest.fixture(scope="session")
def slots(clicks, tmp_path_factory):
    from sparsefleet.datasets.show import show

    folder = tmp_path_factory.mktemp("slots")
    (folder / "part-0").write_text("".join(f"{line}\n" for line in show(clicks / "test" / "part-0", rows=200)))
    return folder


@pytest.fixture
def hanging(tmp_path):
    """A command that gives some rows and then sits there, and a word to know its processes by."""
    word = f"mark-{random.getrandbits(60):x}"
    return f"cat; sh -c 'touch {tmp_path}/there; sleep 300; : {word}'", word


def test_ctrl_c_leaves_no_child_of_a_pipe_command(slots, children, tmp_path, hanging):
    command, word = hanging
    child = children.start("train", "--data", slots, "--pipe-command", command, *SMALL)
    wait_for(lambda: (tmp_path / "there").exists(), child, "command")
    assert processes_with(f": {word}")
    took, errors = ends(child, signal.SIGINT)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    assert took < limit()
    wait_until_none_has(word)


@pytest.mark.parametrize("reader", ["queue", "memory", "pyreader", "feeder"])
@pytest.mark.parametrize("threads", [1, 2])
def test_so_it_is_with_every_reader(cli, slots, tmp_path, hanging, reader, threads):
    command, word = hanging
    interrupted_at = []

    def interrupt():
        wait_until((tmp_path / "there").exists, READY_SECONDS, "a command that hangs")
        time.sleep(0.05)  # at any moment of the wait for it
        interrupted_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    finger = threading.Thread(target=interrupt)
    finger.start()
    try:
        result = cli(
            *("train", "--data", slots, "--reader", reader, "--threads", threads, "--pipe-command", command, *SMALL)
        )
    finally:
        finger.join()
    assert result.exit_code == 130, result.output
    assert "interrupted" in result.stderr
    assert time.monotonic() - interrupted_at[0] < limit()
    wait_until_none_has(word)


def test_killed_at_any_moment_the_last_checkpoint_stands(cli, clicks, children, tmp_path):
    """Saving all the time, killed somewhere: mostly in the middle of a save."""
    base = ("train", "--data", clicks / "train", "--threads", 1, *SMALL, "--save", tmp_path / "M")
    seed = random.Random(5)
    child = children.start(*base, "--epochs", 10_000, "--save-every", 2, "--keep", 2)
    last = -1
    for moment in range(3):
        wait_for(lambda before=last: newest(tmp_path / "M") > before, child, "another checkpoint")
        time.sleep(seed.random() * 0.1)  # at any moment of a save
        # A stopped process is as good as a dead one for what lies on the disk: look, and let it go on.
        child.send_signal(signal.SIGSTOP if moment < 2 else signal.SIGKILL)
        if moment < 2:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)  # its threads may be within a call still
            copy = tmp_path / f"copy-{moment}"
            shutil.copytree(tmp_path / "M", copy)
            child.send_signal(signal.SIGCONT)
        else:
            child.wait(10)
            copy = tmp_path / "M"
        found = Checkpoint.open(latest(copy))
        found.verify()
        assert found.manifest.step > last
        last = found.manifest.step
    assert child.returncode == -signal.SIGKILL
    # And the run goes on from there, into the same folder.
    epochs = found.manifest.extra["training"]["epoch"] + 1
    done = cli(*base, "--epochs", epochs, "--resume", tmp_path / "M")
    assert done.exit_code == 0, done.output
    Checkpoint.open(latest(tmp_path / "M")).verify()
    assert Checkpoint.open(latest(tmp_path / "M")).manifest.step == epochs * 300
    assert not [path.name for path in (tmp_path / "M").iterdir() if path.name.startswith(".")]  # no litter


def newest(folder) -> int:
    try:
        return Checkpoint.open(latest(folder)).manifest.step
    except (CheckpointError, OSError):
        return -1
