"""ONNX Runtime takes denormals for zero, in its own threads and in the caller's, which is then as it was before."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sparsefleet.export.onnx_session import open_session, run_session
from sparsefleet.kernels.float_mode import denormals_are_zero

SMALL = np.full(2_000_000, 1e-40, np.float32)


def doubling() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubling", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_zero_in_every_thread_of_a_run(threads):
    session = open_session(doubling(), threads)
    assert np.count_nonzero(run_session(session, "y", {"x": SMALL})) == 0
    assert not denormals_are_zero()


def test_the_first_session_of_a_process_leaves_its_thread_alone(tmp_path):
    # ONNX Runtime sets the thread that opens a process's first session, once: hence a process of its own.
    (tmp_path / "model.onnx").write_bytes(doubling())
    script = (
        "import sys; from sparsefleet.export.onnx_session import open_session\n"
        "from sparsefleet.kernels.float_mode import denormals_are_zero\n"
        "open_session(open(sys.argv[1], 'rb').read()); print(denormals_are_zero())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.onnx")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == "False"
