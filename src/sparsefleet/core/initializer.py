"""How a new row starts. Its values depend on (seed, table, key) alone, never on order, thread or server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from sparsefleet.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Initializer:
    """Two numbers and a kind; the kernel `init_rows` draws from them."""

    kind: ClassVar[int]

    @property
    def numbers(self) -> tuple[float, float]:
        raise NotImplementedError

    def to_list(self) -> list[Any]:
        """Plain data: the name of the class and its numbers; `from_list` is the inverse."""
        return [type(self).__name__, *self.numbers]


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Uniform in [low, high)."""

    low: float = -0.01
    high: float = 0.01
    kind: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ConfigError(f"Uniform(low={self.low}, high={self.high}): low must not exceed high")

    @property
    def numbers(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Gaussian with the given mean and standard deviation."""

    mean: float = 0.0
    std: float = 0.01
    kind: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not self.std >= 0:
            raise ConfigError(f"Normal(std={self.std}): std must be 0 or above")

    @property
    def numbers(self) -> tuple[float, float]:
        return self.mean, self.std


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """The same value everywhere."""

    value: float = 0.0
    kind: ClassVar[int] = 2

    @property
    def numbers(self) -> tuple[float, float]:
        return self.value, 0.0


_KINDS: dict[str, type[Initializer]] = {kind.__name__: kind for kind in (Uniform, Normal, Constant)}


def from_list(plain: Sequence[Any]) -> Initializer:
    """The initializer that `to_list` described. Raises KeyError, TypeError or ValueError for anything else."""
    name, *numbers = plain
    kind = _KINDS[name]
    return kind(*numbers[: len(fields(kind))])
