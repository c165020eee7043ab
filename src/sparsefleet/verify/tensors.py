"""Question 2, dense part: compares every tensor of the checkpoint with the graph's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.export.manifest import NetworkInfo
from sparsefleet.verify.differences import apart
from sparsefleet.verify.report import Check

AnyArray = npt.NDArray[Any]
EQUAL = "equal bits"


def check_tensors(checkpoint: Checkpoint, network: NetworkInfo, graph: Any) -> list[Check]:
    import onnx.numpy_helper

    held: dict[str, AnyArray] = {entry.name: onnx.numpy_helper.to_array(entry) for entry in graph.initializer}
    names = dict(network.parameters)
    checks, claimed = [], set[str]()
    for name, tensor in {**checkpoint.dense(), **checkpoint.buffers()}.items():
        there = names.get(name, f"model.{name}")  # the name that the exporter gives
        claimed.add(there)
        if there in held:
            checks.append(_compared(name, tensor, held[there]))
        elif name in names:
            checks.append(Check(f"tensor {name}", False, f"the graph has no {there!r}", EQUAL))
        else:
            figure = "not in the graph as it is (folded, or without influence): question 1 judges it"
            checks.append(Check(f"tensor {name}", None, figure))
    for name in sorted(set(names) - {check.what.removeprefix("tensor ") for check in checks}):
        checks.append(Check(f"tensor {name}", False, "in the graph, but not in the checkpoint", EQUAL))
    return [*checks, *_others(held, claimed | set(names.values()))]


def _compared(name: str, offline: AnyArray, online: AnyArray) -> Check:
    what = f"tensor {name}"
    if offline.shape != online.shape or offline.dtype != online.dtype:
        kinds = [f"{array.dtype} {list(array.shape)}" for array in (offline, online)]
        return Check(what, False, f"{kinds[0]} in the checkpoint, {kinds[1]} in the graph", EQUAL)
    far = apart(offline, online)
    differing = int(np.count_nonzero(far))
    facts = {"values": far.size, "differing": differing, "max": float(far.max(initial=0.0))}
    if not differing:
        shape = " × ".join(map(str, offline.shape)) or "1"
        return Check(what, True, f"{shape}, all equal", EQUAL, facts)
    at = np.unravel_index(int(far.argmax()), far.shape)
    place = [int(index) for index in at]
    pair = {"checkpoint": float(offline[at]), "bundle": float(online[at])}
    figure = (
        f"{differing:,} of {far.size:,} values differ, by {facts['max']:.3g} at most, at {place}: "
        f"{pair['checkpoint']:.8g} in the checkpoint, {pair['bundle']:.8g} in the graph"
    )
    return Check(what, False, figure, EQUAL, {**facts, "at": place, **pair})


def _others(held: Mapping[str, AnyArray], claimed: set[str]) -> list[Check]:
    """Tensors that only the graph has: constants of operators, and what the exporter folded."""
    names = sorted(set(held) - claimed)
    if not names:
        return []
    values = sum(held[name].size for name in names)
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    figure = f"{len(names)} with {values:,} values: {shown}"
    return [Check("tensors of the graph alone", None, figure, facts={"names": names, "values": values})]
