"""`sparsefleet data …` as a user runs it: real processes, what they print, and how they end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from rich.console import Console
from waiting import wait_until

from sparsefleet.cli import console as console_module
from sparsefleet.cli.console import errors_to_exit, progress
from sparsefleet.core.errors import DataError

COMMAND = [sys.executable, "-m", "sparsefleet.cli.data"]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


def test_synth_then_prepare(tmp_path: Path) -> None:
    made = run("synth", "--rows", "2000", "--test-rows", "500", "--parts", "2", "--out", tmp_path / "a")
    assert made.returncode == 0, made.stderr
    assert "training rows      2,000" in made.stdout
    assert "best possible AUC  0.8" in made.stdout
    assert "synth: 2,500 rows" in made.stderr, "plain lines where stderr is no terminal"
    assert "\x1b" not in made.stderr + made.stdout

    ready = run("prepare", tmp_path / "a" / "train", "--out", tmp_path / "b", "--parts", "3")
    assert ready.returncode == 0, ready.stderr
    assert "training rows  1,800" in ready.stdout
    assert "test rows      200" in ready.stdout
    assert (tmp_path / "b" / "train" / "part-2").exists()


def test_an_error_is_one_clear_message(tmp_path: Path) -> None:
    failed = run("prepare", tmp_path / "nothing", "--out", tmp_path / "out")
    assert failed.returncode == 1
    assert failed.stderr == f"error: {tmp_path / 'nothing'}: no such file or folder; check the path\n"
    assert failed.stdout == ""


def test_a_schema_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("click,site\n" + "0,a\n1,b\n" * 50)
    (tmp_path / "afile").write_text("")
    for out, why in (("afile/s.toml", "File exists"), ("afile/below/s.toml", "Not a directory")):
        failed = run("inspect", tmp_path / "data.csv", "--out", tmp_path / out)
        assert failed.returncode == 1
        assert failed.stderr == f"error: --out {tmp_path / out} cannot be written: {why}; give another name\n"


def test_skipped_rows_are_counted_at_the_end(tmp_path: Path) -> None:
    good = "\t".join(["0", *["1"] * 13, *["abcdef01"] * 26])
    (tmp_path / "raw").write_text(f"{good}\nbad\n{good}\nbad\n")
    done = run("prepare", tmp_path / "raw", "--out", tmp_path / "out", "--on-bad-row", "skip")
    assert done.returncode == 0, done.stderr
    assert "skipped        2: wrong field count" in done.stdout
    failed = run("prepare", tmp_path / "raw", "--out", tmp_path / "other")
    assert failed.returncode == 1
    assert "raw, line 2, column 2: wrong field count" in failed.stderr


def test_an_unknown_choice_lists_the_choices(tmp_path: Path) -> None:
    failed = run("show", tmp_path / "x", "--format", "xml")
    assert failed.returncode == 2
    for choice in ("auto", "criteo", "multislot", "parquet"):
        assert choice in failed.stderr


def test_download_without_a_server(tmp_path: Path) -> None:
    failed = run("download", "--url", "http://127.0.0.1:1/x", "--out", tmp_path)
    assert failed.returncode == 1
    assert "error: cannot reach http://127.0.0.1:1/x: Connection refused" in failed.stderr


def test_ctrl_c_ends_quickly_and_leaves_nothing(tmp_path: Path) -> None:
    command = [*COMMAND, "synth", "--rows", "50000000", "--test-rows", "0", "--out", str(tmp_path / "out")]
    # Its own session, so that the signal reaches this process as a terminal's would, and no other.
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: list(tmp_path.glob("out/.unfinished-*/train/part-0")), 60, "the first part")
            os.kill(process.pid, signal.SIGINT)
            started = time.monotonic()
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert time.monotonic() - started < 5
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "out").exists()


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    made = run("synth", "--rows", "20000", "--test-rows", "0", "--parts", "1", "--out", tmp_path / "a")
    assert made.returncode == 0, made.stderr
    shell = f"set -o pipefail; {' '.join(COMMAND)} show {tmp_path / 'a' / 'train' / 'part-0'} | head -n 2"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [line[:3] for line in done.stdout.splitlines()] == ["13 "] * 2
    assert done.stderr == ""


# --- the parts ---


def test_bugs_keep_their_traceback() -> None:
    @errors_to_exit
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()


def test_markup_in_a_message_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    @errors_to_exit
    def command() -> None:
        raise DataError("row [bold]7[/bold] of " + "x" * 300)

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "error: row [bold]7[/bold] of " + "x" * 300 + "\n"


def test_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "LOG_SECONDS", 0.0)
    text = io.StringIO()
    with progress("load", "rows", Console(file=text)) as update:
        update(0, 2000)
        update(1000, 2000)
        update(1500, None)
        later = update.another("later")
        later(5, 5)
        update.another("never")
    lines = text.getvalue().splitlines()
    assert lines[1].startswith("load: 1,000 rows of 2,000 rows (50 %), ")
    assert lines[2].startswith("load: 1,500 rows, ")
    assert lines[-2].startswith("load: 1,500 rows, ")
    assert lines[-2].endswith(" rows/s, done")
    assert lines[-1].startswith("later: 5 rows, ")
    assert not any("never" in line for line in lines)


@pytest.mark.parametrize("unit", ["rows", "bytes"])
def test_progress_bar_on_a_terminal(unit: str) -> None:
    text = io.StringIO()
    with progress("load", unit, Console(file=text, force_terminal=True, width=100)) as update:
        update(0, 10)
        update(10, 10)
        update.another("more")(3, None)
    assert "load" in text.getvalue()
    assert "100%" in text.getvalue()
    assert "more" in text.getvalue()
