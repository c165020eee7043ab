"""Which of the compiled kernels this machine runs.

The native module holds every kernel several times, compiled for one level of the processor each. The richest level that
the processor has *and* the operating system allows is used; the environment variable SPARSEFLEET_ISA forces another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import sparsefleet.kernels._native as _native
from sparsefleet.core.errors import ConfigError

VARIABLE = "SPARSEFLEET_ISA"

BASELINE_FEATURES = ("pni", "ssse3", "cx16", "sse4_1", "sse4_2", "popcnt", "lahf_lm")
AVX2_FEATURES = (*BASELINE_FEATURES, "avx", "avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe")
AVX512_FEATURES = (*AVX2_FEATURES, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

# Bits of XCR0: registers that the system saves when it switches threads. Without, their use is an illegal instruction.
YMM_SAVED = 0b110
ZMM_SAVED = 0b1110_0110
TILES_SAVED = 0b11 << 17


@dataclass(frozen=True, slots=True)
class Level:
    name: str
    features: tuple[str, ...]
    """What the processor must have, named as in /proc/cpuinfo."""
    saved_state: int
    """Bits of XCR0 that the operating system must have set."""
    half: bool = False
    """Has instructions for products of bfloat16. Without, they are slower than those of float32."""
    tiles: bool = False
    """Uses tile registers, which a Linux process has to ask for."""


LEVELS = (
    Level("baseline", BASELINE_FEATURES, 0),
    Level("avx2", AVX2_FEATURES, YMM_SAVED),
    Level("avx512", AVX512_FEATURES, ZMM_SAVED),
    Level("avx512bf16", (*AVX512_FEATURES, "avx512_bf16"), ZMM_SAVED, half=True),
    Level(
        "amx",
        (*AVX512_FEATURES, "avx512_bf16", "amx_tile", "amx_bf16"),
        ZMM_SAVED | TILES_SAVED,
        half=True,
        tiles=True,
    ),
)
"""Poorest first. CMakeLists.txt has the compiler's options for each."""

NATIVE = "native"
"""The one level of a module that was built for its own machine only (SPARSEFLEET_NATIVE_ARCH)."""


@dataclass(frozen=True, slots=True)
class Processor:
    name: str
    """As it calls itself; empty where it cannot be asked."""
    features: frozenset[str]
    saved_state: int
    tiles_error: str | None = None
    """Why the system does not let this process use the tile registers; None: it does."""


@dataclass(frozen=True, slots=True)
class Choice:
    level: str
    """The level in use."""
    available: tuple[str, ...]
    """Levels that were built and that this machine runs, poorest first."""
    reason: str
    """Why this one, in words."""
    half: bool = False
    """It has instructions for products of bfloat16."""


def this_processor() -> Processor:
    name, features, saved_state = _native.processor()
    error = None
    if "amx_tile" in features and saved_state & TILES_SAVED == TILES_SAVED:
        number = _native.request_tiles()
        error = os.strerror(number) if number else None
    return Processor(name, frozenset(features), saved_state, error)


def missing(level: Level, processor: Processor) -> str | None:
    """What the machine lacks for a level, in words; None if nothing."""
    absent = [feature for feature in level.features if feature not in processor.features]
    if absent:
        return f"the processor has no {', '.join(absent)}"
    if level.saved_state & ~processor.saved_state:
        return "the operating system does not save the registers that it uses"
    if level.tiles and processor.tiles_error is not None:
        return f"the operating system refuses the tile registers: {processor.tiles_error}"
    return None


def choose(processor: Processor, built: Sequence[str], forced: str | None = None) -> Choice:
    """The level to use out of those built. `forced`: what SPARSEFLEET_ISA holds."""
    lacks: dict[str, str | None] = {}
    if NATIVE in built:
        available: tuple[str, ...] = (NATIVE,)
        reason = "the module was built for this machine only"
    elif len(built) == 1 and not processor.features:  # not x86-64
        available = tuple(built)
        reason = "the module was built with portable code only"
    else:
        lacks = {level.name: missing(level, processor) for level in LEVELS if level.name in built}
        available = tuple(name for name, lack in lacks.items() if lack is None)
        if not available:
            raise ConfigError(
                "SparseFleet needs an x86-64-v2 processor (SSE 4.2: Intel's from about 2009 on, AMD's from 2011): "
                f"{next(iter(lacks.values()))}"
            )
        above = [f"{name}: {lack}" for name, lack in lacks.items() if lack is not None]
        reason = f"not {above[0]}" if above else "the richest there is"
    # A module of the level `native` may use tiles, and nobody knows whether it does.
    with_half = [level.name for level in LEVELS if level.half] + [NATIVE] * (processor.tiles_error is None)
    if not forced:
        return Choice(available[-1], available, reason, available[-1] in with_half)
    if forced not in available:
        known = [level.name for level in LEVELS]
        lack = lacks.get(forced) or ("it was not built" if forced in known else f"levels are {', '.join(known)}")
        raise ConfigError(f"{VARIABLE}={forced}: {lack}; this machine runs {', '.join(available)}")
    return Choice(forced, available, f"{VARIABLE}={forced}", forced in with_half)


chosen = choose(this_processor(), _native.built_levels(), os.environ.get(VARIABLE))
"""What this process uses."""

native = _native.kernels(chosen.level)
"""The kernels of the chosen level; the faces beside this file call them."""
