"""A script for jobs that heal: CTR-DNN with Adam on Criteo-like files.

Arguments: mode, folder of data, checkpoint to write, seconds of a step, time-out.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch
from counting_job import Pace

import sparsefleet as sf
from sparsefleet import fleet
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.files import list_files
from sparsefleet.models import CTRDNNConfig


def main(mode: str, data: str, saved: str, pace: float, timeout: float) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(message)s")
    fleet.init()
    strategy = fleet.DistributedStrategy(mode=mode, timeout=timeout, connect_timeout=60.0)
    if mode == "geo":
        strategy.k_steps = 3
    optimizer = fleet.distributed_optimizer(sf.optim.Adam(1e-2), strategy)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    reader = sf.open_reader(fleet.split_files(list_files(data)), CRITEO, batch_size=20)
    fleet.init_worker()
    torch.manual_seed(3)
    model = sf.CTRDNN(config=CTRDNNConfig(embedding_size=4, hidden=(16, 8)))
    trainer = sf.Trainer(optimizer, quiet=True)
    result = trainer.fit(model, reader, 2, fetch=[Pace(pace, Path(saved).parent / "hurry")])
    print(f"rows {result.rows}", flush=True)
    if fleet.is_first_worker():
        fleet.save_persistables(saved)
    fleet.barrier_worker()
    fleet.stop_worker()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
