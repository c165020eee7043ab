"""Measures of time, and why they may be low: whether this process had a core to itself while they were taken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sparsefleet.doctor.findings import Finding, Verdict

WANTED_SHARE = 0.9
MUCH_STEAL = 0.02
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


class Load:
    """The machine's load, from the moment this is made."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._ticks = self._read_ticks()
        self._passed = self._worked = 0.0

    def seconds(self, job: Callable[[], object]) -> float:
        """Run a job that uses this thread only; how long it took."""
        begin, worked = time.perf_counter(), time.thread_time()
        job()
        passed = time.perf_counter() - begin
        self._passed += passed
        self._worked += time.thread_time() - worked
        return passed

    @property
    def share(self) -> float:
        """The part of the jobs' time in which this thread ran; below 1, others used the core."""
        return self._worked / self._passed if self._passed else 1.0

    @property
    def steal(self) -> float | None:
        """Part of all cores' time that the hypervisor gave to other machines; None: not known."""
        ticks = self._read_ticks()
        if ticks is None or self._ticks is None:
            return None
        passed = [now - before for now, before in zip(ticks, self._ticks, strict=True)]
        return passed[7] / max(sum(passed), 1)

    def findings(self) -> Iterator[Finding]:
        share, steal = self.share, self.steal
        text = f"gave this process {share:.0%} of a core meanwhile"
        if steal is not None:
            text += f", other virtual machines {steal:.0%}"
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        text += f"; load {load:.1f} on {cores} cores"
        low = share < WANTED_SHARE or (steal or 0) > MUCH_STEAL
        yield Finding(
            "the machine",
            text,
            Verdict.LOW if low else Verdict.OK,
            self.advice() if low else "",
            {"share": round(share, 3), "steal": None if steal is None else round(steal, 3), "load": load},
        )

    def advice(self) -> str:
        """What to do about a measure that is low."""
        reasons = []
        if self.share < WANTED_SHARE:
            reasons.append("other programs use the cores: see `top`")
        if (self.steal or 0) > MUCH_STEAL:
            reasons.append("other virtual machines use the host: try later, or another host")
        governor = _first_line(GOVERNOR)
        if governor not in (None, "performance"):
            reasons.append(f"the cores' governor is {governor!r}: `cpupower frequency-set -g performance`")
        return "; ".join(reasons) or "nothing here says why: measure again, and report it with this output"

    def _read_ticks(self) -> list[int] | None:
        line = _first_line(self._proc / "stat")
        # user nice system idle iowait irq softirq steal; what follows (guests) is counted in user already
        return None if line is None else [int(word) for word in line.split()[1:9]]


def _first_line(file: Path) -> str | None:
    try:
        return file.read_text().split("\n", 1)[0].strip()
    except OSError:
        return None
