"""Schema: what a sample means. Training, inference and serving all read the same file.

The schema says which slots there are and how a raw value becomes a feature key, which dense features there are and how
they are normalised, and which columns are labels, weight, group and time. It is plain JSON beside the data and inside
every checkpoint, or TOML, which people edit (`core/schema/text.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema.checks import require_choice, require_different, require_text
from sparsefleet.core.schema.csv_dialect import CsvDialect
from sparsefleet.core.schema.document import VERSION, from_document, to_document
from sparsefleet.core.schema.features import DenseFeature, Label, Slot
from sparsefleet.core.schema.kept_values import check_kept
from sparsefleet.core.schema.text import parse_schema_text, schema_text

TIME_FORMATS = ("auto", "seconds", "milliseconds", "yymmddhh")
"""auto: ISO 8601 text, or a number of seconds since 1970. yymmddhh: 14102100 is 2014-10-21 00 h."""


@dataclass(frozen=True, slots=True)
class Schema:
    dense: tuple[DenseFeature, ...]
    slots: tuple[Slot, ...]
    label: str = "label"
    """The first label's name, and its column."""
    sparse_feature_dim: int = 1000001
    """Keys are folded modulo this; 0 keeps all 64 bits."""
    hash_seed: int = 0
    more_labels: tuple[Label, ...] = ()
    weight: str | None = None
    """Column: how much a sample counts in the loss."""
    group: str | None = None
    """Column: what a sample belongs to (a user, a query), for measures within a group."""
    time: str | None = None
    """Column: when it happened."""
    time_format: str = "auto"
    """Of the time column, and of columns whose hour or weekday is taken."""
    csv: CsvDialect | None = None
    """How CSV files are taken apart; None: as their header suggests."""
    optional: tuple[str, ...] = ()
    """Columns that JSON lines may be without in all rows; any other one has to occur."""
    multislot: tuple[str, ...] | None = None
    """The slots of a MultiSlot line, in order: names of slots and of dense features, and the label. A name that only
    begins dense features (slot2 of slot2_1, slot2_2) is a slot that holds them all. None: all dense features as one
    slot, the slots, the label."""
    version: int = VERSION
    """1: read from a document of version 1, where a whole number in a slot is a key and text is hashed."""

    def __post_init__(self) -> None:
        require_text("label", self.label)
        for name in ("sparse_feature_dim", "hash_seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name}={value!r} is mistyped: it must be a whole number")
        if not 0 <= self.sparse_feature_dim < 2**64:
            raise ConfigError(
                f"sparse_feature_dim={self.sparse_feature_dim} must be 0 (keep 64 bits) or above, and fit 64 bits"
            )
        if not 0 <= self.hash_seed < 2**64:
            raise ConfigError(f"hash_seed={self.hash_seed} must fit 64 bits")
        require_different("schema names", [*self.dense_names, *self.slot_names, *self.labels])
        for name in ("weight", "group", "time"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name))
        require_choice("time_format", self.time_format, TIME_FORMATS)
        for number, extra in enumerate(self.more_labels):
            if extra.where is not None and extra.where not in self.labels[: number + 1]:
                raise ConfigError(
                    f"label {extra.name!r}: where={extra.where!r} must be a label before it; "
                    f"there is {', '.join(self.labels[: number + 1])}"
                )
        crossable = [slot.name for slot in self.slots if slot.cross is None]
        for slot in self.slots:
            for name in slot.cross or ():
                if name not in crossable:
                    raise ConfigError(
                        f"slot {slot.name!r}: cross has {name!r}, which is no slot of the schema that is not "
                        f"a cross itself; there is {', '.join(crossable)}"
                    )
        for slot in self.slots:
            check_kept(slot, self.hash_seed)
        leaking = sorted({*self.fields} & {*self.labels})
        if leaking:
            raise ConfigError(f"the label {leaking[0]!r} is used as a feature too; leave it out of dense and slots")
        if not isinstance(self.optional, tuple):
            raise ConfigError(f"optional={self.optional!r:.80} is mistyped: it must be a list of columns")
        for name in self.optional:
            if name not in (*self.fields, self.group):
                raise ConfigError(f"optional: {name!r:.80} is no column that a feature is made of, nor the group")
        if self.multislot is not None:
            self._check_multislot()
        if self.version not in (1, VERSION):
            raise ConfigError(f"version={self.version!r} must be 1 or {VERSION}")
        if self.version == 1 and not (self.plain and self._has_only_version_1()):
            raise ConfigError(
                "a schema of version 1 has no transforms, measure, keys, further labels, weight, group, time, csv or "
                f"multislot; make it version {VERSION} (a whole number in a slot is then hashed as text, unless keys "
                "is true)"
            )

    def _check_multislot(self) -> None:
        names = self.multislot
        if not isinstance(names, tuple):
            raise ConfigError(f"multislot={names!r:.80} is mistyped: it must be a list of names")
        for name in names:
            require_text("multislot", name)
        require_different("multislot: names", list(names))
        missing = [name for name in (*self.slot_names, self.label) if name not in names]
        if missing:
            raise ConfigError(
                f"multislot: it must name all slots and the label of a line; missing: {', '.join(missing)}"
            )
        if self.csv is not None:
            raise ConfigError("csv and multislot do not go together: files are of one format; take one out")

    def _has_only_version_1(self) -> bool:
        more = (self.more_labels, self.weight, self.group, self.time, self.csv, self.optional, self.multislot)
        keys, measured = any(slot.keys for slot in self.slots), any(feature.measure for feature in self.dense)
        return not any(more) and self.time_format == "auto" and not keys and not measured

    @property
    def slot_names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    @property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.dense)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels, the first one's first."""
        return (self.label, *(extra.name for extra in self.more_labels))

    @property
    def label_conditions(self) -> dict[str, str]:
        """Of each label that is defined only where another is 1: that other one."""
        return {extra.name: extra.where for extra in self.more_labels if extra.where is not None}

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of the data that features are made of, each once: what a request has to hold."""
        sources = [feature.source for feature in self.dense]
        sources += [slot.source for slot in self.slots if slot.cross is None]
        return tuple(dict.fromkeys(sources))

    @property
    def number_fields(self) -> frozenset[str]:
        """Those of `fields` that hold numbers."""
        numeric = [slot.source for slot in self.slots if slot.number or slot.derive == "ln2"]
        return frozenset([*(feature.source for feature in self.dense), *numeric])

    @property
    def plain(self) -> bool:
        """Whether there are no transforms: each feature is the column of its name, normalised or hashed."""
        return all(feature.plain for feature in self.dense) and all(slot.plain for slot in self.slots)

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Slots with a min_count whose values nobody has counted yet."""
        return tuple(slot.name for slot in self.slots if slot.min_count is not None and slot.kept is None)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Which quantiles, and minima and diffs, nobody has measured yet, in words."""
        slots = [f"slot {s.name!r}: quantiles = {s.quantiles}" for s in self.slots if s.number and s.buckets is None]
        dense = [f'dense feature {f.name!r}: measure = "{f.measure}"' for f in self.dense if not f.measured]
        return (*slots, *dense)

    def require_measured(self) -> None:
        """Refuse to read samples by settings that only data can complete."""
        if self.uncounted:
            raise ConfigError(
                f"slot {self.uncounted[0]!r} has a min_count, and its values are not counted yet: `sparsefleet data "
                "prepare FILES --schema SCHEMA --out DIR` counts them and writes a schema that says which ones are kept"
            )
        if self.unmeasured:
            raise ConfigError(
                f"{self.unmeasured[0]} is not measured yet: run `sparsefleet data prepare FILES --schema SCHEMA --out "
                "DIR`, which measures it on the training rows and writes a schema that has the numbers"
            )

    @property
    def simple(self) -> bool:
        """Whether a sample is one label and plain features, and nothing more: what every format can hold."""
        return self.plain and not any((self.more_labels, self.weight, self.group, self.time))

    def takes_keys(self, slot: Slot) -> bool:
        """Whether a whole number in this slot is a feature key, and not text to hash."""
        return slot.keys or self.version == 1

    def folded(self, sparse_feature_dim: int) -> Schema:
        """The same schema with keys folded into another number of rows."""
        return replace(self, sparse_feature_dim=sparse_feature_dim)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON. What has its default value is left out, but for what version 1 had."""
        return to_document(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any], where: str = "schema") -> Schema:
        return from_document(Schema, data, where)

    def save(self, path: str | Path) -> None:
        """As JSON, or as TOML where the name ends so."""
        Path(path).write_text(schema_text(self, toml=Path(path).suffix == ".toml"))

    @staticmethod
    def load(path: str | Path) -> Schema:
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read schema {path}: {error}") from error
        return Schema.from_text(text, str(path))

    @staticmethod
    def from_text(text: str | bytes, where: str = "schema") -> Schema:
        """The content of a schema file: TOML where its name (`where`) ends in .toml, else JSON."""
        return Schema.from_dict(parse_schema_text(text, where), where=where)
