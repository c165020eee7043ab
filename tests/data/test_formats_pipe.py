"""Rows from a pipe_command: whatever goes wrong with it is told, and nothing stays behind."""

from __future__ import annotations

import contextlib
import gzip
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

from sparsefleet.core.batch import Mark
from sparsefleet.core.errors import BadRowError, ConfigError, DataError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.formats.command import CommandSource, kill_commands
from sparsefleet.data.formats.pipe import PipeFormat

SCHEMA = Schema(dense=(DenseFeature("x"),), slots=(Slot("a"), Slot("b")), sparse_feature_dim=0)
GOOD = "1 0.5 2 7 8 1 9 1 1"
PYTHON = sys.executable


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "part-0"
    path.write_text("".join(f"{i}\n" for i in range(100)))
    return str(path)


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "generate.py"
    path.write_text(body)
    return f"{PYTHON} {path}"


def read(command: str, file: str, policy: str = "error", timeout: float = 20.0, resume: Mark | None = None):
    form = PipeFormat(SCHEMA, command, timeout=timeout)
    return list(form.read(Unit(file), BadSamples(policy), resume))


def alive_in_group(group: int) -> list[str]:
    """Processes of the group that still run. (Dead ones that nobody has reaped yet do not.)"""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().rpartition(")")
            state, _, process_group = rest.split()[:3]
            if int(process_group) == group and state not in "ZX":
                found.append(name)
    return found


def groups_are_gone(pids: Path) -> bool:
    """Of every process that added its number to the file: a command may run twice at once, since a reader tries it with
    another hash seed (`data/formats/trial.py`)."""
    groups = [int(line) for line in pids.read_text().split()]
    assert groups
    # A signal takes a moment to be delivered.
    wait_until(lambda: not any(map(alive_in_group, groups)), 10, "the end of the groups")
    return True


PER_LINE = """
import sys
for line in sys.stdin:
    print(f"1 0.5 1 {line.strip()} 1 3 1 0")
"""


def test_the_file_is_stdin_and_rows_come_from_stdout(tmp_path: Path, file: str) -> None:
    (chunk,) = read(script(tmp_path, PER_LINE), file)
    assert chunk.batch.slot("a")[0].tolist() == list(range(100))
    assert chunk.ends is None
    assert chunk.lines.tolist() == list(range(1, 101))


def test_gzip_is_unpacked_for_the_command(tmp_path: Path, file: str) -> None:
    packed = tmp_path / "part-1.gz"
    packed.write_bytes(gzip.compress(Path(file).read_bytes()))
    (chunk,) = read(script(tmp_path, PER_LINE), str(packed))
    assert chunk.batch.slot("a")[0].tolist() == list(range(100))
    # A command that does not read its input is fine, too.
    (chunk,) = read(f"echo {GOOD}", str(packed))
    assert len(chunk.batch) == 1
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match="the gzip file is damaged"):
        read(script(tmp_path, PER_LINE), str(packed))


def test_resume_runs_again_and_passes_over_rows(tmp_path: Path, file: str) -> None:
    (chunk,) = read(script(tmp_path, PER_LINE), file, resume=Mark(0, 40))
    assert chunk.batch.slot("a")[0].tolist() == list(range(40, 100))
    assert chunk.lines[0] == 41
    with pytest.raises(DataError, match="cannot go on after sample 400: there are only 100"):
        read(script(tmp_path, PER_LINE), file, resume=Mark(0, 400))


def test_files_are_not_cut(file: str) -> None:
    assert PipeFormat(SCHEMA, "cat").plan([file], 8) == [Unit(file)]


def failure(command: str, file: str, policy: str = "error", timeout: float = 20.0) -> str:
    with pytest.raises(DataError) as caught:
        read(command, file, policy, timeout)
    message = str(caught.value)
    assert f"pipe_command {command!r}" in message
    assert file in message
    return message


def test_a_command_that_fails(file: str) -> None:
    message = failure(f"echo {GOOD}; echo no space in the attic >&2; exit 3", file)
    assert "it failed; exit status 3; its stderr ends with: no space in the attic" in message
    # Skipping bad rows does not hide it.
    assert "exit status 3" in failure("exit 3", file, "skip")


def test_rows_before_the_failure_come_first(file: str) -> None:
    stream = PipeFormat(SCHEMA, f"echo {GOOD}; exit 1").read(Unit(file), BadSamples())
    assert len(next(stream).batch) == 1
    with pytest.raises(DataError, match="exit status 1; its stderr is empty"):
        next(stream)


def test_a_command_that_is_killed(file: str) -> None:
    message = failure("kill -9 $$", file)
    assert "killed by signal 9" in message


def test_a_command_that_does_not_exist(file: str) -> None:
    message = failure("no-such-command-here", file)
    assert "exit status 127" in message
    assert "not found" in message


def test_junk(file: str) -> None:
    command = f"echo {GOOD}; echo loading model; echo warned >&2"
    message = failure(command, file)
    assert "line 2, column 1: not a number: 'loading'" in message
    assert "exit status 0; its stderr ends with: warned" in message
    with pytest.raises(BadRowError) as caught:
        read(command, file)
    assert (caught.value.line, caught.value.column, caught.value.reason) == (2, 1, "not a number")
    bad_samples = BadSamples("skip")
    (chunk,) = PipeFormat(SCHEMA, command).read(Unit(file), bad_samples)
    assert len(chunk.batch) == 1
    assert bad_samples.counts == {"not a number": 1}


def test_junk_from_a_command_that_goes_on_and_on(file: str) -> None:
    start = time.monotonic()
    message = failure("while true; do echo junk; done", file)
    assert "still running and was stopped" in message
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_half_a_line(policy: str, file: str) -> None:
    message = failure(f"echo {GOOD}; printf '1 0.5 2 7'", file, policy)
    assert "its output ends in the middle of a line" in message
    assert "exit status 0" in message


def test_no_output_at_all(file: str) -> None:
    assert "it printed nothing" in failure("cat > /dev/null", file)


def test_a_command_that_hangs(tmp_path: Path, file: str) -> None:
    pid = tmp_path / "pid"
    start = time.monotonic()
    message = failure(f"echo $$ >> {pid}; echo {GOOD}; echo waiting for godot >&2; sleep 600", file, timeout=0.5)
    assert time.monotonic() - start < 10
    assert "no output for 0.5 seconds" in message
    assert "waiting for godot" in message
    assert groups_are_gone(pid)


def test_a_command_that_closes_its_output_and_stays(tmp_path: Path, file: str) -> None:
    pid = tmp_path / "pid"
    message = failure(f"echo $$ >> {pid}; echo {GOOD}; exec >&-; sleep 600", file, timeout=0.5)
    assert "closed its output but did not end within 0.5 seconds" in message
    assert groups_are_gone(pid)


def test_much_on_stderr_does_not_block(tmp_path: Path, file: str) -> None:
    body = f"import sys\nfor _ in range(3000): sys.stderr.write('x' * 1000)\nprint({GOOD!r})\n"
    (chunk,) = read(script(tmp_path, body), file)
    assert len(chunk.batch) == 1


def test_closing_early_leaves_no_child(tmp_path: Path, file: str) -> None:
    pid = tmp_path / "pid"
    command = f"trap '' TERM; echo $$ >> {pid}; while true; do echo {GOOD}; done"
    stream = PipeFormat(SCHEMA, command).read(Unit(file), BadSamples())
    assert len(next(stream).batch) > 0
    stream.close()
    assert groups_are_gone(pid)


def test_a_process_that_must_end_at_once_can_kill_its_commands(tmp_path: Path, file: str) -> None:
    pid = tmp_path / "pid"
    source = CommandSource(f"trap '' TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600", file, 60.0)
    wait_until(pid.exists, 20, "the command")
    kill_commands()
    with pytest.raises(DataError, match="killed by signal 9"):
        source.readinto(memoryview(bytearray(8)))
    assert groups_are_gone(pid)


def test_a_process_that_ends_for_good_starts_no_other_command(file: str) -> None:
    body = f"""
from sparsefleet.data.formats.command import CommandSource, kill_commands
kill_commands(for_good=True)
CommandSource("echo", {file!r}, 60.0)
"""
    done = subprocess.run([PYTHON, "-c", body], capture_output=True, text=True, timeout=60)
    assert f"pipe_command 'echo' on {file} is not started: this process is about to end" in done.stderr


@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt", "sys.exit(3)"])
def test_no_command_outlives_a_process_whose_reader_nobody_closed(tmp_path: Path, file: str, end: str) -> None:
    """As when Ctrl-C comes after the reader's thread has started, and before its caller has it in hand."""
    pid = tmp_path / "pid"
    command = f"trap '' TERM; echo {GOOD}; echo $$ >> {pid}; sleep 600"
    body = f"""
import sys, threading, time
from pathlib import Path
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.formats.pipe import PipeFormat
schema = Schema(dense=(DenseFeature("x"),), slots=(Slot("a"), Slot("b")), sparse_feature_dim=0)
format = PipeFormat(schema, {command!r})
threading.Thread(target=lambda: list(format.read(Unit({file!r}), BadSamples())), daemon=True).start()
while not Path({str(pid)!r}).exists():
    time.sleep(0.01)
{end}
"""
    # Not its status: a thread that is within native code while the interpreter is taken down may abort the process.
    subprocess.run([PYTHON, "-c", body], capture_output=True, timeout=30)  # no trial holds it up
    assert groups_are_gone(pid)


def test_background_children_end_with_the_command(tmp_path: Path, file: str) -> None:
    pid = tmp_path / "pid"
    read(f"echo $$ >> {pid}; sleep 600 > /dev/null 2>&1 & echo {GOOD}", file)
    assert groups_are_gone(pid)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="pipe_command is empty"):
        PipeFormat(SCHEMA, "  ")
    with pytest.raises(ConfigError, match="timeout=0 must be above 0"):
        PipeFormat(SCHEMA, "cat", timeout=0)
