"""What a sample is made of: dense features, slots and labels, each with its transforms."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema.checks import require_choice, require_finite, require_text
from sparsefleet.core.schema.kept_values import kept_hashes

FUNCTIONS = ("log1p", "ln2")
"""Of a number: log1p is sign(x) ln(1 + |x|); ln2 is floor(ln(x)²) above 2, else x as a whole number (Criteo's)."""
MEASURES = ("min-max", "standard")
"""By what `sparsefleet data prepare` measures minimum and diff: least and greatest number, or mean and deviation."""
MOST_QUANTILES = 10_000
DERIVED = ("hour", "weekday", "ln2")
"""What a slot can be of a timestamp (0 to 23; Monday is 0; UTC), or of a number."""


@dataclass(frozen=True, slots=True)
class DenseFeature:
    """One number of a sample: clipped, then `function`, then (x - minimum) / diff; a missing one is 0.0 after that.

    Min-max is minimum = least, diff = greatest - least; to standardise, minimum is the mean and diff the deviation.
    """

    name: str
    minimum: float = None  # type: ignore[assignment]  # once built, a number
    """0.0 where none is given."""
    diff: float = None  # type: ignore[assignment]
    """1.0 where none is given; but 0.0 where there is a `measure`: nobody has measured yet."""
    column: str | None = None
    """The column of the data, where it has another name."""
    clip: tuple[float, float] | None = None
    """Least and greatest value; what lies beyond is taken as these."""
    function: str | None = None
    """log1p or ln2, of the clipped number."""
    missing: float | None = None
    """The number that stands for a missing one; None: 0.0 after normalisation."""
    measure: str | None = field(default=None, compare=False)
    """min-max or standard: `sparsefleet data prepare` measures minimum and diff. Once they are there, they alone count:
    features that differ in nothing but this are equal."""

    def __post_init__(self) -> None:
        what = f"dense feature {self.name!r}"
        require_text("dense feature: name", self.name)
        if self.measure is not None:
            require_choice(f"{what}: measure", self.measure, MEASURES)
            if (self.minimum is None) != (self.diff is None):
                raise ConfigError(
                    f"{what}: it has a measure and {'diff' if self.minimum is None else 'minimum'}; give both minimum "
                    "and diff, or none of them, and `sparsefleet data prepare` measures them"
                )
        if self.minimum is None:
            object.__setattr__(self, "minimum", 0.0)
        if self.diff is None:
            object.__setattr__(self, "diff", 1.0 if self.measure is None else 0.0)
        require_finite(f"{what}: minimum", self.minimum)
        require_finite(f"{what}: diff", self.diff)
        if not self.diff > 0 and self.measured:
            raise ConfigError(f"{what}: diff={self.diff} must be above 0")
        if self.column is not None:
            require_text(f"{what}: column", self.column)
        if self.clip is not None:
            if not isinstance(self.clip, tuple) or len(self.clip) != 2:
                raise ConfigError(f"{what}: clip={self.clip!r} is mistyped: it must be the least and greatest value")
            for bound in self.clip:
                require_finite(f"{what}: clip", bound)
            if not self.clip[0] < self.clip[1]:
                raise ConfigError(f"{what}: clip={list(self.clip)} must rise")
        if self.function is not None:
            require_choice(f"{what}: function", self.function, FUNCTIONS)
        if self.missing is not None:
            require_finite(f"{what}: missing", self.missing)

    @property
    def source(self) -> str:
        """The column of the data that it is made of."""
        return self.name if self.column is None else self.column

    @property
    def measured(self) -> bool:
        """Whether minimum and diff are known: given, or measured."""
        return self.measure is None or self.diff != 0

    @property
    def plain(self) -> bool:
        """Whether it is (x - minimum) / diff of the column of its name, and nothing more."""
        given = (self.column, self.clip, self.function, self.missing)
        return self.measured and all(one is None for one in given)


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
    """The values that are not rare, as `core/schema/kept_values.py` writes them; None: nobody has counted yet."""
    quantiles: int | None = field(default=None, compare=False)
    """About so many buckets of about equally many training rows: `sparsefleet data prepare` measures `buckets`. Once
    they are there, they alone count: slots that differ in nothing but this are equal."""

    def __post_init__(self) -> None:
        require_text("slot: name", self.name)
        what = f"slot {self.name!r}"
        if self.hash_prefix is not None:
            require_text(f"{what}: hash_prefix", self.hash_prefix)
        for flag in ("keys", "lower"):
            if not isinstance(getattr(self, flag), bool):
                raise ConfigError(f"{what}: {flag}={getattr(self, flag)!r} is mistyped: it must be true or false")
        if self.column is not None:
            require_text(f"{what}: column", self.column)
        if self.split is not None and (
            not isinstance(self.split, str) or len(self.split) != 1 or not " " <= self.split <= "~"
        ):
            raise ConfigError(f"{what}: split={self.split!r} must be one printable ASCII character, such as '|'")
        for limit in ("first", "length", "min_count"):
            value = getattr(self, limit)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{what}: {limit}={value!r} must be a whole number, 1 or above")
        if self.missing is not None:
            require_text(f"{what}: missing", self.missing)
        if self.quantiles is not None:
            _require_quantiles(what, self.quantiles)
        if self.buckets is not None:
            if not isinstance(self.buckets, tuple) or (not self.buckets and self.quantiles is None):
                raise ConfigError(f"{what}: buckets={self.buckets!r} must be a list of rising numbers")
            for bound in self.buckets:
                require_finite(f"{what}: buckets", bound)
            if any(a >= b for a, b in zip(self.buckets, self.buckets[1:], strict=False)):
                raise ConfigError(f"{what}: buckets={list(self.buckets)} must rise")
            if self.quantiles is not None and len(self.buckets) >= self.quantiles:
                raise ConfigError(
                    f"{what}: {len(self.buckets)} bounds under buckets are too many for quantiles={self.quantiles}, of "
                    "which there are at most one fewer; take buckets out, and `sparsefleet data prepare` measures them"
                )
        if self.derive is not None:
            require_choice(f"{what}: derive", self.derive, DERIVED)
        if self.cross is not None:
            if not isinstance(self.cross, tuple) or not 2 <= len(self.cross) <= 3:
                raise ConfigError(f"{what}: cross={self.cross!r} must name two or three slots")
            for name in self.cross:
                require_text(f"{what}: cross", name)
        if self.rare is not None:
            require_text(f"{what}: rare", self.rare)
        self._check_together(what)
        if self.kept is not None:
            require_text(f"{what}: kept", self.kept)
            kept_hashes(self.kept, what)

    def _check_together(self, what: str) -> None:
        ranges = "buckets" if self.quantiles is None else "quantiles"
        numeric = [name for name in (ranges, "derive", "cross", "keys") if getattr(self, name)]
        if len(numeric) > 1:
            raise ConfigError(f"{what}: {' and '.join(numeric)} do not go together; choose one")
        textual = [name for name in ("lower", "split", "first", "length") if getattr(self, name)]
        if self.number or self.derive or self.cross:
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
    def number(self) -> bool:
        """Whether it is made of the buckets that a number falls into."""
        return self.buckets is not None or self.quantiles is not None

    @property
    def plain(self) -> bool:
        """Whether the values of the column of its name are hashed (or are keys), and nothing more."""
        return self == Slot(self.name, self.hash_prefix, self.keys) and not self.number

    def made_by(self) -> str:
        """Its transforms in words; which values are kept, and how bounds were found, are none of them."""
        left_out = ("name", "hash_prefix", "kept", "quantiles")
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        words = [f"{name} {value}" for name, value in told.items() if value is not None and value is not False]
        return ", ".join(words) or "no transforms"


def _require_quantiles(what: str, quantiles: object) -> None:
    if isinstance(quantiles, bool) or not isinstance(quantiles, int) or not 2 <= quantiles <= MOST_QUANTILES:
        raise ConfigError(
            f"{what}: quantiles={quantiles!r} must be a whole number of buckets, 2 to {MOST_QUANTILES:,}; their bounds "
            "are measured, or given as buckets"
        )


@dataclass(frozen=True, slots=True)
class Label:
    """A label beside the first one: 0 or 1."""

    name: str
    where: str | None = None
    """Another label: this one is defined only where that one is 1; elsewhere it is NaN, whatever the data says."""

    def __post_init__(self) -> None:
        require_text("label: name", self.name)
        if self.where is not None:
            require_text(f"label {self.name!r}: where", self.where)
