"""Whether a graph scores each row by itself: training has batches, a request one row, or any others beside it.

That the graph computes what torch does, batch for batch, `export/network.py` has seen to.
"""

from __future__ import annotations

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import BundleError
from sparsefleet.export.network import Network
from sparsefleet.export.onnx_session import open_session, run_outputs

ROWS, ALONE = 8, 3
SCALES = (0.05, 1.0)
"""Of the random inputs: a score near 0 or 1 shows little of what went into it."""
TOLERANCE = 1e-5
"""Products of matrices round otherwise for other numbers of rows."""
ADVICE = (
    "A request holds one row, or any others: forward must compute each row from that row alone, without a mean, a norm "
    "or an order over the batch (BatchNorm is fine: it scores by the means of training)"
)


def require_rows_alone(network: Network) -> None:
    """BundleError where some rows get another score alone, or in another place, than together."""
    session, random = open_session(network.graph), np.random.default_rng(1)
    labels = network.info.labels or (("", network.info.output),)
    names = [output for _, output in labels]
    for scale in SCALES:
        inputs: dict[str, F32] = {
            entry.input: (scale * random.standard_normal((ROWS, entry.width))).astype(np.float32)
            for entry in network.info.embeddings
        }
        if network.info.dense is not None:
            inputs[network.info.dense.input] = random.random((ROWS, network.info.dense.features), np.float32)
        together = run_outputs(session, names, inputs)
        turned = run_outputs(session, names, {name: values[::-1].copy() for name, values in inputs.items()})
        ways = [(slice(row, row + 1), "alone", _row(session, names, inputs, row)) for row in range(ALONE)]
        ways.append((slice(None), "with the rows in another order", [scores[::-1] for scores in turned]))
        for rows, way, found in ways:
            for (label, _), scores, others in zip(labels, found, together, strict=True):
                off = np.abs(scores.astype(np.float64) - others[rows])
                worst = int(np.argmax(off))
                if off[worst] > TOLERANCE:
                    of = f" for {label}" if label else ""
                    raise BundleError(
                        f"the score of a row depends on the rows scored with it: of {ROWS} random rows, number "
                        f"{(rows.start or 0) + worst + 1} gets {others[rows][worst]:.6g}{of} with the others, and "
                        f"{scores[worst]:.6g} {way}. {ADVICE}"
                    )


def _row(session: object, names: list[str], inputs: dict[str, F32], row: int) -> list[F32]:
    return run_outputs(session, names, {name: values[row : row + 1] for name, values in inputs.items()})
