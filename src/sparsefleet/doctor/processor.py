"""The processor, and which of the compiled kernels it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.doctor.findings import Check, Finding, Verdict


def processor() -> Iterator[Finding]:
    # Not through `levels`: its import fails if SPARSEFLEET_ISA names a level that this machine does not run.
    import sparsefleet.kernels._native as native

    name, features, _ = native.processor()
    yield Finding("name", name or "not known: it has no cpuid")
    usable, all_cores = usable_cores(), os.cpu_count() or 1
    text = f"{usable}" if usable == all_cores else f"{usable} of {all_cores}: this process may not use the others"
    yield Finding("cores", text, facts={"usable": usable, "all": all_cores})
    rich = [feature for feature in sorted(features) if feature.startswith(("avx", "fma", "f16c", "bmi", "amx"))]
    clock = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("cpu MHz")]
    governor = _lines("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if clock or governor:
        text = ", ".join([f"{float(mhz):,.0f} MHz" for mhz in clock[:1]] + [f"governor {name}" for name in governor])
        yield Finding("clock", text)
    yield Finding("features", " ".join(rich) or "none that matter", facts={"all": sorted(features)})


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def level() -> Iterator[Finding]:
    import sparsefleet.kernels._native as native

    built = native.built_levels()
    try:
        from sparsefleet.kernels import levels
    except SparseFleetError as error:
        advice = "unset SPARSEFLEET_ISA" if "SPARSEFLEET_ISA" in os.environ else "use another machine"
        yield Finding("level", str(error), Verdict.BROKEN, advice, {"built": built})
        return
    chosen = levels.chosen
    facts = {"level": chosen.level, "reason": chosen.reason}
    richest = chosen.available[-1]
    if chosen.level == richest:
        yield Finding("level", f"{chosen.level} ({chosen.reason})", Verdict.OK, facts=facts)
    else:
        advice = f"without it, the level would be {richest}, which is faster"
        yield Finding("level", f"{chosen.level} ({chosen.reason})", Verdict.LOW, advice, facts)
    others = [name for name in built if name not in chosen.available]
    text = ", ".join(chosen.available) + (f"; built, but not for this machine: {', '.join(others)}" if others else "")
    yield Finding("levels", text, facts={"built": built, "available": list(chosen.available)})


def torch_bf16() -> Iterator[Finding]:
    try:
        from sparsefleet.nn.precision import torch_bf16_error
    except ImportError:
        yield Finding("torch's bf16", "not tried: torch is not installed")
        return
    except SparseFleetError:
        yield Finding("torch's bf16", "not tried: the kernels cannot be used")
        return
    if (error := torch_bf16_error()) is None:
        yield Finding("torch's bf16", "works", Verdict.OK)
    else:
        advice = "torch does not get on with this processor: train without bf16, or with DenseTower only"
        yield Finding("torch's bf16", f"fails: {error}", Verdict.LOW, advice, {"error": error})


def denormals() -> Iterator[Finding]:
    """Some processors take a hundred times as long for numbers below 1.2e-38, so kernels take them as zero."""
    import numpy as np

    from sparsefleet.kernels.float_mode import denormals_are_zero, flushed

    small, outside = np.array([1e-38], np.float32), denormals_are_zero()
    with flushed():
        zero = bool((small * np.float32(0.01))[0] == 0)
    text = f"{'zero' if zero else 'kept'} where SparseFleet computes; {'zero' if outside else 'kept'} in this thread"
    yield Finding("denormals", text, facts={"flushed": zero, "flushed_in_this_thread": outside})


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []


CHECKS = (
    Check("processor", processor),
    Check("level", level),
    Check("torch's bf16", torch_bf16),
    Check("denormals", denormals),
)
