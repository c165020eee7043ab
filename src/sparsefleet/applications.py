"""Ready applications: a model together with the reader of its data, as users of Fleet know them."""

from __future__ import annotations

import os
from typing import ClassVar

from sparsefleet import fleet
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import CRITEO
from sparsefleet.data.base import Reader
from sparsefleet.data.beside import schema_beside
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
        """The rows of a folder, a file or a pattern; in a job of several trainers, this trainer's share of them.

        They are read by the schema.json that `sparsefleet data prepare` wrote beside them, where there is one, else by
        Criteo's usual constants.
        """
        files = list_files(path)
        schema = schema_beside(path)
        if (len(schema.dense), len(schema.slots)) != (len(CRITEO.dense), len(CRITEO.slots)):
            raise ConfigError(
                f"{path}: the schema beside it has {len(schema.dense)} dense features and {len(schema.slots)} slots; "
                f"Criteo's data has {len(CRITEO.dense)} and {len(CRITEO.slots)}: use CTRDNN with open_reader"
            )
        share = fleet.split_files(files) if fleet.is_initialized() else files
        return open_reader(share, schema, kind=reader, batch_size=batch_size, threads=threads)
