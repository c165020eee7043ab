"""Shared by all areas: a small data set that can be learned, and the command line, in this process or in its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from sparsefleet.datasets.synth import SynthSpec, synth

# How long an example takes is the machine's business; `timeout` in pyproject.toml bounds a test.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

# What runs in the background of a shell, or under nohup, ignores signals, and so do its children: tests of them hang.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where launchers of the tests keep their jobs' tokens: not among those of the user."""
    folder = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder


SECONDS = 110
"""No child may take longer, however busy the machine is."""


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train/ (6,000 rows in 3 parts), test/ (1,500 rows) and schema.json."""
    folder = tmp_path_factory.mktemp("clicks") / "data"
    synth(folder, SynthSpec(rows=6000, test_rows=1500, parts=3, seed=1))
    return folder


@pytest.fixture
def cli():
    """Runs a command in this process: quick, and errors_to_exit and all its options are in the way as in a shell."""
    from typer.testing import CliRunner

    from sparsefleet.cli.app import app

    def run(*arguments: object):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        # A bug's traceback is an exception that is not an exit.
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        return result

    return run


class Children:
    """Commands in processes of their own; whatever is left of them is ended with the test."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object, module: str = "sparsefleet", **settings: object) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings.pop("env", {})}  # type: ignore[dict-item]
        child = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
            **settings,  # type: ignore[call-overload]
        )
        self._started.append(child)
        return child

    def run(self, *arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
        child = self.start(*arguments, **settings)
        out, err = child.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def reap(self) -> None:
        for child in self._started:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate(timeout=10)


@pytest.fixture
def children() -> Iterator[Children]:
    started = Children()
    try:
        yield started
    finally:
        started.reap()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A run that never met a real Redis, an S3 server or a program of others must not look like one that did."""
    for what, reason, missing in (
        ("rows in Redis", "no redis-server", "there is no redis-server (make redis installs it)"),
        ("data on S3", "no moto", "there is no moto (pip install -e '.[test]' installs it)"),
        ("Triton's client", "no tritonclient", "there is no tritonclient (pip install -e '.[test]' installs it)"),
        ("word vectors in gensim", "no gensim", "there is no gensim (pip install gensim)"),
    ):
        skipped = [report for report in terminalreporter.stats.get("skipped", []) if reason in str(report.longrepr)]
        if skipped:
            terminalreporter.section(f"NOT TESTED: {what}", sep="!", red=True, bold=True)
            terminalreporter.line(f"{len(skipped)} tests were skipped: {missing}")
