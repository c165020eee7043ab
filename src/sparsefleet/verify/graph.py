"""Question 1: is the pruned graph right? The same samples go through the training network and the bundle's.

Both get the checkpoint's rows, so only the networks can differ.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.onnx_session import OPTIMIZATIONS
from sparsefleet.serving.predictor import Predictor
from sparsefleet.verify.differences import Spread, apart
from sparsefleet.verify.offline import KnownRows, OfflineSource, torch_scores
from sparsefleet.verify.report import Check, Question

TITLE = "Is the pruned graph right?"


def check_graph(
    bundle: Bundle, graph: Any, model: nn.Module, rows: dict[str, KnownRows], batch: Batch, tolerance: float
) -> Question:
    checks = [_compared(bundle, model, rows, batch, tolerance), *_levels(bundle, rows, batch, tolerance)]
    return Question(TITLE, [*checks, _described(bundle, graph)])


def _levels(bundle: Bundle, rows: dict[str, KnownRows], batch: Batch, tolerance: float) -> list[Check]:
    """ONNX Runtime rewrites a graph before it runs it (fuses operators, say). Each level against the graph as it is."""
    source = OfflineSource(rows)
    try:
        plain = Predictor(bundle, source=source, optimization="none").predict_batch(batch)
    except SparseFleetError as error:
        return [Check("the graph as it is, without optimization", False, str(error))]
    checks = []
    for level in OPTIMIZATIONS[1:]:
        predicted = Predictor(bundle, source=source, optimization=level).predict_batch(batch)
        spread = Spread.of(apart(plain, predicted))
        serves = " (what serves)" if level == OPTIMIZATIONS[-1] else ""
        what, figure = f"ONNX Runtime's optimization {level}{serves}", f"{spread.max:.2g} at most"
        checks.append(Check(what, spread.max <= tolerance, figure, f"{tolerance:g}", spread.to_dict()))
    return checks


def _compared(bundle: Bundle, model: nn.Module, rows: dict[str, KnownRows], batch: Batch, tolerance: float) -> Check:
    what, allowed = f"{len(batch):,} samples, torch against ONNX", f"{tolerance:g}"
    try:
        predicted = Predictor(bundle, source=OfflineSource(rows)).predict_batch(batch)
    except SparseFleetError as error:
        return Check(what, False, f"the bundle cannot score samples as training reads them: {error}", allowed)
    spread = Spread.of(apart(torch_scores(model, rows, batch), predicted))
    figure = f"{spread.max:.2g} at most, {spread.mean:.2g} on average"
    return Check(what, spread.max <= tolerance, figure, allowed, spread.to_dict())


def _described(bundle: Bundle, graph: Any) -> Check:
    """What is left of the model; a loss or a metric would stand out here."""
    operators = Counter(node.op_type for node in graph.node)
    inputs = [entry.name for entry in graph.input]
    listed = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in operators.most_common())
    figure = f"from {', '.join(inputs)} to {bundle.network.output}: {listed}"
    facts = {"inputs": inputs, "output": bundle.network.output, "operators": dict(operators)}
    return Check("what the graph holds", None, figure, facts=facts)
