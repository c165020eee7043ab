"""Question 3, tested: does the bundle's schema read the raw samples as training did?"""

from __future__ import annotations

import numpy as np

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import SparseFleetError
from sparsefleet.core.schema import Schema
from sparsefleet.export.bundle import Bundle
from sparsefleet.serving.samples import SampleParser
from sparsefleet.verify.differences import apart
from sparsefleet.verify.report import Check
from sparsefleet.verify.samples import DataSamples
from sparsefleet.verify.settings import SAME


def check_parsing(samples: DataSamples, bundle: Bundle) -> list[Check]:
    what = "keys of the rows" if samples.is_raw else "keys of the rows (as they stand in the files, not hashed)"
    try:
        online = SampleParser(bundle.schema, max_rows=2**31, inputs=bundle.inputs).samples(samples.raw)
    except SparseFleetError as error:
        return [Check(what, False, f"the bundle cannot read the samples: {error}", SAME)]
    return [_keys(what, samples.batch, online), _numbers(samples.batch, online, bundle.schema)]


def _keys(what: str, offline: Batch, online: Batch) -> Check:
    differing = {}
    for slot in offline.slots:
        if slot not in online.slots:
            differing[slot] = len(offline)
            continue
        (keys, ends), (others, other_ends) = offline.slot(slot), online.slot(slot)
        if not np.array_equal(ends, other_ends):
            differing[slot] = int(np.count_nonzero(np.diff(ends) != np.diff(other_ends)))
        elif not np.array_equal(keys, others):
            differing[slot] = int(np.count_nonzero(keys != others))
    facts = {"keys": len(offline.keys), "differences": differing}
    if not differing:
        return Check(what, True, f"{len(offline.keys):,} equal", SAME, facts)
    shown = ", ".join(f"{count:,} of slot {slot}" for slot, count in list(differing.items())[:5])
    return Check(what, False, f"differ: {shown}" + (", …" if len(differing) > 5 else ""), SAME, facts)


def _numbers(offline: Batch, online: Batch, schema: Schema) -> Check:
    what = "numbers of the rows, normalised"
    if offline.dense.shape != online.dense.shape:
        return Check(what, False, f"{offline.dense.shape[1]} in training, {online.dense.shape[1]} here", SAME)
    far = apart(offline.dense, online.dense)
    differing = {
        name: float(column.max()) for name, column in zip(schema.dense_names, far.T, strict=True) if column.any()
    }
    facts = {"numbers": far.size, "differences": differing}
    if not differing:
        return Check(what, True, f"{far.size:,} equal", SAME, facts)
    shown = ", ".join(f"{name} by {value:.3g}" for name, value in list(differing.items())[:5])
    return Check(what, False, f"differ: {shown}", SAME, facts)
