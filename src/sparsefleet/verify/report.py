"""Report: what `verify` found. Plain data; `cli/verify_view.py` shows it to people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked."""

    what: str
    ok: bool | None
    """None: told, not judged."""
    figure: str
    """What was found, in a few words."""
    allowed: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs, in full."""

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "ok": self.ok, "figure": self.figure, "allowed": self.allowed, **self.facts}


@dataclass(frozen=True, slots=True)
class Question:
    title: str
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        return all(check.ok is not False for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {"title": self.title, "ok": self.ok, "checks": [check.to_dict() for check in self.checks]}


@dataclass(frozen=True, slots=True)
class Report:
    places: Mapping[str, str]
    """What was compared: its name here, and where it is."""
    rows: int
    """Samples scored in every place."""
    tolerance: float
    graph: Question
    parameters: Question
    settings: Question
    scores: Question
    worst: Sequence[Mapping[str, Any]]
    """The samples whose scores are furthest apart, with all that went into them."""
    notes: Sequence[str] = ()

    @property
    def questions(self) -> tuple[Question, ...]:
        return (self.graph, self.parameters, self.settings, self.scores)

    @property
    def ok(self) -> bool:
        return all(question.ok for question in self.questions)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, which has no infinity and no NaN: they become text."""
        return dict(
            finite(
                {
                    "ok": self.ok,
                    "places": dict(self.places),
                    "rows": self.rows,
                    "tolerance": self.tolerance,
                    "notes": list(self.notes),
                    "graph": self.graph.to_dict(),
                    "parameters": self.parameters.to_dict(),
                    "settings": self.settings.to_dict(),
                    "scores": self.scores.to_dict(),
                    "worst": list(self.worst),
                }
            )
        )


def finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
