"""Several steps' gradients as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsefleet.communicator.base import Parameters, StepGradients
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.kernels.rows import sum_blocks, sum_rows
from sparsefleet.optim import SGD
from sparsefleet.optim.base import UpdateRule


def summed(parts: Sequence[StepGradients]) -> StepGradients:
    """The joint batch's gradients: exactly those of all samples in one batch."""
    if len(parts) == 1:
        return parts[0]
    tables = parts[0].sparse
    return StepGradients(
        sparse={table: sum_rows([part.sparse[table] for part in parts]) for table in tables},
        dense=sum_blocks([part.dense for part in parts]),
    )


def merged(parts: Sequence[StepGradients], parameters: Parameters) -> StepGradients:
    """As users of Fleet know it: the sum for SGD, the average for rules that scale gradients themselves."""
    if len(parts) == 1:
        return parts[0]
    total = summed(parts)
    with flushed():
        return StepGradients(
            sparse={
                table: KeyedRows(rows.keys, rows.rows * _weight(parameters.tables[table].rule, len(parts)), rows.counts)
                for table, rows in total.sparse.items()
            },
            dense=total.dense * _weight(parameters.dense_rule, len(parts)),
        )


def _weight(rule: UpdateRule, parts: int) -> np.float32:
    return np.float32(1.0 if isinstance(rule, SGD) else 1.0 / parts)
