"""The C++ example: compiled with this machine's compiler, it gives what the Predictor gives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from bundle_fixtures import trained
from torch import nn

from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data import PyReader
from sparsefleet.export import export_checkpoint, export_model
from sparsefleet.nn import SparseEmbedding, dense_input
from sparsefleet.optim import SGD
from sparsefleet.serving import Predictor
from sparsefleet.train import Trainer

__all__ = ["trained"]
ROOT = Path(__file__).parents[2]
CPP, NATIVE = ROOT / "examples" / "cpp", ROOT / "native"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
HEADER = "onnxruntime_c_api.h"
PLACES = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/include", "/usr/local/include")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler on this machine"),
]


def compiled(folder: Path, name: str, *options: str) -> Path:
    command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-DSPARSEFLEET_LEVEL=serving"]
    command += ["-I", str(NATIVE / "include"), str(CPP / f"{name}.cpp")]
    command += [str(NATIVE / "kernels" / "serving" / "bundle_rows.cpp"), "-o", str(folder / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return folder / name


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    return compiled(tmp_path_factory.mktemp("cpp"), "inputs")


@pytest.fixture(scope="module")
def score(tmp_path_factory) -> Path:
    headers = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), *PLACES]
    found = next((place for place in headers if place and (Path(place) / HEADER).exists()), None)
    if found is None:
        pytest.skip(
            f"no {HEADER} on this machine, so the C++ example's scores were NOT compared: apt-get install "
            "libonnxruntime-dev, or set ONNXRUNTIME_INCLUDE to the folder that has it"
        )
    import onnxruntime

    folder = tmp_path_factory.mktemp("cpp")
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    for name in (library.name, "libonnxruntime.so.1", "libonnxruntime.so"):  # as the linker and the loader know it
        (folder / name).symlink_to(library)
    return compiled(folder, "score", f"-I{found}", f"-L{folder}", "-lonnxruntime", f"-Wl,-rpath,{folder}")


def asked(program: Path, bundle: Path, rows: list[object], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "request.json").write_text(json.dumps({"rows": rows}))
    command = [str(program), str(bundle), str(folder / "request.json")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def network_inputs(bundle: Path, rows: list[object]) -> dict[str, np.ndarray]:
    """What the Predictor gives a network that ONNX Runtime computes."""
    predictor, found = Predictor(bundle, own_tower=False), {}

    class Session:
        def run(self, names, inputs):
            found.update(inputs)
            return [np.zeros(len(rows), np.float32) for _ in names]

    predictor._session = Session()
    predictor.predict(rows)
    return found


def compare_inputs(program: Path, bundle: Path, rows: list[object], folder: Path) -> None:
    done = asked(program, bundle, rows, folder)
    assert done.returncode == 0, done.stderr
    want = network_inputs(bundle, rows)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["input"] for line in lines} == set(want)
    for line in lines:
        got = np.array(line["values"], np.float32).reshape(len(rows), line["width"])
        np.testing.assert_array_equal(got, want[line["input"]])
        assert np.abs(got).max() > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_hash_lookup_and_pooling(trained, inputs, tmp_path, dtype):
    export_checkpoint(trained.checkpoint(3), tmp_path / "b", rows=dtype)
    compare_inputs(inputs, tmp_path / "b", trained.rows[:100], tmp_path)


OWN = Schema(
    dense=(DenseFeature("age", 10.0, 50.0),),
    slots=(Slot("user"), Slot("words", "w:"), Slot("ready", keys=True)),
    sparse_feature_dim=50,
)
RAW = [
    {"age": 31, "user": 'ä\u20ac\U0001f600 "q"\\\n', "words": ["a", "b", "a", 7, -0], "ready": 12345678901234567890},
    {"age": None, "user": None, "words": [], "ready": [3, 49, 50]},
    {"age": "1e1", "user": -12, "words": "x" * 300, "ready": None},
    {"age": 1e-45, "user": "", "words": [str(n) for n in range(40)], "ready": 0},
]


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = SparseEmbedding("users", 3, ["user", "ready"])
        self.words = SparseEmbedding("words", 5, ["words"], pooling="mean")
        self.out = nn.Linear(12, 1)

    def forward(self, batch):
        return self.out(torch.cat([self.users(batch), self.words(batch), dense_input(batch)], 1))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Folded keys, so that most values have rows; two tables, bags of any length, keys that are ready."""
    from sparsefleet.data.python_samples import batch_of_samples

    torch.manual_seed(0)
    samples = [{"label": n % 2, "age": 1.0, "user": f"u{n}", "words": [f"w{n}"], "ready": [n % 50]} for n in range(300)]
    model, trainer = Own(), Trainer(SGD(0.002), threads=1)
    trainer.fit(model, PyReader(OWN, lambda: iter([batch_of_samples(samples, OWN)])))
    out = tmp_path_factory.mktemp("own") / "b"
    export_model(model, trainer.store, out, schema=OWN)
    return out


def test_values_of_every_kind(own, inputs, tmp_path):
    compare_inputs(inputs, own, RAW, tmp_path)


@pytest.mark.parametrize("which", ["criteo", "own"])
def test_scores_are_the_predictors(trained, own, score, tmp_path, which):
    bundle, rows = (trained.bundles[2], trained.rows) if which == "criteo" else (own, RAW)
    done = asked(score, bundle, rows, tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    predictor = Predictor(bundle)
    assert answer["version"] == predictor.version
    np.testing.assert_allclose(answer["scores"], predictor.predict(rows), atol=1e-6, rtol=0)
    assert np.std(answer["scores"]) > 1e-4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"age": 1}], "row 0: field 'user' is missing"),
        ([{**RAW[0], "age": "x"}], "row 0: field 'age' is not a number"),
        ([{**RAW[0], "age": 1e300}], "row 0: field 'age' is too large"),
        ([RAW[0], {**RAW[0], "user": 1.5}], "row 1: field 'user': allowed is text"),
        ([{**RAW[0], "ready": -1}], "row 0: wanted is a whole number, 0 or above"),
    ],
)
def test_rows_that_do_not_fit(own, inputs, tmp_path, rows, message):
    done = asked(inputs, own, rows, tmp_path)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_bundles_that_do_not_fit(trained, own, inputs, tmp_path):
    for name, edit, message in (
        ("cut", lambda b: os.truncate(b / "sparse/users.rows", 500), "cut short"),
        ("swapped", lambda b: shutil.copy(b / "sparse/users.rows", b / "sparse/words.rows"), "another bundle or table"),
        ("other", lambda b: (b / "schema.json").write_text('{"format": "x", "version": 2}'), "this example reads"),
        ("bad", lambda b: (b / "network.json").write_text("{"), "not a JSON document"),
    ):
        shutil.copytree(own, tmp_path / name)
        edit(tmp_path / name)
        done = asked(inputs, tmp_path / name, RAW, tmp_path)
        assert (done.returncode, message in done.stderr) == (1, True), (name, done.stderr)
    schema = json.loads((own / "schema.json").read_text())
    schema["slots"][0]["lower"] = True
    shutil.copytree(own, tmp_path / "lower")
    (tmp_path / "lower" / "schema.json").write_text(json.dumps(schema))
    assert "'user' has a transform, lower" in asked(inputs, tmp_path / "lower", RAW, tmp_path).stderr
