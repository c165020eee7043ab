"""ONNX Runtime, set up as bundles are scored. Denormals are zero, as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.core.batch import F32
from sparsefleet.kernels.float_mode import flushed

OPTIMIZATIONS = ("none", "basic", "extended", "all")
"""How far ONNX Runtime may rewrite a graph before it runs it; bundles are served with the last."""


def open_session(graph: bytes, threads: int = 1, optimization: str = "all") -> Any:
    """`threads`: of each run. Raises what ONNX Runtime raises."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = {
        "none": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }[optimization]
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # Threads that wait should not burn the processor that other requests need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # This is about threads of its own. A process's first session also sets the thread that opens it, and never undoes
    # that: hence the scope here.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    with flushed():
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, output: str, inputs: Mapping[str, F32]) -> F32:
    return run_outputs(session, [output], inputs)[0]


def run_outputs(session: Any, outputs: Sequence[str], inputs: Mapping[str, F32]) -> list[F32]:
    with flushed():  # the calling thread does its part of the work
        values: list[F32] = session.run(outputs, inputs)
    return values
