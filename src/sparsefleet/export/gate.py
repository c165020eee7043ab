"""A quality gate: requirements such as `auc>=.75`, compared with the metrics in a bundle's lineage."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sparsefleet.core.errors import BundleError, ConfigError

FORM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.@-]*)\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    metric: str
    sign: str
    bound: float

    @staticmethod
    def parse(text: str) -> Requirement:
        found = FORM.fullmatch(text)
        if found is None:
            raise ConfigError(f"{text!r:.80} is no requirement; it looks like auc>=0.75 or log_loss<0.5")
        return Requirement(found[1], found[2], float(found[3]))

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.bound:g}"


def require(metrics: Mapping[str, float], wanted: Iterable[str], what: str) -> None:
    """BundleError where a metric is missing, or not as good as wanted. `what`: the bundle, or what becomes one."""
    for requirement in map(Requirement.parse, wanted):
        if requirement.metric not in metrics:
            has = ", ".join(sorted(metrics)) or "none: export it with --test-data"
            raise BundleError(
                f"{what}: {requirement} is required, and it tells no {requirement.metric}; its metrics: {has}"
            )
        value = metrics[requirement.metric]
        if not COMPARE[requirement.sign](value, requirement.bound):  # NaN is never good enough
            raise BundleError(f"{what}: {requirement} is required, and its {requirement.metric} is {value:.6g}")
