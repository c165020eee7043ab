"""What the commands that read data share: which schema, and what they say of rows that were skipped."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape

from sparsefleet.checkpoint import Location, chosen, same_place
from sparsefleet.cli.console import say
from sparsefleet.core.schema import Schema
from sparsefleet.data.beside import schema_beside

SCHEMA = "Schema file, JSON or TOML; default: schema.json or schema.toml beside the data, else Criteo's."

SAME_INPUTS = "Rows are read otherwise than in training: you vouch that this gives the same keys and numbers."

OWN_MODEL = (
    "Where the class is of a model of your own, my_model.py:MyNet or package.module:MyNet: checkpoints hold no code."
)


WHICH = "Which checkpoint of a run's folder: best, latest or one's name, such as step-00000120."


def checkpoint_of(path: str, which: str) -> Location:
    """The checkpoint that a command's argument means; says which one of a run's folder was taken, and why."""
    location, why = chosen(path, which)
    if not same_place(path, location):
        say(f"[bold]checkpoint[/] {escape(location.name)}: {why}")
    return location


def schema_for(data: str, given: str | None, sparse_feature_dim: int | None) -> Schema:
    """The schema file given, or the one beside the data (in its folder or the one above), or Criteo's."""
    schema = Schema.load(given) if given else schema_beside(data)
    return schema if sparse_feature_dim is None else schema.folded(sparse_feature_dim)


def tell_skipped(skipped: Mapping[str, int], of: str) -> None:
    """The bad rows passed over, for the end of a run; nothing where there were none."""
    if skipped:
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in sorted(skipped.items(), key=lambda kv: -kv[1]))
        text = f"skipped {sum(skipped.values()):,} bad rows of {of}: {reasons}"
        say(text, style="yellow", markup=False)
