"""ValuesOnly: a rule as a store keeps it whose trainers apply it themselves, to copies of their own (geo).

Rows and blocks of such a store are values that are added to. They have no optimizer state: that is the trainers'.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sparsefleet.core.errors import StoreError
from sparsefleet.optim.base import UpdateRule
from sparsefleet.optim.sgd import SGD

ELSEWHERE = {"state": "elsewhere"}
"""What tells this rule from the one it stands for, in manifests and on the wire."""


@dataclass(frozen=True)
class ValuesOnly(UpdateRule):
    rule: UpdateRule = field(default_factory=SGD)
    """What trainers apply."""

    name: ClassVar[str] = "values_only"
    kind: ClassVar[int] = SGD.kind

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.rule.name)  # messages speak of what the user has asked for

    def state_width(self, dim: int) -> int:
        return 0

    def hyperparameters(self) -> tuple[float, ...]:
        return ()

    def for_dense(self) -> UpdateRule:
        return ValuesOnly(rule=self.rule.for_dense())

    def rate(self, step: int) -> float:
        raise StoreError(
            "gradients cannot be applied here: these values are of a job in mode geo, whose trainers apply "
            f"{self.name} and keep its state themselves"
        )

    def to_dict(self) -> dict[str, Any]:
        return {**self.rule.to_dict(), **ELSEWHERE}


def values_only(rule: UpdateRule) -> UpdateRule:
    """The rule as a store keeps it whose trainers apply it; itself where it has no state that could be missing."""
    return ValuesOnly(rule=rule) if rule.state_width(1) else rule
