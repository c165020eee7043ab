"""Wheels: what they are built with, for whom, and that one runs where there is no compiler."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheel_script", ROOT / "scripts" / "wheel.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_one_wheel_for_3_11_and_one_for_all_later(script):
    found = [script.Interpreter(Path("python"), (3, minor)) for minor in (9, 10, 11, 12, 13, 14)]
    assert [one.version for one in script.builders(found)] == [(3, 11), (3, 12)]
    assert [one.version for one in script.builders(found[4:])] == [(3, 13)]
    assert script.builders(found[:2]) == []


def test_only_the_stable_abi_is_told_to_the_build(script):
    told = [script.settings(script.Interpreter(Path("python"), version)) for version in ((3, 11), (3, 13))]
    assert not any("py-api" in setting for setting in told[0])
    assert "--config-settings=wheel.py-api=cp312" in told[1]


def test_what_is_no_python_is_passed_over(script, tmp_path):
    broken = tmp_path / "python3.11"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    paths = [broken, tmp_path / "absent", Path(sys.executable)]
    assert [(one.path, one.version) for one in script.found(paths)] == [(Path(sys.executable), sys.version_info[:2])]


def test_the_oldest_python_is_the_projects(script):
    assert PROJECT["project"]["requires-python"] == ">={}.{}".format(*script.OLDEST)


def test_the_platform_is_manylinux_2_28_or_older(script):
    found = re.fullmatch(r"manylinux_2_(\d+)_x86_64", script.PLATFORM)
    assert found
    assert int(found[1]) <= 28


def test_the_compiler_is_told_processors_in_its_own_spelling(tmp_path):
    """And everything else as it came, spaces and all."""
    said = tmp_path / "said"
    zig = tmp_path / "zig"
    zig.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{said}\n')
    zig.chmod(0o755)
    environment = {**os.environ, "ZIG": str(zig), "ZIG_TARGET": "x86_64-linux-gnu.2.17"}
    given = ["-march=x86-64-v3", "-DNAME=two words", "-march=native", "x86-64-v2.cpp"]
    subprocess.run([ROOT / "scripts" / "zig_cxx.sh", *given], env=environment, check=True, timeout=30)
    target = ["c++", "-target", "x86_64-linux-gnu.2.17"]
    expected = [*target, "-march=x86_64_v3", "-DNAME=two words", "-march=native", "x86-64-v2.cpp"]
    assert said.read_text().splitlines() == expected


def test_tools_are_pinned_and_torch_is_pinned_in_one_place_only():
    tools = (ROOT / "scripts" / "wheel_tools.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z-]+==[\d.]+", line) for line in tools if not line.startswith("#"))
    assert not any(line.startswith("torch") for line in tools)
    assert [line for line in PROJECT["project"]["dependencies"] if line.startswith("torch")] == ["torch>=2.4"]
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def test_tritons_client_comes_with_the_tests_in_one_version():
    """Without it the test of it is skipped, and nobody but it can say whether clients of Triton work as they are."""
    wanted = PROJECT["project"]["optional-dependencies"]["test"]
    assert [text for text in wanted if text.startswith("tritonclient[grpc]")]
    assert re.search(r"^tritonclient==[\d.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


def run(command: list[object], **settings: object) -> str:
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1500, **settings)  # type: ignore[call-overload]
    assert ended.returncode == 0, f"{command}:\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def wheel(script, tmp_path_factory) -> Path:
    if sys.platform != "linux":
        pytest.skip("wheels are built for Linux")
    dist = tmp_path_factory.mktemp("dist")
    said = run([sys.executable, ROOT / "scripts" / "wheel.py", f"--python={sys.executable}", f"--out={dist}"])
    assert f'platform tag:\n"{script.PLATFORM}"' in said
    assert len(list(dist.glob("sparsefleet_serve-*.whl"))) == 1
    (built,) = dist.glob("sparsefleet-*.whl")
    return built


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_the_wheels_compiler_made_computes_as_the_twins_do(wheel, tmp_path):
    """Another compiler than the one that these tests run with otherwise: its code is tested like the other's."""
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as files:
        files.extractall(unpacked)
    # Without `site` (-S) this environment's own install of the package is not found.
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([str(unpacked), *filter(None, sys.path)])}
    found = [sys.executable, "-S", "-c", "import sparsefleet.kernels; print(sparsefleet.kernels.__file__)"]
    assert run(found, env=given).startswith(str(unpacked))
    said = run([sys.executable, "-S", "-m", "pytest", "-q", "tests/kernels"], env=given, cwd=ROOT)
    assert int(re.findall(r"(\d+) passed", said)[-1]) > 200


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_wheel_runs_where_there_is_no_compiler(wheel, tmp_path):
    run([sys.executable, "-m", "venv", tmp_path / "venv"])
    bin = tmp_path / "venv" / "bin"
    # Nothing but this environment's programs is found: no compiler, no CMake.
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG") or name.startswith("PIP_")}
    bare = {**kept, "PATH": str(bin)}
    settings = {"env": bare, "cwd": tmp_path}
    install = [bin / "python", "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    run([*install, "-c", ROOT / "constraints.txt", wheel], **settings)
    levels = run([bin / "python", "-c", LEVELS], **settings).split()
    assert "baseline" in levels
    run([bin / "sparsefleet", "data", "synth", "--rows", 4000, "--test-rows", 500, "--out", "data"], **settings)
    for level in levels:
        forced = {"cwd": tmp_path, "env": {**bare, "SPARSEFLEET_ISA": level}}
        run([bin / "sparsefleet", "train", "--data", "data/train", "--threads", 1, "--save", level], **forced)
        assert '"auc"' in run([bin / "sparsefleet", "infer", level, "--data", "data/test", "--json"], **forced)


LEVELS = "from sparsefleet.kernels import levels; print(*levels.chosen.available)"
