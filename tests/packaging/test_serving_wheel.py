"""The small distribution `sparsefleet-serve`: the same files without torch; it serves in an empty environment."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from bundle_fixtures import trained
from typer.testing import CliRunner

from sparsefleet.cli import distribution
from sparsefleet.cli.app import app

__all__ = ["trained"]
ROOT = Path(__file__).parents[2]
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}-cp{sys.version_info[0]}{sys.version_info[1]}-linux_x86_64"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("wheel_script_for_serving", ROOT / "scripts" / "wheel.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(script, tmp_path_factory) -> Path:
    """Of a wheel that holds this tree's files as they are: compiling takes long, and other tests do it."""
    folder = tmp_path_factory.mktemp("wheels")
    whole = folder / f"sparsefleet-0.1.0-{TAG}.whl"
    info = "sparsefleet-0.1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: sparsefleet\nVersion: 0.1.0\nSummary: all\nRequires-Dist: torch>=2.4\n"
    metadata += (
        "Requires-Dist: uvicorn>=0.30; extra == 'serve'\nProvides-Extra: serve\n\nA readme.\n\nName: not a field\n"
    )
    with zipfile.ZipFile(whole, "w") as made:
        for path in sorted((ROOT / "src").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                made.write(path, path.relative_to(ROOT / "src"))
        made.writestr(f"{info}/METADATA", metadata)
        made.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {TAG}\n")
        made.writestr(f"{info}/entry_points.txt", "[console_scripts]\nfleetrun = sparsefleet.launch:main\n")
        made.writestr(f"{info}/RECORD", "")
    return script.serving_wheel(whole, folder)


def test_it_is_the_same_code_with_other_needs(script, wheel):
    assert wheel.name == f"sparsefleet_serve-0.1.0-{TAG}.whl"
    with zipfile.ZipFile(wheel) as files:
        info = "sparsefleet_serve-0.1.0.dist-info"
        head, _, body = files.read(f"{info}/METADATA").decode().partition("\n\n")
        assert "Name: sparsefleet-serve" in head.splitlines()
        assert body == "A readme.\n\nName: not a field\n"
        needs = {line.partition(": ")[2] for line in head.splitlines() if line.startswith("Requires-Dist")}
        extra = {text for text in needs if "extra ==" in text}
        assert needs - extra == set(script.serving_requirements())
        assert [line for line in head.splitlines() if line.startswith("Provides-Extra")] == ["Provides-Extra: grpc"]
        assert {text.partition(">")[0] for text in extra} == {"grpcio", "protobuf"}
        assert all(text.endswith("; extra == 'grpc'") for text in extra)
        names = {text.partition(">")[0] for text in needs}
        assert {"onnxruntime", "uvicorn", "numpy", "pyarrow"} <= names
        assert not names & {"torch", "onnx", "onnxscript"}
        for name, digest, size in csv.reader(files.read(f"{info}/RECORD").decode().splitlines()):
            if digest:
                data = files.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={found}", len(data))
        assert sum("dist-info" in name for name in files.namelist()) == 4


def test_what_is_missing_for_grpc_is_asked_of_the_distribution_that_is_there(wheel, tmp_path, monkeypatch):
    """The whole would bring torch, and lie over the same files."""
    monkeypatch.setitem(sys.modules, "sparsefleet.serving.kserve.server", None)  # as where grpcio is missing

    def said() -> str:
        done = CliRunner().invoke(app, ["serve", "bundle", "--grpc-port", "0"])
        assert done.exit_code == 1
        return " ".join(done.output.split())

    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path, [name for name in files.namelist() if ".dist-info/" in name])
    (small,) = metadata.distributions(path=[str(tmp_path)])
    there, real = {small.name: small.version}, metadata.version

    def version(name: str) -> str:
        if name not in ("sparsefleet", "sparsefleet-serve"):
            return real(name)
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    assert "pip install 'sparsefleet-serve[grpc]'" in said()
    assert distribution.pip_install("serve") == "pip install sparsefleet-serve"
    there["sparsefleet"] = "0.1.0"
    assert "pip install 'sparsefleet[serve,grpc]'" in said()
    there.clear()  # run from its sources
    assert "pip install 'sparsefleet[serve,grpc]'" in said()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_serves_in_an_empty_environment(wheel, trained, tmp_path):
    run = {"check": True, "timeout": 900, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], **run)
    bin = tmp_path / "venv" / "bin"
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG") or name.startswith("PIP_")}
    bare = {**kept, "PATH": str(bin)}
    install = [bin / "python", "-m", "pip", "install", "--quiet", "--only-binary=:all:", "-c", ROOT / "constraints.txt"]
    subprocess.run([*install, wheel], **run, env=bare)
    listed = subprocess.run([bin / "python", "-m", "pip", "list", "--format=json"], **run, env=bare).stdout
    assert "torch" not in {entry["name"] for entry in json.loads(listed)}
    bundle = shutil.copytree(trained.bundles[0], tmp_path / "bundle")
    command = [bin / "sparsefleet", "serve", bundle, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=bare, cwd=tmp_path) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            body = json.dumps({"rows": trained.rows[:20]}).encode()
            with urllib.request.urlopen(f"{url}/v1/predict", body, timeout=30) as answer:
                scores = json.loads(answer.read())["scores"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=40) == 0
        finally:
            process.kill()
    from sparsefleet.serving import Predictor

    np.testing.assert_allclose(scores, Predictor(trained.bundles[0]).predict(trained.rows[:20]), atol=1e-6)
    without = subprocess.run([*command, "--grpc-port", "0"], capture_output=True, text=True, env=bare, timeout=60)
    assert without.returncode == 1
    assert "pip install 'sparsefleet-serve[grpc]'" in without.stderr
    trained_there = subprocess.run(
        [bin / "sparsefleet", "train", "--data", "x"], capture_output=True, text=True, env=bare, timeout=60
    )
    assert trained_there.returncode == 1
    assert "pip install sparsefleet" in trained_there.stderr
    assert "Traceback" not in trained_there.stderr
