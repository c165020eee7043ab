"""One epoch of CTR-DNN from raw text, two threads, Adam: prints rows per second and test AUC."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from parts.warm import warm_memory
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.open import open_reader
from sparsefleet.models import CTRDNN
from sparsefleet.optim import Adam
from sparsefleet.train import Trainer


def main(data: str, batch: int, precision: str, evaluate: bool) -> None:
    torch.manual_seed(0)
    trainer = Trainer(Adam(1e-3), reporters=(), threads=2, precision=precision)
    test = open_reader(f"{data}/test", CRITEO, batch_size=1000) if evaluate else None
    warm_memory()
    result = trainer.fit(CTRDNN(), open_reader(f"{data}/train", CRITEO, batch_size=batch), test=test)
    print(result.samples_per_s, result.test["auc"] if result.test else 0.0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "1")
