"""What `sparsefleet train` builds of its options. Imports torch, so `train.py` imports this only to train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from sparsefleet import optim
from sparsefleet.cli.console import console
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.models import CTRDNN, choosing
from sparsefleet.nn.embedding import embeddings
from sparsefleet.optim.base import UpdateRule
from sparsefleet.optim.schedule import Constant, ExponentialDecay, LinearWarmup, OnPlateau, Schedule
from sparsefleet.train import FitResult
from sparsefleet.train.reporting import JsonLinesReporter, Reporter, TensorBoardReporter, console_reporter
from sparsefleet.train.reporting.jsonl import plain_numbers


def reporters(log_seconds: float, lines: str | None, tensorboard: str | None) -> tuple[Reporter, ...]:
    made: list[Reporter] = [console_reporter(console, log_seconds)]
    if lines:
        made.append(JsonLinesReporter(lines))
    if tensorboard:
        made.append(TensorBoardReporter(tensorboard))
    return tuple(made)


def network(
    schema: Schema,
    preset: str,
    embedding_size: int | None,
    hidden: str | None,
    init_range: float | None,
    model: str = choosing.DEFAULT,
    settings: Sequence[str] = (),
) -> nn.Module:
    if preset == "paddle" and choosing.choose(model) is not CTRDNN:
        raise ConfigError(f"--preset {preset} is of {choosing.DEFAULT}; leave it out with --model {model}")
    sets = choosing.parse_sets(settings)
    if preset == "paddle" and init_range is None and "init_range" not in sets:
        init_range = 1.0
    try:
        widths = tuple(int(width) for width in hidden.split(",")) if hidden else None
    except ValueError:
        raise ConfigError(f"--hidden {hidden}: give widths separated by commas, such as 400,400,400") from None
    if init_range is not None and not 0 <= init_range < math.inf:
        raise ConfigError(f"--init-range {init_range}: give a number, 0 or above")
    options = {"--embedding-size": embedding_size, "--hidden": widths, "--init-range": init_range}
    return choosing.make(model, schema, sets, options)


def rows_of_an_update(batch: int, mode: str, threads: int, workers: int, max_merge: int) -> int:
    """Rows that the gradients of one update are summed over, in a job's mode; "": in one process."""
    merged = {"sync": threads * workers, "half_async": threads, "async": max_merge}
    return max(1, batch * merged.get(mode, 1))  # a size that is none is refused by whoever reads


def rule(
    name: str, rate: float | None, preset: str, rows: int, decay: float | None, decay_steps: int, warmup: int
) -> UpdateRule:
    """rows: that the gradients of one update are summed over."""
    schedule: Schedule = Constant() if decay is None else ExponentialDecay(decay_steps, decay)
    if warmup:
        schedule = LinearWarmup(warmup, schedule)
    default = 1e-4 if preset == "paddle" else optim.usual_rate(name, rows)
    return optim.by_name(name, default if rate is None else rate, schedule=schedule)


def summed_samples(name: str, batch: int, mode: str, threads: int, workers: int, max_merge: int) -> int:
    """How many samples' gradients a rule gets the sum of.

    Merged steps are summed in sync, and for SGD always; for other rules they are averaged (`communicator/merging.py`).
    """
    if mode == "sync":
        return batch * threads * workers
    if name != "sgd":
        return batch
    return batch * {"half_async": threads, "async": max_merge}.get(mode, 1)


def regularised(rule: UpdateRule, l2: float, exact: bool, samples: int) -> tuple[UpdateRule, UpdateRule | None]:
    """The rule of the dense parameters, and the tables' own where it is another; samples: `summed_samples`.

    --l2 means the mean of a batch's losses, as in torch; gradients here are of the sum, which is so many times as
    large: so is what L2 adds to them. And with --exact, which promises torch's numbers, epsilon.
    """
    if not l2 and not exact:
        return rule, None
    scaled: dict[str, Any] = {}
    if exact and hasattr(rule, "epsilon"):
        scaled["epsilon"] = rule.epsilon * samples
    own = {**scaled, "exact": exact, **({"weight_decay": l2 * samples} if l2 else {})}
    return replace(rule, **scaled), replace(rule, **own)


def use_for_tables(model: nn.Module, rule: UpdateRule | None) -> None:
    """Embeddings that name no rule of their own get this one."""
    for embedding in embeddings(model) if rule is not None else ():
        embedding.optimizer = embedding.optimizer or rule


def lowered_on_plateaus(rule: UpdateRule) -> UpdateRule:
    """The rule, with a learning rate that may be lowered while training goes on."""
    return replace(rule, schedule=OnPlateau(rule.schedule))


def _plain(best: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """As JSON has it: metrics that are not numbers are null."""
    if best is None:
        return None
    return {name: plain_numbers(value) if isinstance(value, Mapping) else value for name, value in best.items()}


def metrics(result: FitResult, test_skipped: Mapping[str, int]) -> dict[str, object]:
    trained: dict[str, object] = {f"train_{name}": value for name, value in result.train.items() if name != "rows"}
    if result.profile is not None:
        trained["profile"] = result.profile.to_dict()
    if result.valid is not None:
        trained |= {f"valid_{name}": value for name, value in result.valid.items()}
        trained["best"] = _plain(result.best)
        trained["stopped"] = result.stopped
    if result.test is None:
        return trained
    tested = {f"test_{name}": value for name, value in result.test.items()}
    return {**trained, **tested, "test_skipped": dict(test_skipped)}
