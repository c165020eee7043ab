"""Which level of the kernels is used: on processors that are made up, and on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.data.formats.command import CommandSource
from sparsefleet.kernels import _native, levels
from sparsefleet.kernels.levels import TILES_SAVED, YMM_SAVED, ZMM_SAVED, Processor, choose
from sparsefleet.launch import RunSettings, run_local

ALL = tuple(level.name for level in levels.LEVELS)
FEATURES = {level.name: frozenset(level.features) for level in levels.LEVELS}
EVERYTHING_SAVED = 0b111 | ZMM_SAVED | TILES_SAVED
REFUSED_HERE = next((name for name in ALL if name not in levels.chosen.available), None)


def processor(level: str, saved_state: int = EVERYTHING_SAVED, tiles_error: str | None = None) -> Processor:
    return Processor("a processor", FEATURES[level], saved_state, tiles_error)


# ---- made-up processors


@pytest.mark.parametrize("level", ALL)
def test_the_richest_level_that_the_processor_has(level):
    choice = choose(processor(level), ALL)
    assert choice.level == level
    assert choice.available == ALL[: ALL.index(level) + 1]
    if level == "amx":
        assert choice.reason == "the richest there is"
    else:
        assert choice.reason.startswith(f"not {ALL[ALL.index(level) + 1]}: the processor has no ")


@pytest.mark.parametrize(
    ("saved_state", "level", "not_level"),
    [
        (0, "baseline", "avx2"),  # an operating system without XSAVE
        (0b011, "baseline", "avx2"),  # no YMM
        (0b111, "avx2", "avx512"),  # no ZMM
        (0b111 | 0b0110_0000, "avx2", "avx512"),  # masks and the lower ZMM, not the upper ones
        (0b111 | ZMM_SAVED, "avx512bf16", "amx"),  # no tiles
        (0b111 | ZMM_SAVED | 1 << 17, "avx512bf16", "amx"),  # the tiles' shapes, not their contents
    ],
)
def test_registers_that_the_system_does_not_save_are_not_used(saved_state, level, not_level):
    choice = choose(processor("amx", saved_state), ALL)
    assert choice.level == level
    assert choice.reason == f"not {not_level}: the operating system does not save the registers that it uses"


def test_tiles_that_the_system_refuses_are_not_used():
    choice = choose(processor("amx", tiles_error="Operation not permitted"), ALL)
    assert choice.level == "avx512bf16"
    assert choice.reason == "not amx: the operating system refuses the tile registers: Operation not permitted"


def test_a_richer_level_does_not_need_the_ones_below_to_be_built():
    assert choose(processor("amx"), ("baseline", "amx")).available == ("baseline", "amx")


def test_a_processor_below_the_poorest_level_is_refused():
    old = Processor("an old one", FEATURES["baseline"] - {"sse4_2", "popcnt"}, YMM_SAVED)
    with pytest.raises(ConfigError, match=r"needs an x86-64-v2 processor .*: the processor has no sse4_2, popcnt"):
        choose(old, ALL)
    with pytest.raises(ConfigError, match="the processor has no sse4_2, popcnt"):
        choose(old, ("baseline",))


def test_portable_code_is_used_where_there_is_no_cpuid():
    elsewhere = Processor("", frozenset(), 0)
    choice = choose(elsewhere, ("baseline",))
    assert (choice.level, choice.available) == ("baseline", ("baseline",))
    assert "portable" in choice.reason
    assert choose(elsewhere, ("baseline",), "baseline").level == "baseline"
    with pytest.raises(ConfigError, match="SPARSEFLEET_ISA=avx2: it was not built; this machine runs baseline"):
        choose(elsewhere, ("baseline",), "avx2")


def test_a_module_of_its_own_machine_has_one_level():
    choice = choose(processor("avx2"), ("native",))
    assert (choice.level, choice.available) == ("native", ("native",))
    assert "this machine only" in choice.reason
    assert choose(processor("avx2"), ("native",), "native").level == "native"
    with pytest.raises(ConfigError, match="SPARSEFLEET_ISA=baseline: it was not built; this machine runs native"):
        choose(processor("avx2"), ("native",), "baseline")


@pytest.mark.parametrize("level", ALL)
def test_a_level_can_be_forced(level):
    choice = choose(processor("amx"), ALL, level)
    assert (choice.level, choice.available, choice.reason) == (level, ALL, f"SPARSEFLEET_ISA={level}")


def test_an_empty_variable_forces_nothing():
    assert choose(processor("avx2"), ALL, "").level == "avx2"


@pytest.mark.parametrize(
    ("machine", "built", "forced", "message"),
    [
        (processor("avx2"), ALL, "avx512", "the processor has no avx512f, .*; this machine runs baseline, avx2"),
        (processor("amx", 0b111), ALL, "avx512", "does not save the registers .*; this machine runs baseline, avx2"),
        (processor("amx", tiles_error="no such call"), ALL, "amx", "refuses the tile registers: no such call; this"),
        (processor("amx"), ("baseline", "avx2"), "amx", "it was not built; this machine runs baseline, avx2"),
        (processor("avx2"), ALL, "sse9", "levels are baseline, avx2, .*, amx; this machine runs baseline, avx2"),
    ],
)
def test_a_level_that_cannot_be_forced_is_refused_with_what_there_is(machine, built, forced, message):
    with pytest.raises(ConfigError, match=f"^SPARSEFLEET_ISA={forced}: .*{message}"):
        choose(machine, built, forced)


# ---- this processor


def test_this_process_uses_the_level_that_it_says():
    assert levels.chosen.level == (os.environ.get(levels.VARIABLE) or levels.chosen.available[-1])
    assert levels.native.__name__.endswith(f".{levels.chosen.level}")
    assert levels.native is _native.kernels(levels.chosen.level)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="there is no /proc/cpuinfo to compare with")
def test_the_processors_features_are_those_that_linux_tells():
    told = set(Path("/proc/cpuinfo").read_text().split())
    found = levels.this_processor().features
    if not found:
        pytest.skip("a processor without cpuid")
    known = FEATURES["amx"]
    # Linux leaves out what it does not let programs use: we may know of more, never of less.
    assert told & known <= found


TELL = """
from sparsefleet.kernels import levels, text
assert text.xxh64(b"") == 0xEF46DB3751D8E999
assert text._native is levels.native
print("level", levels.chosen.level)
"""


@pytest.mark.parametrize("level", levels.chosen.available)
def test_the_variable_chooses_in_a_new_process(level):
    environment = {**os.environ, levels.VARIABLE: level}
    done = subprocess.run([sys.executable, "-c", TELL], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"level {level}\n"), done.stderr


COMMANDS = [
    ("train", "--data", "."),
    ("infer", "model", "--data", "."),
    ("status", "127.0.0.1:1"),
    ("serve", "bundle"),
    ("export", "model", "--out", "bundle"),
]


@pytest.mark.skipif(REFUSED_HERE is None, reason="this machine runs every level")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_commands_say_in_one_line_that_a_level_cannot_be_used(command, children, tmp_path):
    done = children.run(*command, env={levels.VARIABLE: REFUSED_HERE}, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: SPARSEFLEET_ISA={REFUSED_HERE}: ")
    assert done.stderr.count("\n") == 1
    assert f"this machine runs {', '.join(levels.chosen.available)}" in done.stderr


def test_fleetrun_says_it_too(children, tmp_path):
    done = children.run("x.py", module="sparsefleet.launch", env={levels.VARIABLE: "sse9"}, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fleetrun: SPARSEFLEET_ISA=sse9: levels are baseline, ")
    assert done.stderr.count("\n") == 1


def test_servers_and_workers_use_the_launchers_level(tmp_path, monkeypatch):
    level = levels.chosen.available[0]
    monkeypatch.setenv(levels.VARIABLE, level)
    settings = RunSettings(log_dir=tmp_path / "log")
    outcome = run_local(lambda role: [sys.executable, "-c", TELL], 1, 1, settings)
    assert outcome.exit_code == 0
    for log in ("serverlog.0", "workerlog.0"):
        assert (tmp_path / "log" / log).read_text() == f"level {level}\n"


def test_pipe_commands_use_the_readers_level(tmp_path, monkeypatch):
    monkeypatch.setenv(levels.VARIABLE, levels.chosen.level)
    (tmp_path / "rows").write_text("")
    source = CommandSource(f"echo ${levels.VARIABLE}", str(tmp_path / "rows"), timeout=30)
    printed = bytearray(100)
    try:
        assert printed[: source.readinto(memoryview(printed))].decode() == f"{levels.chosen.level}\n"
    finally:
        source.close()
