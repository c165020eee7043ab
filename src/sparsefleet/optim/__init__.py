"""Update rules, one per file, and schedules of the learning rate. `RULES` is what names stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.optim import schedule as schedule
from sparsefleet.optim.adagrad import Adagrad as Adagrad
from sparsefleet.optim.adam import Adam as Adam
from sparsefleet.optim.base import UpdateRule as UpdateRule
from sparsefleet.optim.ftrl import FTRL as FTRL
from sparsefleet.optim.rowwise_adagrad import RowwiseAdagrad as RowwiseAdagrad
from sparsefleet.optim.sgd import MOST
from sparsefleet.optim.sgd import SGD as SGD
from sparsefleet.optim.values_only import ELSEWHERE, ValuesOnly
from sparsefleet.optim.values_only import values_only as values_only

SGD_RATE, SGD_MOST = 0.3, MOST
"""SGD's usual learning rate for the mean of a batch's losses (gradients here are of the sum), and its upper bound."""

RULES: Mapping[str, type[UpdateRule]] = {rule.name: rule for rule in (SGD, Adagrad, RowwiseAdagrad, Adam, FTRL)}
"""A rule is a line above, a word here, and a kernel of its `kind`."""


def usual_rate(name: str, rows: int) -> float:
    """The learning rate of a rule where nobody names one; rows: that the gradients of an update are summed over.

    Measured: docs/defaults.md. SGD's steps grow with the gradients and so with the batch; the others' do not.
    """
    if rows < 1:
        raise ConfigError(f"an update is of 1 row or more; got rows={rows}")
    return min(SGD_MOST, SGD_RATE / rows) if name == SGD.name else 1e-3


def by_name(name: str, learning_rate: float, **settings: Any) -> UpdateRule:
    """The rule that command lines and manifests call `name`."""
    if name not in RULES:
        raise ConfigError(f"optimizer {name!r} does not exist; choose {', '.join(RULES)}")
    try:
        return RULES[name](learning_rate, **settings)
    except TypeError as error:
        raise ConfigError(f"optimizer {name!r}: a setting is missing, surplus or mistyped: {error}") from error


def from_dict(data: Mapping[str, Any]) -> UpdateRule:
    """The rule that `UpdateRule.to_dict` described."""
    if not isinstance(data, Mapping) or not {"name", "learning_rate"} <= data.keys():
        raise ConfigError(f"an optimizer is described by its name, learning_rate and settings; got {data!r}")
    if data.keys() >= ELSEWHERE.keys():
        if data["state"] != ELSEWHERE["state"]:
            raise ConfigError(f"an optimizer's state is where it is used, or {ELSEWHERE['state']}; got {data!r}")
        return ValuesOnly(rule=from_dict({k: v for k, v in data.items() if k not in ELSEWHERE}))
    settings = {k: v for k, v in data.items() if k not in ("name", "learning_rate", "schedule")}
    if "schedule" in data:
        settings["schedule"] = schedule.from_dict(data["schedule"])
    return by_name(data["name"], data["learning_rate"], **settings)
