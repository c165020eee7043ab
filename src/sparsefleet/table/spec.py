"""TableSpec: everything that makes two processes agree on a sparse table."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from sparsefleet.core.errors import ConfigError, Disagreement
from sparsefleet.core.initializer import Initializer, Uniform
from sparsefleet.optim.base import UpdateRule


@dataclass(frozen=True)
class TableSpec:
    name: str
    dim: int
    """Values in a row."""
    rule: UpdateRule
    initializer: Initializer = field(default_factory=Uniform)
    seed: int = 0
    """With the table's name and a row's key, decides that row's first values."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(
                f"table name {self.name!r}: it names files, so it must not be empty, hold '/' or start with '.'"
            )
        if not 1 <= self.dim <= 65536:
            raise ConfigError(f"table {self.name!r}: dim={self.dim} must be 1 to 65536")

    def check_same(self, other: TableSpec) -> None:
        """A second process, or a second model, asks for this table: refuse another one, field by field, in words."""
        differing = [
            f"{one.name} is {getattr(self, one.name)!r} there and {getattr(other, one.name)!r} here"
            for one in fields(self)
            if getattr(self, one.name) != getattr(other, one.name)
        ]
        if differing:
            raise Disagreement(f"table {self.name!r} exists with another spec: {'; '.join(differing)}")
