"""What the commands that read data share: which schema, which format, which reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefleet.cli.console import say
from sparsefleet.core.schema import CRITEO, FILE_NAME, Schema
from sparsefleet.data.base import Reader
from sparsefleet.data.files import check_file, list_files
from sparsefleet.data.open import open_reader


@dataclass(frozen=True)
class ReadingOptions:
    """How input becomes batches, as the command line says it."""

    reader: str = "queue"
    format: str = "auto"
    pipe_command: str | None = None
    batch_size: int = 1000
    on_bad_row: str = "error"
    threads: int = 1
    labelled: bool = True

    def check(self, path: str, schema: Schema) -> None:
        """Refuse what a process would only refuse once it is started: settings, and files without rows."""
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
        )


def schema_for(data: str, given: str | None, sparse_feature_dim: int | None) -> Schema:
    """The schema file given, or the one beside the data (in its folder or the one above), or Criteo's."""
    schema = Schema.load(given) if given else _beside(Path(data))
    return schema if sparse_feature_dim is None else schema.folded(sparse_feature_dim)


def _beside(data: Path) -> Schema:
    folder = data if data.is_dir() else data.parent
    for place in (folder, folder.resolve().parent):
        if (place / FILE_NAME).is_file():
            return Schema.load(place / FILE_NAME)
    return CRITEO


def tell_skipped(skipped: Mapping[str, int], of: str) -> None:
    """The bad rows passed over, for the end of a run; nothing where there were none."""
    if skipped:
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in sorted(skipped.items(), key=lambda kv: -kv[1]))
        text = f"skipped {sum(skipped.values()):,} bad rows of {of}: {reasons}"
        say(text, style="yellow", markup=False)
