"""Schema: what a sample means. Training, inference and serving all read the same file.

The schema says which slots there are and how a raw value becomes a feature key, which dense features there are and how
they are normalised, and which columns are labels, weight, group and time. It is plain JSON beside the data and inside
every checkpoint, or TOML, which people edit (`core/schema_text.py`).

Version 1 had neither transforms nor several labels, and took a whole number in a slot as a feature key; a document of
version 1 keeps that meaning, and is written as version 1 again. In version 2 a whole number in a slot is hashed as its
decimal text, in every format, unless the slot is marked as ready-made keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.kept_values import check_kept, kept_hashes

FORMAT = "sparsefleet-schema"
VERSION = 2
FILE_NAME = "schema.json"
TOML_NAME = "schema.toml"

FUNCTIONS = ("log1p", "ln2")
"""Of a number: log1p is sign(x) ln(1 + |x|); ln2 is floor(ln(x)²) above 2, else x as a whole number (Criteo's)."""
DERIVED = ("hour", "weekday", "ln2")
"""What a slot can be of a timestamp (0 to 23; Monday is 0; UTC), or of a number."""
TIME_FORMATS = ("auto", "seconds", "milliseconds", "yymmddhh")
"""auto: ISO 8601 text, or a number of seconds since 1970. yymmddhh: 14102100 is 2014-10-21 00 h."""
DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar", " ": "space"}

# The seeds' constants: (x - min) / diff, no clipping.
CRITEO_MIN = (0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
CRITEO_DIFF = (20, 603, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50)

_WRONG = "a field is missing, surplus or mistyped"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DenseFeature:
    """One number of a sample: clipped, then `function`, then (x - minimum) / diff; a missing one is 0.0 after that.

    Min-max is minimum = least, diff = greatest - least; to standardise, minimum is the mean and diff the deviation.
    """

    name: str
    minimum: float = 0.0
    diff: float = 1.0
    column: str | None = None
    """The column of the data, where it has another name."""
    clip: tuple[float, float] | None = None
    """Least and greatest value; what lies beyond is taken as these."""
    function: str | None = None
    """log1p or ln2, of the clipped number."""
    missing: float | None = None
    """The number that stands for a missing one; None: 0.0 after normalisation."""

    def __post_init__(self) -> None:
        what = f"dense feature {self.name!r}"
        _require_name("dense feature: name", self.name)
        _require_finite(f"{what}: minimum", self.minimum)
        _require_finite(f"{what}: diff", self.diff)
        if not self.diff > 0:
            raise ConfigError(f"{what}: diff={self.diff} must be above 0")
        if self.column is not None:
            _require_name(f"{what}: column", self.column)
        if self.clip is not None:
            if not isinstance(self.clip, tuple) or len(self.clip) != 2:
                raise ConfigError(f"{what}: clip={self.clip!r} is mistyped: it must be the least and greatest value")
            for bound in self.clip:
                _require_finite(f"{what}: clip", bound)
            if not self.clip[0] < self.clip[1]:
                raise ConfigError(f"{what}: clip={list(self.clip)} must rise")
        if self.function is not None:
            _require_choice(f"{what}: function", self.function, FUNCTIONS)
        if self.missing is not None:
            _require_finite(f"{what}: missing", self.missing)

    @property
    def source(self) -> str:
        """The column of the data that it is made of."""
        return self.name if self.column is None else self.column

    @property
    def plain(self) -> bool:
        """Whether it is (x - minimum) / diff of the column of its name, and nothing more."""
        return self.column is None and self.clip is None and self.function is None and self.missing is None


@dataclass(frozen=True, slots=True)
class Slot:
    """One sparse feature: 0..n values in a sample. A raw value's key is XXH64(hash_prefix + value, seed)."""

    name: str
    hash_prefix: str | None = None
    """Put before the value so that equal values of two slots get different keys; default: name + unit separator."""
    keys: bool = False
    """Its values are ready-made feature keys, whole numbers 0 to 2**64 - 1, which nobody hashes."""
    column: str | None = None
    """The column of the data, where it has another name."""
    lower: bool = False
    """A to Z become a to z."""
    split: str | None = None
    """One ASCII character that separates the values of a list in text."""
    first: int | None = None
    """Only the first so many values of a list."""
    length: int | None = None
    """Only the first so many characters of a value."""
    missing: str | None = None
    """The value of a sample that has none (null, or empty text); None: no value."""
    buckets: tuple[float, ...] | None = None
    """Rising bounds: the value is the number of bounds that a number reaches (0 below the first)."""
    derive: str | None = None
    """hour or weekday of a timestamp, or ln2 of a number."""
    cross: tuple[str, ...] | None = None
    """Two or three slots: every combination of their values is a value."""
    min_count: int | None = None
    """Values that occur fewer times in the training rows are rare; `sparsefleet data prepare` counts."""
    rare: str | None = None
    """The value that stands for all rare ones; None: a rare value is missing."""
    kept: str | None = field(default=None, repr=False)
    """The values that are not rare, as `core/kept_values.py` writes them; None: nobody has counted yet."""

    def __post_init__(self) -> None:
        _require_name("slot: name", self.name)
        what = f"slot {self.name!r}"
        if self.hash_prefix is not None:
            _require_text(f"{what}: hash_prefix", self.hash_prefix)
        for flag in ("keys", "lower"):
            if not isinstance(getattr(self, flag), bool):
                raise ConfigError(f"{what}: {flag}={getattr(self, flag)!r} is mistyped: it must be true or false")
        if self.column is not None:
            _require_name(f"{what}: column", self.column)
        if self.split is not None and (
            not isinstance(self.split, str) or len(self.split) != 1 or not " " <= self.split <= "~"
        ):
            raise ConfigError(f"{what}: split={self.split!r} must be one printable ASCII character, such as '|'")
        for limit in ("first", "length", "min_count"):
            value = getattr(self, limit)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{what}: {limit}={value!r} must be a whole number, 1 or above")
        if self.missing is not None:
            _require_text(f"{what}: missing", self.missing)
        if self.buckets is not None:
            if not isinstance(self.buckets, tuple) or not self.buckets:
                raise ConfigError(f"{what}: buckets={self.buckets!r} must be a list of rising numbers")
            for bound in self.buckets:
                _require_finite(f"{what}: buckets", bound)
            if any(a >= b for a, b in zip(self.buckets, self.buckets[1:], strict=False)):
                raise ConfigError(f"{what}: buckets={list(self.buckets)} must rise")
        if self.derive is not None:
            _require_choice(f"{what}: derive", self.derive, DERIVED)
        if self.cross is not None:
            if not isinstance(self.cross, tuple) or not 2 <= len(self.cross) <= 3:
                raise ConfigError(f"{what}: cross={self.cross!r} must name two or three slots")
            for name in self.cross:
                _require_name(f"{what}: cross", name)
        if self.rare is not None:
            _require_text(f"{what}: rare", self.rare)
        self._check_together(what)
        if self.kept is not None:
            _require_text(f"{what}: kept", self.kept)
            kept_hashes(self.kept, what)

    def _check_together(self, what: str) -> None:
        numeric = [name for name in ("buckets", "derive", "cross", "keys") if getattr(self, name)]
        if len(numeric) > 1:
            raise ConfigError(f"{what}: {' and '.join(numeric)} do not go together; choose one")
        textual = [name for name in ("lower", "split", "first", "length") if getattr(self, name)]
        if self.buckets or self.derive or self.cross:
            given = textual + (["missing", "column"] if self.cross else [])
            given = [name for name in given if getattr(self, name) not in (None, False)]
            if given:
                raise ConfigError(f"{what}: {given[0]} is for values of text; it does not go with {numeric[0]}")
        if numeric and self.min_count:
            raise ConfigError(
                f"{what}: min_count is for values of text; it does not go with {numeric[0]}"
                + (": give it to the slots that are crossed" if self.cross else "")
            )
        if self.min_count is None and (self.rare is not None or self.kept is not None):
            raise ConfigError(f"{what}: {'rare' if self.rare is not None else 'kept'} is for slots with min_count")
        if self.keys and (self.lower or self.length or self.missing is not None):
            raise ConfigError(f"{what}: keys are taken as they are: no lower, length or missing beside them")

    @property
    def prefix(self) -> bytes:
        return (self.name + "\x1f" if self.hash_prefix is None else self.hash_prefix).encode()

    @property
    def source(self) -> str:
        """The column of the data that it is made of. A cross has none."""
        return self.name if self.column is None else self.column

    @property
    def plain(self) -> bool:
        """Whether the values of the column of its name are hashed (or are keys), and nothing more."""
        return self == Slot(self.name, self.hash_prefix, self.keys)

    def made_by(self) -> str:
        """Its transforms in words; which values are kept is not one of them."""
        left_out = ("name", "hash_prefix", "kept")
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        words = [f"{name} {value}" for name, value in told.items() if value is not None and value is not False]
        return ", ".join(words) or "no transforms"


@dataclass(frozen=True, slots=True)
class Label:
    """A label beside the first one: 0 or 1."""

    name: str
    where: str | None = None
    """Another label: this one is defined only where that one is 1; elsewhere it is NaN, whatever the data says."""

    def __post_init__(self) -> None:
        _require_name("label: name", self.name)
        if self.where is not None:
            _require_name(f"label {self.name!r}: where", self.where)


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How the lines of CSV files are to be taken apart."""

    delimiter: str = ","
    header: bool = True
    """The first line of each file names the columns."""
    columns: tuple[str, ...] | None = None
    """Their names, in order, where there is no header."""
    quote: str = '"'
    """Fields may stand between two of these, and hold delimiters; twice within, it stands for itself. "": none."""
    multiline: bool = False
    """Quoted fields may hold line ends. Such files cannot be cut: give at least as many files as processes."""

    def __post_init__(self) -> None:
        if self.delimiter not in DELIMITERS:
            known = ", ".join(f"{mark!r} ({name})" for mark, name in DELIMITERS.items())
            raise ConfigError(f"csv: delimiter={self.delimiter!r} is not one of {known}")
        for flag in ("header", "multiline"):
            if not isinstance(getattr(self, flag), bool):
                raise ConfigError(f"csv: {flag}={getattr(self, flag)!r} is mistyped: it must be true or false")
        if self.quote not in ('"', "'", ""):
            raise ConfigError(f"csv: quote={self.quote!r} must be '\"', \"'\" or empty")
        if self.columns is not None:
            if not isinstance(self.columns, tuple):
                raise ConfigError(f"csv: columns={self.columns!r} is mistyped: it must be a list of names")
            for name in self.columns:
                _require_text("csv: columns", name)
            _require_different("csv: columns", list(self.columns))
        if self.header == (self.columns is not None):
            raise ConfigError(
                "csv: give `columns`, the names in order, where there is no header, and only there "
                f"(header={str(self.header).lower()})"
            )
        if self.multiline and not self.quote:
            raise ConfigError("csv: multiline needs a quote: only quoted fields can hold line ends")


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
    version: int = VERSION
    """1: read from a document of version 1, where a whole number in a slot is a key and text is hashed."""

    def __post_init__(self) -> None:
        _require_name("label", self.label)
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
        _require_different("schema names", [*self.dense_names, *self.slot_names, *self.labels])
        for name in ("weight", "group", "time"):
            if getattr(self, name) is not None:
                _require_name(name, getattr(self, name))
        _require_choice("time_format", self.time_format, TIME_FORMATS)
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
        if self.version not in (1, VERSION):
            raise ConfigError(f"version={self.version!r} must be 1 or {VERSION}")
        if self.version == 1 and not (self.plain and self._has_only_version_1()):
            raise ConfigError(
                "a schema of version 1 has no transforms, keys, further labels, weight, group, time or csv; "
                f"make it version {VERSION} (a whole number in a slot is then hashed as text, unless keys is true)"
            )

    def _has_only_version_1(self) -> bool:
        more = (self.more_labels, self.weight, self.group, self.time, self.csv)
        return not any(more) and self.time_format == "auto" and not any(slot.keys for slot in self.slots)

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
        numeric = [slot.source for slot in self.slots if slot.buckets or slot.derive == "ln2"]
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
        always = ("dense", "slots", "label", "sparse_feature_dim", "hash_seed")
        document = {"format": FORMAT, "version": self.version, **_as_plain(self, always)}
        keep: dict[str, tuple[str, ...]] = {"dense": ("minimum", "diff"), "slots": ("hash_prefix",)}
        for name, kept in keep.items():
            document[name] = [_as_plain(part, ("name", *kept)) for part in getattr(self, name)]
        kept_values = {slot.name: slot.kept for slot in self.slots if slot.kept is not None}
        for part in document["slots"]:
            part.pop("kept", None)
        document["more_labels"] = [_as_plain(extra, ("name",)) for extra in self.more_labels]
        if not self.more_labels:
            del document["more_labels"]
        if self.csv is not None:
            document["csv"] = _as_plain(self.csv, ("delimiter", "header"))
        document["version"] = self.version
        if kept_values:
            document["kept"] = kept_values
        return document

    @staticmethod
    def from_dict(data: Mapping[str, Any], where: str = "schema") -> Schema:
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ConfigError(f"{where}: not a {FORMAT} document")
        version = data.get("version")
        if isinstance(version, bool) or version not in (1, VERSION):
            raise ConfigError(f"{where}: schema version {version!r}; this release reads versions 1 and {VERSION}")
        given = {name: value for name, value in data.items() if name != "format"}
        try:
            if version == 1:
                _check_version_1(given)
            parts: dict[str, Any] = {
                "label": given["label"],
                "dense": _parts(DenseFeature, given["dense"], "dense"),
                "slots": _with_kept(_parts(Slot, given["slots"], "slots"), given.pop("kept", {})),
                "more_labels": _parts(Label, given.get("more_labels", []), "more_labels"),
            }
            if given.get("csv") is not None:
                parts["csv"] = _part(CsvDialect, given["csv"], "csv")
            return _part(Schema, {**given, **parts}, "the document")
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        except (KeyError, TypeError, OverflowError) as error:
            raise ConfigError(f"{where}: {_WRONG}: {error}") from error

    def save(self, path: str | Path) -> None:
        """As JSON, or as TOML where the name ends so."""
        from sparsefleet.core.schema_text import schema_text

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
        from sparsefleet.core.schema_text import parse_schema_text

        return Schema.from_dict(parse_schema_text(text, where), where=where)


def _as_plain(part: Any, always: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them; without those that have their default."""
    plain = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if each.name in always or each.default is MISSING or value != each.default:
            plain[each.name] = list(value) if isinstance(value, tuple) else value
    return plain


def _part(kind: type[T], given: Any, where: str) -> T:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{_WRONG}: {where} must be a table of settings, not {given!r:.60}")
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    surplus = [str(name) for name in given if name not in known]
    if surplus:
        raise ConfigError(f"{_WRONG}: {where} has {surplus[0]!r}; there is {', '.join(known)}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _parts(kind: type[T], given: Any, where: str) -> tuple[T, ...]:
    if not isinstance(given, list | tuple):
        raise ConfigError(f"{_WRONG}: {where} must be a list, not {given!r:.60}")
    return tuple(_part(kind, one, f"{where}[{index}]") for index, one in enumerate(given))


def _with_kept(slots: tuple[Slot, ...], given: Any) -> tuple[Slot, ...]:
    """Kept values stand behind everything else in a document, by slot: nobody edits them."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{_WRONG}: kept must be a table of slots, not {given!r:.60}")
    unknown = [name for name in given if name not in [slot.name for slot in slots]]
    if unknown:
        raise ConfigError(f"kept has values of {unknown[0]!r}, which is no slot; take it out, or put the slot back")
    return tuple(replace(slot, kept=given[slot.name]) if slot.name in given else slot for slot in slots)


def _check_version_1(given: Mapping[str, Any]) -> None:
    """Documents of version 1 have every field, and no other."""
    for name in ("dense", "slots", "label", "sparse_feature_dim", "hash_seed"):
        given[name]  # a KeyError says which one is missing
    for name, wanted in (("dense", {"name", "minimum", "diff"}), ("slots", {"name", "hash_prefix"})):
        for one in given[name]:
            surplus = set(one) - wanted
            if surplus:
                raise ConfigError(f"{_WRONG}: {name} of version 1 has no {sorted(surplus)[0]!r}")


def _require_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{what}={value!r} is mistyped: it must be text")


def _require_name(what: str, value: object) -> None:
    _require_text(what, value)


def _require_finite(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{what}={value!r} is mistyped: it must be a finite number")


def _require_choice(what: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{what}={value!r} is not known; choose {', '.join(allowed)}")


def _require_different(what: str, names: list[str]) -> None:
    if len(set(names)) == len(names):
        return
    twice = sorted({name for name in names if names.count(name) > 1})
    raise ConfigError(f"{what} must differ; used twice: {', '.join(twice)}")


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
