"""ReadingOptions: how input becomes batches, as plain data that one process can hand to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsefleet.core.schema import Schema
from sparsefleet.data.base import Reader
from sparsefleet.data.files import check_file, list_files
from sparsefleet.data.open import open_reader


@dataclass(frozen=True)
class ReadingOptions:
    """The options of `open_reader` (data/open.py), which explains and checks them."""

    reader: str = "queue"
    format: str = "auto"
    pipe_command: str | None = None
    batch_size: int = 1000
    on_bad_row: str = "error"
    threads: int = 1
    labelled: bool = True
    same_inputs: bool = False
    leased: bool = False

    def check(self, path: str, schema: Schema) -> None:
        """Refuse what a process would only refuse once it is started: settings, and files without samples."""
        self.open(path, schema, load=False)
        for file in list_files(path):
            check_file(file)

    def open(
        self, path: str | Sequence[str], schema: Schema, shuffle_seed: int | None = None, *, load: bool = True
    ) -> Reader:
        return open_reader(
            path,
            schema,
            kind=self.reader,
            format_name=self.format,
            pipe_command=self.pipe_command,
            batch_size=self.batch_size,
            on_bad_row=self.on_bad_row,
            threads=self.threads,
            labelled=self.labelled,
            shuffle_seed=shuffle_seed,
            load=load,
            same_inputs=self.same_inputs,
            leased=self.leased,
        )
