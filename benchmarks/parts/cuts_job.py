"""The job of benchmarks/cuts.py: a large table that servers start from, and samples that touch a little of it.

Arguments: folder of data, checkpoint to start from.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch

import sparsefleet as sf
from sparsefleet import fleet
from sparsefleet.data.files import list_files
from sparsefleet.table import TableSpec

RULE = sf.optim.Adam(1e-3)
SPEC = TableSpec("rows", 10, RULE)


class Rows(sf.Rebuildable):
    name: ClassVar[str] = "Rows"

    def __init__(self) -> None:
        super().__init__()
        self.sparse = sf.nn.SparseEmbedding(SPEC.name, SPEC.dim, ["key"], initializer=SPEC.initializer, optimizer=RULE)
        self.all = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: sf.Batch) -> torch.Tensor:
        return self.sparse(batch).sum(1) + self.all

    def describe(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build(cls, description: Mapping[str, Any]) -> Self:
        return cls()


class Told(sf.FetchHandler):
    def __init__(self) -> None:
        super().__init__(["step"], period_batches=1)

    def handler(self, fetched: list[Any]) -> None:
        print(f"step {int(fetched[0])}", flush=True)


def main(data: str, start: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    fleet.init()
    strategy = fleet.DistributedStrategy(mode="async", timeout=60.0)
    optimizer = fleet.distributed_optimizer(sf.optim.SGD(1.0), strategy)
    if fleet.is_server():
        fleet.init_server(start)
        fleet.run_server()
    schema = sf.Schema(dense=(), slots=(sf.Slot("key"),))
    reader = sf.open_reader(fleet.split_files(list_files(data)), schema, format_name="multislot", batch_size=10)
    fleet.init_worker()
    sf.Trainer(optimizer, quiet=True).fit(Rows(), reader, epochs=2, fetch=[Told()])
    fleet.stop_worker()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
