"""A script for benchmarks/startup.py: a role of a small job that tells the time of day of its first step.

Arguments: folder of Criteo-like data.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import sparsefleet as sf
from sparsefleet import fleet
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.files import list_files

BEGUN = time.time()
"""The imports are done."""


class FirstStep(sf.FetchHandler):
    def __init__(self) -> None:
        super().__init__(["step"], period_batches=1)
        self.told = False

    def handler(self, fetched: list[Any]) -> None:
        if not self.told:
            print(f"step {time.time()}", flush=True)
            self.told = True


def main(data: str) -> None:
    fleet.init()
    optimizer = fleet.distributed_optimizer(sf.optim.Adam(1e-3), fleet.DistributedStrategy(mode="async"))
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    print(f"begun {BEGUN}", flush=True)
    reader = sf.open_reader(fleet.split_files(list_files(data)), CRITEO, batch_size=100)
    fleet.init_worker()
    print(f"connected {time.time()}", flush=True)
    sf.Trainer(optimizer, quiet=True).fit(sf.CTRDNN(), reader, fetch=[FirstStep()])
    fleet.stop_worker()


if __name__ == "__main__":
    main(sys.argv[1])
