"""What leases cost: processor seconds of a whole job, with and without, in pairs taken in turn."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

Run = Callable[..., float]
"""Trains on the data with these options."""


def processor_seconds(run: Callable[[], object]) -> float:
    """Of all processes that `run` starts, and that have ended when it returns."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    run()
    return spent() - before


def compare_leases(run: Run, data: Path, folder: Path, rows: int, pairs: int) -> None:
    """Print processor seconds per million samples by `split_files` and by leases, and their ratio."""
    job = ("--servers", 2, "--workers", 2, "--threads", 1, "--batch-size", 1000)
    table = Table("mode", "shares", "leases", "ratio", "of pairs", "wanted", title="Processor s per million samples")
    for mode in ("async", "sync"):
        shares, leases = [], []
        for pair in range(pairs):
            both = [(shares, ("--no-leases",)), (leases, ("--leases",))]
            for into, more in both if pair % 2 else reversed(both):  # whatever drifts, drifts in both
                seconds = processor_seconds(lambda more=more, mode=mode: run(data, folder, *job, "--mode", mode, *more))
                into.append(seconds / rows * 1e6)
            Console(stderr=True).print(f"{mode}: {shares[-1]:.2f} by shares, {leases[-1]:.2f} by leases")
        ratios = sorted(lease / share for lease, share in zip(leases, shares, strict=True))
        # The second and the last but one of nine hold the median of all such runs with 96 %.
        low, high = ratios[1 if pairs > 4 else 0], ratios[-2 if pairs > 4 else -1]
        table.add_row(
            mode,
            f"{statistics.median(shares):.2f}",
            f"{statistics.median(leases):.2f}",
            f"{statistics.median(ratios):.4f}",
            f"{low:.4f} to {high:.4f}",
            "<= 1.01",
        )
    Console(width=120).print(table)
