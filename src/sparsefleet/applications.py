"""Ready applications: a model together with the reader of its data, as users of Fleet know them."""

from __future__ import annotations

import os
from typing import ClassVar

from sparsefleet import fleet
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.base import Reader
from sparsefleet.data.files import list_files
from sparsefleet.data.open import open_reader
from sparsefleet.models import CTRDNN, CTRDNNConfig


class MultiSlotCTR(CTRDNN):
    """CTR-DNN on raw Criteo files.

    model = MultiSlotCTR()
    loader = model.load_criteo_from_file("./train_data")
    Trainer(optimizer).fit(model, loader, 10)
    """

    name: ClassVar[str] = CTRDNN.name  # the same network: `infer` and `export` rebuild it as CTRDNN

    def __init__(self, config: CTRDNNConfig | None = None) -> None:
        super().__init__(config=config)

    def load_criteo_from_file(
        self, path: str | os.PathLike[str], *, batch_size: int = 1000, reader: str = "queue", threads: int = 1
    ) -> Reader:
        """The rows of a folder, a file or a pattern; in a job of several trainers, this trainer's share of them."""
        files = list_files(path)
        share = fleet.split_files(files) if fleet.is_initialized() else files
        return open_reader(share, CRITEO, kind=reader, batch_size=batch_size, threads=threads)
