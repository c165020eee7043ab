"""What the doctor tells, of this machine and of others that are made up."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib import metadata

import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.doctor import Finding, Report, Section, Verdict, examine, limits, load, measures, processor, run
from sparsefleet.doctor.findings import Check
from sparsefleet.kernels import levels


def by_name(findings) -> dict[str, Finding]:
    found = list(findings)
    assert len({one.name for one in found}) == len(found), "a name came twice"
    return {one.name: one for one in found}


@pytest.fixture
def without(monkeypatch):
    """Packages that are not installed, as far as anyone can tell."""

    def hide(*names: str) -> None:
        version = metadata.version

        def looked_up(name: str) -> str:
            if name in names:
                raise metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(metadata, "version", looked_up)
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)
            # Whatever imported it must try again.
            for module in [m for m in sys.modules if m.startswith("sparsefleet.nn")]:
                monkeypatch.delitem(sys.modules, module)

    return hide


# ---- contents


def test_a_quick_look_tells_all_but_speed():
    report = examine(quick=True)
    assert [section.title for section in report.sections] == ["versions", "processor", "limits", "settings"]
    found = by_name(report.findings)
    assert report.ok, [one for one in report.findings if one.verdict is Verdict.BROKEN]
    assert found["sparsefleet"].text == metadata.version("sparsefleet")
    for package in ("torch", "numpy", "pyarrow"):
        assert found[package].text == metadata.version(package)
    assert found["level"].text.startswith(f"{levels.chosen.level} (")
    assert levels.chosen.reason in found["level"].text
    assert found["levels"].facts["available"] == list(levels.chosen.available)
    assert found["memory"].facts["total"] > found["memory"].facts["available"] > 0
    assert found["cores"].facts["usable"] == len(os.sched_getaffinity(0))
    assert os.uname().release in found["system"].text


def test_speed_is_measured(monkeypatch):
    monkeypatch.setattr(measures, "ROUNDS", 1)
    monkeypatch.setattr(measures, "TABLE_ROWS", 40_000)
    monkeypatch.setattr(measures, "TEXT_ROWS", 2_000)
    found = by_name(examine().sections[-1].findings)
    assert list(found) == [
        *("dense, float32", "dense, bf16", "table, pull", "table, push", "Criteo text", "the machine"),
    ]
    assert found["dense, float32"].facts["gflops"] > 0
    assert found["dense, float32"].facts["torch_gflops"] > 0
    assert found["table, pull"].facts["rows_per_s"] > 1000
    assert found["Criteo text"].facts["rows_per_s"] > 1000
    for one in found.values():
        assert one.verdict in (Verdict.OK, Verdict.LOW, Verdict.TOLD), one
        assert bool(one.advice) == (one.verdict is Verdict.LOW), one


# ---- the command


def test_json(cli):
    result = cli("doctor", "--quick", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["ok"] is True
    found = {one["name"]: one for section in report["sections"] for one in section["findings"]}
    assert found["level"]["level"] == levels.chosen.level
    assert found["level"]["verdict"] in ("ok", "low")


def test_words(cli):
    result = cli("doctor", "--quick")
    assert result.exit_code == 0
    for line in ("versions", "processor", "limits", "settings"):
        assert line in result.stdout.splitlines()
    assert f"{levels.chosen.level} (" in result.stdout
    assert all(line == line.rstrip() for line in result.stdout.splitlines()), "blanks at the end of a line"


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_fit_the_terminal(cli, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = cli("doctor", "--quick").stdout.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert max(map(len, shown.splitlines())) <= columns


def test_what_is_broken_sets_the_exit_status(cli, monkeypatch):
    broken = Report([Section("all", [Finding("level", "none", Verdict.BROKEN, "buy one"), Finding("x", "y")])])
    monkeypatch.setattr(sys.modules["sparsefleet.cli.doctor"], "examine", lambda *_, **__: broken)
    result = cli("doctor")
    assert result.exit_code == 1
    assert "→ buy one" in result.stdout
    assert result.stdout.endswith("broken: level\n")
    assert json.loads(cli("doctor", "--json").stdout)["ok"] is False


def test_a_level_that_is_not_here_is_told_with_all_the_rest(children):
    done = children.run("doctor", "--json", env={levels.VARIABLE: "sse9"})
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    found = {one["name"]: one for section in report["sections"] for one in section["findings"]}
    assert found["level"]["verdict"] == "broken"
    assert "SPARSEFLEET_ISA=sse9: levels are baseline" in found["level"]["text"]
    assert found["level"]["advice"] == "unset SPARSEFLEET_ISA"
    assert found["all"]["text"].startswith("not measured")
    assert [name for name, one in found.items() if one["verdict"] == "broken"] == ["level"]


# ---- one check does not stop another


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("no such level"), "no such level"),
        (ZeroDivisionError("oh"), "this check failed: ZeroDivisionError: oh"),
    ],
)
def test_a_check_that_fails_says_why_and_the_rest_goes_on(monkeypatch, error, text):
    def fails():
        yield Finding("first", "fine")
        raise error

    checks = (Check("bad", fails), Check("good", lambda: [Finding("last", "fine")]))
    monkeypatch.setattr(run, "TITLES", {"made up": checks})
    report = examine(quick=True)
    assert not report.ok
    assert [(one.name, one.text, one.verdict) for one in report.findings] == [
        ("first", "fine", "told"),
        ("bad", text, "broken"),
        ("last", "fine", "told"),
    ]


# ---- packages


def test_without_torch(without, monkeypatch):
    without("torch", "onnxruntime")
    monkeypatch.setattr(measures, "ROUNDS", 1)
    report = examine(quick=True)
    found = by_name(report.findings)
    assert report.ok
    assert found["torch"].text == "not installed"
    assert found["torch's bf16"].text == "not tried: torch is not installed"
    assert "not installed: onnxruntime" in found["optional"].text
    dense = by_name(measures.dense_layers(load.Load()))["dense, float32"]
    assert "without torch nothing to compare with" in dense.text


def test_the_command_runs_where_torch_was_never_installed():
    script = "import sys; sys.modules['torch'] = None; from sparsefleet.cli import main; main()"
    command = [sys.executable, "-c", script, "doctor", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "not tried: torch is not installed" in done.stdout


def test_torch_whose_bf16_fails_is_told(monkeypatch):
    from sparsefleet.nn import precision

    def fails(*_, **__):
        raise RuntimeError("could not create a primitive\nand a long story")

    monkeypatch.setattr(precision.nn, "Linear", fails)
    precision.torch_bf16_error.cache_clear()
    try:
        (found,) = processor.torch_bf16()
    finally:
        precision.torch_bf16_error.cache_clear()
    assert (found.text, found.verdict) == ("fails: could not create a primitive", "low")
    assert "without bf16" in found.advice


# ---- the level


def test_a_level_below_the_richest_is_low(monkeypatch):
    forced = levels.Choice("baseline", ("baseline", "avx2"), "SPARSEFLEET_ISA=baseline")
    monkeypatch.setattr(levels, "chosen", forced)
    found = by_name(processor.level())["level"]
    assert (found.text, found.verdict) == ("baseline (SPARSEFLEET_ISA=baseline)", "low")
    assert "avx2" in found.advice


# ---- limits


@pytest.mark.parametrize(
    ("soft", "hard", "verdict", "advice"),
    [
        (1024, 524288, "low", "ulimit -n 4096"),
        (1024, 1024, "low", "hard limit raised"),
        (4096, 4096, "ok", ""),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok", ""),
    ],
)
def test_open_files(monkeypatch, soft, hard, verdict, advice):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    (found,) = limits.open_files()
    assert found.verdict == verdict
    assert advice in found.advice


def test_little_memory(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:  16000000 kB\nMemAvailable:  900000 kB\nHugePages_Total:  0\n")
    (found,) = limits.memory(tmp_path / "meminfo")
    assert (found.text, found.verdict) == ("0.9 GiB available of 15.3 GiB", "low")
    (found,) = limits.memory(tmp_path / "nowhere")
    assert found.verdict is Verdict.TOLD


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_limits_of_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "usable_cores", lambda: 8)
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    group(tmp_path / "v2" / "a", memory__max=4 << 30, cpu__max="150000 100000")
    group(tmp_path / "v2" / "a" / "b", memory__max="max", cpu__max="max 100000")
    found = by_name(limits.cgroup(tmp_path / "v2", own))
    assert found["memory limit"].text == "4.0 GiB"
    assert (found["cores limit"].text, found["cores limit"].verdict) == ("1.5 cores' time", "low")
    assert "8 cores and get the time of 1.5" in found["cores limit"].advice


def test_limits_of_an_older_container(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)
    own = tmp_path / "own"
    own.write_text("5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n")
    group(tmp_path / "v1" / "memory" / "x", memory__limit_in_bytes=1 << 30)
    group(tmp_path / "v1" / "memory", memory__limit_in_bytes=9223372036854771712)
    group(tmp_path / "v1" / "cpu,cpuacct" / "x", cpu__cfs_quota_us=400000, cpu__cfs_period_us=100000)
    found = by_name(limits.cgroup(tmp_path / "v1", own))
    assert found["memory limit"].text == "1.0 GiB"
    assert (found["cores limit"].text, found["cores limit"].verdict) == ("4 cores' time", "told")


def test_no_limits(tmp_path):
    found = by_name(limits.cgroup(tmp_path, tmp_path / "nowhere"))
    assert [one.text for one in found.values()] == ["none", "none"]


def test_no_shared_memory(tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    found = by_name(limits.shared_memory(str(tmp_path / "nowhere")))
    assert found["memfd"].verdict is Verdict.LOW
    assert "slower" in found["memfd"].advice


# ---- settings


def test_secrets_are_not_shown(cli, monkeypatch):
    monkeypatch.setenv("SPARSEFLEET_TOKEN", "hush-hush")
    monkeypatch.setenv("SPARSEFLEET_NEW_THING", "hush-hush")
    monkeypatch.setenv("http_proxy", "http://me:hush-hush@proxy:1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    for option in ("--quick", "--json"):
        shown = cli("doctor", "--quick", option).stdout
        assert "hush" not in shown
        assert "SPARSEFLEET_TOKEN" in shown
        assert "http_proxy" in shown
        assert "no_proxy" in shown
        assert "OMP_NUM_THREADS" in shown


# ---- the machine


def test_a_busy_machine_is_named_as_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "GOVERNOR", tmp_path / "governor")
    (tmp_path / "governor").write_text("powersave\n")
    (tmp_path / "stat").write_text("cpu  100 0 0 100 0 0 0 0 0 0\ncpu0 1 2\n")
    seen = load.Load(tmp_path)
    assert seen.share == 1.0
    assert seen.steal == 0
    monkeypatch.setattr(load.time, "thread_time", lambda: 0.0)  # it never got to run
    seen.seconds(lambda: None)
    (tmp_path / "stat").write_text("cpu  150 0 0 100 0 0 0 50 0 0\ncpu0 1 2\n")
    assert seen.steal == 0.5
    (found,) = seen.findings()
    assert found.verdict is Verdict.LOW
    for reason in ("other programs", "other virtual machines", "'powersave'"):
        assert reason in found.advice


def test_a_machine_that_tells_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "GOVERNOR", tmp_path / "governor")
    seen = load.Load(tmp_path)
    assert seen.steal is None
    assert "report it" in seen.advice()


def test_a_low_measure_says_what_to_do(monkeypatch):
    monkeypatch.setattr(measures, "ROUNDS", 1)
    monkeypatch.setattr(measures, "TABLE_ROWS", 20_000)
    monkeypatch.setattr(measures, "WANTED_PULL", 1e15)
    monkeypatch.setattr(measures, "WANTED_PUSH", 1.0)
    found = by_name(measures.tables(load.Load()))
    assert found["table, pull"].verdict is Verdict.LOW
    assert found["table, pull"].advice
    assert found["table, push"].verdict is Verdict.OK
