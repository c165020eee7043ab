"""examine: runs all checks, one after the other. A check that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparsefleet.doctor import limits, processor, settings, versions
from sparsefleet.doctor.findings import Check, Finding, Report, Section, Verdict
from sparsefleet.doctor.load import Load

TITLES = {
    "versions": versions.CHECKS,
    "processor": processor.CHECKS,
    "limits": limits.CHECKS,
    "settings": settings.CHECKS,
}
SPEED = "speed of one core"


def examine(quick: bool = False, progress: Callable[[str], None] = lambda name: None) -> Report:
    """`quick` leaves out the measures, which take some seconds. `progress` is called with each check's name."""
    sections = [_section(title, checks, progress) for title, checks in TITLES.items()]
    if not quick:
        sections.append(_measured(sections, progress))
    return Report(sections)


def _measured(before: Iterable[Section], progress: Callable[[str], None]) -> Section:
    if any(one.verdict is Verdict.BROKEN and one.name == "level" for section in before for one in section.findings):
        return Section(SPEED, [Finding("all", "not measured: the kernels cannot be used")])
    from sparsefleet.doctor import measures  # it needs NumPy, which the rest can do without

    return _section(SPEED, measures.checks(Load()), progress)


def _section(title: str, checks: Iterable[Check], progress: Callable[[str], None]) -> Section:
    findings = list[Finding]()
    for check in checks:
        progress(check.name)
        findings += check.findings()
    return Section(title, findings)
