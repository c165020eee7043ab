"""`make setup`: the module is compiled beside pip's work, and what fails on either side is told."""

from __future__ import annotations

import importlib.util
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def set_up() -> ModuleType:
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "scripts" / "set_up.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_runs_inside_runs_while_it_compiles(set_up, monkeypatch, tmp_path):
    told = tmp_path / "told"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(told)!r}).exists(): time.sleep(.01)"
    monkeypatch.setattr(set_up, "COMPILE", waits)
    with set_up.compiling():
        told.touch()  # it would wait for ever if it were run before


def test_a_failed_compilation_says_what_the_compiler_said(set_up, monkeypatch):
    monkeypatch.setattr(set_up, "COMPILE", "print('gemm.cpp:7: error: no such thing'); raise SystemExit(3)")
    with pytest.raises(SystemExit) as raised, set_up.compiling():
        pass
    assert "gemm.cpp:7: error: no such thing" in str(raised.value)
    assert "the native module could not be compiled" in str(raised.value)


def test_a_compilation_does_not_outlive_a_failed_installation(set_up, monkeypatch, tmp_path):
    started, ended = tmp_path / "started", tmp_path / "ended"
    code = f"""
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path({str(ended)!r}).touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
pathlib.Path({str(started)!r}).touch()
while True: time.sleep(.01)
"""
    monkeypatch.setattr(set_up, "COMPILE", code)

    def fails() -> None:
        while not started.exists():
            time.sleep(0.01)
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"), set_up.compiling():
        fails()
    assert ended.exists()


def test_all_that_the_tests_need_is_fetched_while_it_compiles(set_up, monkeypatch):
    calls: list[list[str]] = []
    monkeypatch.setattr(set_up, "COMPILE", "")
    monkeypatch.setattr(set_up, "build_tools", lambda project: None)
    monkeypatch.setattr(set_up, "PIP", [sys.executable, "-c", ""])
    real = set_up.subprocess.run
    monkeypatch.setattr(set_up.subprocess, "run", lambda command, **how: calls.append(command) or real(command, **how))
    set_up.main()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (fetched,) = (set(call) for call in calls if "pyarrow>=17" in call)
    assert {*project["dependencies"], *project["optional-dependencies"]["test"]} <= fetched
    assert calls[-1][-2:] == ["-e", ".[test]"]
