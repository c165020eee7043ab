"""Findings: what the doctor saw. Plain data; `cli/doctor.py` shows it to people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sparsefleet.core.errors import SparseFleetError


class Verdict(StrEnum):
    TOLD = "told"
    """Not judged."""
    OK = "ok"
    LOW = "low"
    """It works, but slower, or for less, than it could."""
    BROKEN = "broken"
    """Something will not work; the command's exit status is 1."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    text: str
    """What was found, in a few words."""
    verdict: Verdict = Verdict.TOLD
    advice: str = ""
    """What to do about it, if something is to be done."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "text": self.text,
            "verdict": self.verdict.value,
            **({"advice": self.advice} if self.advice else {}),
            **self.facts,
        }


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    findings: Sequence[Finding]

    def to_dict(self) -> dict[str, Any]:
        return {"title": self.title, "findings": [finding.to_dict() for finding in self.findings]}


@dataclass(frozen=True, slots=True)
class Report:
    sections: Sequence[Section]

    @property
    def findings(self) -> list[Finding]:
        return [finding for section in self.sections for finding in section.findings]

    @property
    def ok(self) -> bool:
        """Nothing is broken; something may be low."""
        return all(finding.verdict is not Verdict.BROKEN for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "sections": [section.to_dict() for section in self.sections]}


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    look: Callable[[], Iterable[Finding]]

    def findings(self) -> list[Finding]:
        """What the check finds. If it fails, the finding says why."""
        found: list[Finding] = []
        try:
            found.extend(self.look())
        except SparseFleetError as error:
            found.append(Finding(self.name, str(error), Verdict.BROKEN))
        except Exception as error:
            found.append(Finding(self.name, f"this check failed: {type(error).__name__}: {error}", Verdict.BROKEN))
        return found
