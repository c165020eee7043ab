"""TableSpec as plain data, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sparsefleet import optim
from sparsefleet.core import initializer as initializers
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.initializer import Initializer
from sparsefleet.store.wire.frames import WireError
from sparsefleet.table.spec import TableSpec

_INITIALIZERS: Mapping[str, type[Initializer]] = {
    kind.__name__: kind for kind in (initializers.Uniform, initializers.Normal, initializers.Constant)
}


def spec_to_dict(spec: TableSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dim": spec.dim,
        "rule": spec.rule.to_dict(),
        "initializer": {"name": type(spec.initializer).__name__, **asdict(spec.initializer)},
        "seed": spec.seed,
    }


def spec_from_dict(data: Mapping[str, Any]) -> TableSpec:
    """The spec that `spec_to_dict` described; WireError for anything else."""
    wanted = {"name": str, "dim": int, "rule": dict, "initializer": dict, "seed": int}
    for name, kind in wanted.items():
        if type(data.get(name)) is not kind:
            raise WireError(f"a table's {name} must be of type {kind.__name__}; got {data.get(name)!r}")
    try:
        return TableSpec(
            data["name"],
            data["dim"],
            optim.from_dict(data["rule"]),
            initializer_from_dict(data["initializer"]),
            data["seed"],
        )
    except (ConfigError, TypeError, ValueError) as error:
        raise WireError(f"table {data['name']!r}: {error}") from None


def initializer_from_dict(data: Mapping[str, Any]) -> Initializer:
    numbers = dict(data)
    kind = _INITIALIZERS.get(str(numbers.pop("name", None)))
    if kind is None or not all(type(number) in (int, float) for number in numbers.values()):
        raise ConfigError(f"an initializer is one of {', '.join(_INITIALIZERS)} with its numbers; got {dict(data)!r}")
    return kind(**numbers)
