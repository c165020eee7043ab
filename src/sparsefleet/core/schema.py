"""Schema: what a row means. Training, inference and serving all read the same file.

The schema says which slots there are and how a raw value becomes a feature key, and which dense features there
are and how they are normalised. It is plain JSON beside the data and inside every checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparsefleet.core.errors import ConfigError

FORMAT = "sparsefleet-schema"
VERSION = 1
FILE_NAME = "schema.json"

# The seeds' constants: (x - min) / diff, no clipping.
CRITEO_MIN = (0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
CRITEO_DIFF = (20, 603, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50)


@dataclass(frozen=True, slots=True)
class DenseFeature:
    """One number of a row: (x - minimum) / diff; a missing one is 0.0 after normalisation."""

    name: str
    minimum: float = 0.0
    diff: float = 1.0

    def __post_init__(self) -> None:
        _require_text("dense feature: name", self.name)
        for field in ("minimum", "diff"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(
                    f"dense feature {self.name!r}: {field}={value!r} is mistyped: it must be a finite number"
                )
        if not self.diff > 0:
            raise ConfigError(f"dense feature {self.name!r}: diff={self.diff} must be above 0")


@dataclass(frozen=True, slots=True)
class Slot:
    """One sparse feature: 0..n values in a row. A raw value's key is XXH64(hash_prefix + value, seed)."""

    name: str
    hash_prefix: str | None = None
    """Put before the value so that equal values of two slots get different keys; default: name + unit separator."""

    def __post_init__(self) -> None:
        _require_text("slot: name", self.name)
        if self.hash_prefix is not None:
            _require_text(f"slot {self.name!r}: hash_prefix", self.hash_prefix)

    @property
    def prefix(self) -> bytes:
        return (self.name + "\x1f" if self.hash_prefix is None else self.hash_prefix).encode()


@dataclass(frozen=True, slots=True)
class Schema:
    dense: tuple[DenseFeature, ...]
    slots: tuple[Slot, ...]
    label: str = "label"
    sparse_feature_dim: int = 1000001
    """Keys are folded modulo this; 0 keeps all 64 bits."""
    hash_seed: int = 0

    def __post_init__(self) -> None:
        _require_text("label", self.label)
        for field in ("sparse_feature_dim", "hash_seed"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{field}={value!r} is mistyped: it must be a whole number")
        if not 0 <= self.sparse_feature_dim < 2**64:
            raise ConfigError(
                f"sparse_feature_dim={self.sparse_feature_dim} must be 0 (keep 64 bits) or above, and fit 64 bits"
            )
        if not 0 <= self.hash_seed < 2**64:
            raise ConfigError(f"hash_seed={self.hash_seed} must fit 64 bits")
        names = [f.name for f in self.dense] + [s.name for s in self.slots] + [self.label]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"schema names must differ; used twice: {', '.join(twice)}")

    @property
    def slot_names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    @property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.dense)

    def folded(self, sparse_feature_dim: int) -> Schema:
        """The same schema with keys folded into another number of rows."""
        return replace(self, sparse_feature_dim=sparse_feature_dim)

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @staticmethod
    def from_dict(data: Mapping[str, Any], where: str = "schema") -> Schema:
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ConfigError(f"{where}: not a {FORMAT} document")
        if data.get("version") != VERSION:
            raise ConfigError(f"{where}: schema version {data.get('version')!r}; this release reads version {VERSION}")
        try:
            return Schema(
                dense=tuple(DenseFeature(**feature) for feature in data["dense"]),
                slots=tuple(Slot(**slot) for slot in data["slots"]),
                label=data["label"],
                sparse_feature_dim=data["sparse_feature_dim"],
                hash_seed=data["hash_seed"],
            )
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        except (KeyError, TypeError, OverflowError) as error:
            raise ConfigError(f"{where}: a field is missing, surplus or mistyped: {error}") from error

    def save(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> Schema:
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read schema {path}: {error}") from error
        return Schema.from_text(text, str(path))

    @staticmethod
    def from_text(text: str | bytes, where: str = "schema") -> Schema:
        """The content of a schema.json."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not JSON: {error}") from error
        return Schema.from_dict(data, where=where)


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{what}={value!r} is mistyped: it must be text")


def criteo_schema(sparse_feature_dim: int = 1000001) -> Schema:
    """Label, 13 integers I1..I13, 26 categories C1..C26, with the seeds' normalisation.

    The hash prefix is the column's number in the file ("14" to "39"), as in the seeds' `hash(str(idx) + value)`.
    """
    return Schema(
        dense=tuple(
            DenseFeature(f"I{i + 1}", float(low), float(diff))
            for i, (low, diff) in enumerate(zip(CRITEO_MIN, CRITEO_DIFF, strict=True))
        ),
        slots=tuple(Slot(f"C{i + 1}", str(14 + i)) for i in range(26)),
        sparse_feature_dim=sparse_feature_dim,
    )


CRITEO = criteo_schema()
