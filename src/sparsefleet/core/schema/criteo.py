"""The schema of Criteo's click logs."""

from __future__ import annotations

from sparsefleet.core.schema.features import DenseFeature, Slot
from sparsefleet.core.schema.schema import Schema

# The seeds' constants: (x - min) / diff, no clipping.
CRITEO_MIN = (0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
CRITEO_DIFF = (20, 603, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50)


def criteo_schema(sparse_feature_dim: int = 1000001) -> Schema:
    """Label, 13 integers I1..I13, 26 categories C1..C26, with the seeds' normalisation.

    The hash prefix is the column's number in the file ("14" to "39"), as in the seeds' `hash(str(idx) + value)`.
    """
    return Schema(
        dense=tuple(
            DenseFeature(f"I{i + 1}", float(low), float(diff))
            for i, (low, diff) in enumerate(zip(CRITEO_MIN, CRITEO_DIFF, strict=True))
        ),
        slots=tuple(Slot(f"C{i + 1}", str(14 + i)) for i in range(26)),
        sparse_feature_dim=sparse_feature_dim,
    )


CRITEO = criteo_schema()
