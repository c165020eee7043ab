"""The series that a job on Ray exports, one line each: what Ray is told of them, and how they are drawn.

Our own page (`metrics_page/`) draws them in this order; a test compares the panels of deploy/grafana/training.json.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "sparsefleet_"
"""Ray puts its own `ray_` before it."""
EXPORTED_PREFIX = f"ray_{PREFIX}"
LABELS = ("job_name", "role")
STALE_SECONDS = 30.0
"""How long Ray's endpoints may still tell a figure that nobody reports any more."""


@dataclass(frozen=True, slots=True)
class Series:
    title: str
    unit: str
    """By Grafana's names: short (1.5k), none (as it is), bytes, s."""
    from_zero: bool
    """Whether its axis begins at 0."""
    text: str
    """What it is, in a sentence or two."""


SERIES = {
    "samples_per_second": Series(
        "Samples per second, by trainer",
        "short",
        True,
        "Samples per second of a trainer, over its last seconds of training.",
    ),
    "loss": Series(
        "Loss per sample, by trainer",
        "none",
        False,
        "Loss per sample of a trainer, since its report before (about a second).",
    ),
    "auc": Series(
        "AUC of the epoch so far, by trainer",
        "none",
        False,
        "AUC of a trainer's samples so far in this epoch. Test AUC is in the logs.",
    ),
    "epoch": Series(
        "Epoch, by trainer",
        "none",
        False,
        "The epoch that a trainer is in, from 1 as in the logs.",
    ),
    "step": Series(
        "Steps, by trainer",
        "short",
        True,
        "Steps of a trainer since the training began, also where it was resumed.",
    ),
    "seconds_left": Series(
        "Time left, by trainer",
        "s",
        True,
        "Seconds until the last epoch's end, at a trainer's own speed so far.",
    ),
    "staleness_steps": Series(
        "Staleness in steps, by trainer",
        "none",
        True,
        "Steps that a trainer has done and the servers have not applied.",
    ),
    "memory_bytes": Series(
        "Memory of tables, by server",
        "bytes",
        True,
        "Memory of a server's tables and dense parameters.",
    ),
    "table_rows": Series(
        "Rows of tables, by server",
        "short",
        True,
        "Rows in a server's tables.",
    ),
    "restarts": Series(
        "Restarts, by role",
        "none",
        True,
        "How often a role was started again since the job began (--restarts).",
    ),
}
"""By what follows the prefix."""
