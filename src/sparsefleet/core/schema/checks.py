"""Checks of settings, each with an error that says what came and what is allowed."""

from __future__ import annotations

import math

from sparsefleet.core.errors import ConfigError


def require_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{what}={value!r} is mistyped: it must be text")


def require_finite(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{what}={value!r} is mistyped: it must be a finite number")


def require_choice(what: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{what}={value!r} is not known; choose {', '.join(allowed)}")


def require_different(what: str, names: list[str]) -> None:
    if len(set(names)) == len(names):
        return
    twice = sorted({name for name in names if names.count(name) > 1})
    raise ConfigError(f"{what} must differ; used twice: {', '.join(twice)}")
