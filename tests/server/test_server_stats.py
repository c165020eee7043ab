"""What a server tells of itself and of its trainers."""

from __future__ import annotations

import numpy as np
from waiting import wait_until

from sparsefleet import optim
from sparsefleet.core.keyed_rows import KeyedRows
from sparsefleet.server import meters
from sparsefleet.table import TableSpec


def test_tables_calls_and_trainers_are_shown(fleet):
    store = fleet.start(2).stores_of_all(2, heartbeat=0.1)[0]
    store.create_table(TableSpec("ads", 4, optim.Adam()))
    store.create_dense("net", np.zeros(10, np.float32), optim.SGD(), [("w", (10,))])
    keys = np.arange(1000, dtype=np.uint64)
    for _ in range(10):
        store.pull("ads", keys).wait()
        store.push_step(
            {"ads": KeyedRows(keys, np.ones((1000, 4), np.float32))}, {"net": np.ones(10, np.float32)}
        ).wait()
    store.crew.report({"step": 10, "rows_per_s": 123.0, "staleness": 2})
    wait_until(lambda: all("step" in one["workers"]["0"] for one in store.stats()["servers"]), 20, "a sign of life")
    stats = store.stats()
    assert stats["tables"]["ads"]["rows"] == 1000
    assert stats["tables"]["ads"]["step"] == 10
    assert stats["tables"]["ads"]["memory_bytes"] > 1000 * (8 + 12 * 4)
    assert stats["dense"]["net"] == {"values": 10, "memory_bytes": 40, "step": 10}
    server = stats["servers"][0]
    assert server["calls"]["pull ads"]["total"] == 10
    assert server["calls"]["push net"]["total"] == 10
    assert 0 < server["calls"]["push ads"]["ms"]["p50"] <= server["calls"]["push ads"]["ms"]["p99"]
    assert server["queues"] == {"under_way": 0, "held_by_cut": 0, "waiting_in_round": 0, "mail_bytes": 0}
    assert stats["workers"]["0"]["step"] == 10
    assert stats["workers"]["0"]["staleness"] == 2
    assert stats["workers"]["0"]["last_seen_s"] < 1
    assert stats["workers"]["1"]["state"] == "present"


def test_torch_and_models_are_not_loaded_by_a_server():
    import os
    import subprocess
    import sys

    from server_processes import SOURCES

    code = (
        "import sys, sparsefleet.server.__main__; print([m for m in ('torch', 'sparsefleet.nn') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCES)}, capture_output=True, check=True
    )
    assert shown.stdout.strip() == b"[]"


def test_rates_of_a_server_that_has_just_begun_are_not_those_of_ten_seconds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(meters.time, "monotonic", lambda: now[0])
    meter = meters.Meter()
    for _ in range(40):
        meter.note(1000, 0.001)
    now[0] += 2.0
    assert (meter.to_dict()["per_s"], meter.to_dict()["rows_per_s"]) == (20.0, 20_000.0)
    now[0] += 6.0
    assert meter.to_dict()["per_s"] == 5.0
    now[0] += 4.0
    assert meter.to_dict()["per_s"] == 0.0
