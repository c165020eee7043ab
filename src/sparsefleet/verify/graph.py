"""Question 1: is the pruned graph right? The same samples go through the training network and the bundle's.

Both get the checkpoint's rows, so only the networks can differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from sparsefleet.core.batch import F32, Batch
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.onnx_session import OPTIMIZATIONS
from sparsefleet.serving.predictor import OWN_TOWER, Predictor
from sparsefleet.verify.differences import Spread, apart
from sparsefleet.verify.offline import KnownRows, OfflineSource, torch_scores
from sparsefleet.verify.places import by_label
from sparsefleet.verify.report import Check, Question

TITLE = "Is the pruned graph right?"
TOGETHER, ALONE = 64, 8
"""Samples that are scored together, and how many of them alone."""


def check_graph(
    bundle: Bundle, graph: Any, model: nn.Module, rows: dict[str, KnownRows], batch: Batch, tolerance: float
) -> Question:
    checks = [*_compared(bundle, model, rows, batch, tolerance), *_levels(bundle, rows, batch, tolerance)]
    checks += _rows_alone(bundle, model, rows, batch, tolerance)
    return Question(TITLE, [*checks, _described(bundle, graph)])


def _levels(bundle: Bundle, rows: dict[str, KnownRows], batch: Batch, tolerance: float) -> list[Check]:
    """ONNX Runtime rewrites a graph before it runs it (fuses operators, say). Each level against the graph as it
    is; and our own kernel, where it serves."""
    source = OfflineSource(rows)
    try:
        plain = Predictor(bundle, source=source, optimization="none").score(batch)
    except SparseFleetError as error:
        return [Check("the graph as it is, without optimization", False, str(error))]
    serving = Predictor(bundle, source=source)
    others = {
        f"ONNX Runtime's optimization {level}": Predictor(bundle, source=source, optimization=level, own_tower=False)
        for level in OPTIMIZATIONS[1:]
    }
    if serving.runtime == OWN_TOWER:  # by machines like this one; others serve with ONNX Runtime
        others["our own tower"] = serving
    checks = []
    for way, predictor in others.items():
        predicted = by_label(predictor.score(batch))
        spread = Spread.of(np.concatenate([apart(each, predicted[label]) for label, each in by_label(plain).items()]))
        what, figure = f"{way}{' (what serves)' if way == list(others)[-1] else ''}", f"{spread.max:.2g} at most"
        checks.append(Check(what, spread.max <= tolerance, figure, f"{tolerance:g}", spread.to_dict()))
    return checks


def _compared(
    bundle: Bundle, model: nn.Module, rows: dict[str, KnownRows], batch: Batch, tolerance: float
) -> list[Check]:
    what, allowed = f"{len(batch):,} samples, torch against ONNX", f"{tolerance:g}"
    try:
        predicted = by_label(Predictor(bundle, source=OfflineSource(rows)).score(batch))
    except SparseFleetError as error:
        return [Check(what, False, f"the bundle cannot score samples as training reads them: {error}", allowed)]
    trained = torch_scores(model, rows, batch)
    if trained.keys() != predicted.keys():
        figure = f"the bundle has outputs for {', '.join(predicted) or 'one label'}; the model for {', '.join(trained)}"
        return [Check(what, False, figure, allowed)]
    checks = []
    for label, wanted in trained.items():
        spread = Spread.of(apart(wanted, predicted[label]))
        figure = f"{spread.max:.2g} at most, {spread.mean:.2g} on average"
        of = f", label {label}" if label else ""
        checks.append(Check(what + of, spread.max <= tolerance, figure, allowed, spread.to_dict()))
    return checks


def _rows_alone(
    bundle: Bundle, model: nn.Module, rows: dict[str, KnownRows], batch: Batch, tolerance: float
) -> list[Check]:
    """The first samples by themselves, and in another order: nobody knows beside which others a request brings them."""
    if len(batch) == 1:
        return []
    together, source = batch.samples(0, min(len(batch), TOGETHER)), OfflineSource(rows)

    def served(samples: Batch) -> dict[str, F32]:
        return dict(by_label(predictor.score(samples)))

    try:
        predictor = Predictor(bundle, source=source)
        sides = {"torch": lambda samples: torch_scores(model, rows, samples), "bundle": served}
        return [_row_by_row(side, score, together, tolerance) for side, score in sides.items()]
    except SparseFleetError:
        return []  # said by `_compared`


def _row_by_row(side: str, score: Callable[[Batch], Mapping[str, F32]], batch: Batch, tolerance: float) -> Check:
    what, allowed = f"samples scored alone and in another order, {side}", f"{tolerance:g}"
    count = min(ALONE, len(batch))
    wanted, turned = score(batch), score(batch.take(np.arange(len(batch))[::-1]))
    alone = [score(batch.samples(at, at + 1)) for at in range(count)]
    far, said, differences = 0.0, "", []
    for label, scores in wanted.items():
        by_itself = np.concatenate([each[label] for each in alone])
        for found, of, way in ((by_itself, scores[:count], "alone"), (turned[label][::-1], scores, "in another order")):
            off = apart(found, of)
            differences.append(off)
            worst = int(np.argmax(off))
            if off[worst] > max(far, tolerance):
                far = float(off[worst])
                said = (
                    f"the score of a row depends on the rows scored with it: sample {worst + 1} gets {of[worst]:.6g} "
                    f"with {len(batch) - 1} others, {found[worst]:.6g} {way}"
                )
    spread = Spread.of(np.concatenate(differences))
    return Check(what, not said, said or f"{spread.max:.2g} at most", allowed, spread.to_dict())


def _described(bundle: Bundle, graph: Any) -> Check:
    """What is left of the model; a loss or a metric would stand out here."""
    operators = Counter(node.op_type for node in graph.node)
    inputs = [entry.name for entry in graph.input]
    listed = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in operators.most_common())
    outputs = ", ".join(output for _, output in bundle.network.labels) or bundle.network.output
    figure = f"from {', '.join(inputs)} to {outputs}: {listed}"
    facts = {"inputs": inputs, "output": bundle.network.output, "operators": dict(operators)}
    return Check("what the graph holds", None, figure, facts=facts)
