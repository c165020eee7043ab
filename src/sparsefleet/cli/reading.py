"""What the commands that read data share: which schema, and what they say of rows that were skipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sparsefleet.cli.console import say
from sparsefleet.core.schema import CRITEO, FILE_NAME, Schema


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
