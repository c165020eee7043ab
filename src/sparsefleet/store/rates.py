"""Lowering learning rates while training goes on: what tables and blocks do when a metric has stopped getting better.

A rule whose schedule is `OnPlateau` has a list of drops, each with the step of its table from which on it counts. So a
rate stays a function of the step, in the tables, in checkpoints (manifests hold rules) and after a load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sparsefleet.core.errors import CheckpointError, ConfigError
from sparsefleet.optim.base import UpdateRule
from sparsefleet.optim.schedule import OnPlateau, Schedule, from_dict
from sparsefleet.table.dense import DenseTable
from sparsefleet.table.sparse import SparseTable


def lower_rates(tables: Iterable[SparseTable], blocks: Iterable[DenseTable], factor: float) -> None:
    """From the next step on, rates are `factor` times what they were at the beginning. Saying it twice is the same."""
    for table in tables:
        table.spec = replace(table.spec, rule=lowered(table.spec.rule, table.step, factor))
    for block in blocks:
        block.rule = lowered(block.rule, block.step, factor)


def lowered(rule: UpdateRule, step: int, factor: float) -> UpdateRule:
    """The rule with one more drop after this step; itself where its rate is not to be lowered."""
    schedule = rule.schedule
    if not isinstance(schedule, OnPlateau) or schedule.lowered_to == factor:
        return rule
    return replace(rule, schedule=schedule.lowered(step, factor))


def never_lowered(rule: UpdateRule) -> UpdateRule:
    """The rule as it is at the beginning of a run."""
    schedule = rule.schedule
    return replace(rule, schedule=replace(schedule, drops=())) if isinstance(schedule, OnPlateau) else rule


def with_saved_drops(rule: UpdateRule, saved: Mapping[str, Any]) -> UpdateRule:
    """The rule, with the drops of the one that a checkpoint's manifest describes."""
    if not isinstance(rule.schedule, OnPlateau):
        return rule
    try:
        then: Schedule | None = from_dict(saved["schedule"]) if "schedule" in saved else None
    except ConfigError as error:
        raise CheckpointError(f"the checkpoint's learning rates are damaged: {error}") from error
    drops = then.drops if isinstance(then, OnPlateau) else ()
    return replace(rule, schedule=replace(rule.schedule, drops=drops))
