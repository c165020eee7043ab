"""Look at files of any table: what each column is, and the schema that this suggests.

It looks at the first rows (of each file alike), not at all of them: what it says of distinct values and quantiles is
true of those. The schema is a proposal, written to be edited.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import DenseFeature, Label, Schema, Slot
from sparsefleet.core.schema.text import schema_text
from sparsefleet.data.files import Path, list_files
from sparsefleet.data.formats.libffm import VALUE
from sparsefleet.data.formats.libsvm import FEATURES, QID
from sparsefleet.datasets.multislot_table import is_key
from sparsefleet.datasets.raw_table import RawTable, is_number, read_table

ROWS = 100_000
"""Rows that are looked at."""
LABELS = re.compile(r"(^|_)(label|click|clicked|clk|target|y|is_click|isclick)$", re.I)
FURTHER = re.compile(r"(^|_)(buy|bought|purchase|purchased|conversion|converted|cvr|like|liked|order|pay)$", re.I)
GROUPS = re.compile(r"^(user|uid|user_?id|member_?id|session_?id|device_id|query_?id)$", re.I)
WEIGHTS = re.compile(r"^(weight|sample_weight|importance)$", re.I)
TIMES = re.compile(r"(time|date|timestamp|^ts$|_ts$|_at$|^hour$|^day$)", re.I)
CODES = re.compile(r"(^|_)(id|code|type|zip|category|cat|class|cluster|no|number|C\d+)$|^(id|C\d+)|_id_", re.I)
THINGS = re.compile(
    r"(^|_)(user|uid|member|visitor|session|query|item|ad|advert|creative|campaign|advertiser|product|sku|goods|shop|store|"
    r"seller|brand|page|site|publisher|app|channel|device|author|video|movie|song|article|city|region|country)$",
    re.I,
)
"""Names of things: whole numbers under them are their numbers, and no quantities."""
ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?$")
SEPARATORS = ("|", ";", " ", ",")
FEW = 50
"""Whole numbers of up to so many different values are taken as a category."""

SELDOM = 0.01
"""The share of rows below which JSON lines may be without a field altogether."""


@dataclass(slots=True)
class Column:
    name: str
    kind: str
    """label, number, category, list, time, weight, or left out: why."""
    rows: int
    missing: int
    distinct: int
    top: str
    top_share: float
    quantiles: tuple[float, float, float, float, float] | None = None
    """Least, 5 %, half, 95 %, greatest; of numbers."""
    relation: float | None = None
    """How much of the label's uncertainty the column takes away, by itself; 0 to 1."""
    note: str = ""
    left_out: bool = False
    separator: str | None = None
    time_format: str | None = None
    integers: bool = False


@dataclass(slots=True)
class Inspection:
    files: list[str]
    table: RawTable
    columns: list[Column]
    schema: Schema
    label_rate: float
    comments: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The schema as an editable file."""
        return schema_text(self.schema, toml=True, comments=self.comments)


def inspect(
    paths: Path | Sequence[Path], *, label: str | None = None, format: str = "auto", rows: int = ROWS
) -> Inspection:
    if rows < 1:
        raise ConfigError(f"rows={rows} must be 1 or above")
    files = list_files(paths)
    table = read_table(files, format, rows)
    chosen = _label(table, label)
    truth = np.array([_truth(value) for value in table.columns[chosen]])
    columns = []
    for name, values in table.columns.items():
        column = _look(name, values, table.rows)
        if name == chosen:
            column.kind = "label"
        elif table.format in ("libsvm", "libffm"):
            _place_svm(column, values)
            _look_into(column, values)
            column.relation = _relation(column, values, truth)
        elif table.format == "multislot":
            _place_multislot(column, values)
            _look_into(column, values)
            column.relation = _relation(column, values, truth)
        else:
            _place(column, values, table, chosen)
            _look_into(column, values)
            column.relation = _relation(column, values, truth)
        columns.append(column)
    schema = _schema(columns, table, chosen)
    found = Inspection(files, table, columns, schema, float(np.nanmean(truth)))
    found.comments = _comments(found)
    return found


def _words(name: str) -> str:
    """userId, "User ID" and user-id as user_id: what a column is called is judged by its words."""
    return re.sub(r"[\W_]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).strip("_")


def _truth(value: Any) -> float:
    """As readers take a label: 0, 1, and the truth values of JSON and Parquet. Text such as "True" is none."""
    if isinstance(value, bool | Decimal):
        return float(value) if value in (0, 1) else math.nan
    return {"1": 1.0, "1.0": 1.0, "0": 0.0, "0.0": 0.0}.get(str(value), math.nan)


def _binary(values: Sequence[Any]) -> bool:
    return {_truth(value) for value in values if value is not None and value != ""} == {0.0, 1.0}


def _says_truth(values: Sequence[Any]) -> bool:
    """Whether it is true and false in words, which no reader takes as a label."""
    return {value.lower() for value in values if isinstance(value, str) and value} == {"true", "false"}


def _label(table: RawTable, given: str | None) -> str:
    if given is not None:
        if given not in table.columns:
            raise ConfigError(f"--label {given}: there is no such column; there is {', '.join(table.columns)}")
        if table.slots and given not in table.slots:
            raise ConfigError(
                f"--label {given}: it is one of several numbers of a slot; a label is a slot of one value"
            )
        if not _binary(table.columns[given]):
            shown = ", ".join(map(str, list(dict.fromkeys(table.columns[given]))[:5]))
            raise ConfigError(f"--label {given}: a label is 0 or 1, and both occur; this column holds {shown}")
        return given
    binary = [name for name, values in table.columns.items() if _binary(values)]
    if table.slots:
        binary = [name for name in binary if name in table.slots]
        ends = [name for name in dict.fromkeys((table.slots[0], table.slots[-1])) if name in binary]
        if len(ends) == 1:
            return ends[0]  # where generators of such lines put it
    named = [name for name in binary if LABELS.search(_words(name))]
    if named:
        return named[0]
    first = next(iter(table.columns))
    if first in binary and table.dialect is not None and not table.dialect.header:
        return first  # as in Criteo's files
    if len(binary) == 1:
        return binary[0]
    found = f"columns of 0 and 1: {', '.join(binary)}" if binary else "no column holds 0 and 1 alone"
    words = [name for name, values in table.columns.items() if _says_truth(values)]
    if words:
        found += f"; {', '.join(words)}: true and false as text are no label, write 1 and 0"
    raise ConfigError(f"which column is the label? Say --label NAME ({found})")


def _look(name: str, values: Sequence[Any], rows: int) -> Column:
    present = [value for value in values if value is not None and value != "" and value != []]
    shown = Counter(str(value) for value in present)
    top, count = shown.most_common(1)[0] if shown else ("", 0)
    return Column(name, "category", rows, rows - len(present), len(shown), top, count / rows)


def _look_into(column: Column, values: Sequence[Any]) -> None:
    """Of lists it is their values that count."""
    if column.kind != "list":
        return
    bags = (value if isinstance(value, list) else str(value or "").split(column.separator) for value in values)
    shown = Counter(str(one) for bag in bags for one in dict.fromkeys(bag) if one is not None and one != "")
    column.distinct = len(shown)
    if shown:
        column.top, count = shown.most_common(1)[0]
        column.top_share = count / column.rows


def _place(column: Column, values: Sequence[Any], table: RawTable, label: str) -> None:
    """Says what the column is."""
    present = [value for value in values if value is not None and value != "" and value != []]
    name = column.name
    if not present or column.distinct == 1:
        _leave(column, "always the same" if present else "always missing")
        return
    if any(isinstance(value, dict) for value in present):
        _leave(column, "holds objects; take its parts out into columns of their own")
        return
    if _binary(values) and FURTHER.search(_words(name)):
        pairs = zip(table.columns[label], values, strict=True)
        only = all(_truth(other) != 1 for own, other in pairs if _truth(own) == 0)
        column.kind = "label"
        column.note = label if only else ""
        return
    if table.format != "csv" and (why := _why_unread(present)):
        _leave(column, why)
        return
    if any(isinstance(value, list) for value in present):
        column.kind = "list"
        return
    texts = [str(value) for value in present]
    numeric = all(is_number(text) for text in texts)
    if WEIGHTS.search(_words(name)) and numeric and all(float(text) >= 0 for text in texts):
        column.kind = "weight"
        return
    column.time_format = _time_format(name, texts, numeric)
    if column.time_format:
        column.kind = "time"
        return
    column.integers = all(re.fullmatch(r"-?\d+", text) for text in texts)
    if not numeric:
        column.separator = _separator(texts)
        if column.separator:
            column.kind = "list"
            return
    unique = column.distinct / len(present)
    fractions = numeric and not column.integers
    if (
        unique > 0.95
        and len(present) >= 100
        and not fractions
        and (not column.integers or _rising(texts) or CODES.search(_words(name)))
    ):
        _leave(column, "an identifier: almost every row has a value of its own")
        return
    if not numeric:
        return
    thing = CODES.search(_words(name)) or THINGS.search(_words(name))
    if thing and fractions and all(float(text).is_integer() for text in texts):
        example = next(text for text in texts if not re.fullmatch(r"-?\d+", text))
        _leave(column, f"numbers of things, written with a fraction ({example}): write whole numbers, for a category")
        return
    if not fractions and (column.distinct <= FEW or thing):
        column.kind = "category"
        return
    if any(abs(float(text)) > 1e30 for text in texts):
        if fractions and table.format != "csv":
            _leave(column, "numbers too large for float32, and no whole numbers, which a slot could take")
        return
    column.kind = "number"
    column.quantiles = tuple(np.quantile(np.array(texts, np.float64), [0, 0.05, 0.5, 0.95, 1]).tolist())


def _why_unread(present: Sequence[Any]) -> str | None:
    """Why readers would refuse the column, as a slot and as a number; None: they would not. CSV is all text."""
    if any(isinstance(value, list) for value in present):
        parts = [one for value in present for one in (value if isinstance(value, list) else [value]) if one is not None]
        strange = next((one for one in parts if isinstance(one, bool) or not isinstance(one, str | bytes | int)), None)
        return None if strange is None else f"lists that hold {strange!r:.20}; a slot takes text and whole numbers"
    if any(isinstance(value, bool) for value in present):
        return "truth values; write 0 and 1, or text"
    fractions = [value for value in present if isinstance(value, float | Decimal)]
    if not all(map(math.isfinite, fractions)):
        return "holds NaN or infinity; write null where a number is missing"
    if fractions and any(isinstance(value, str) and not is_number(value) for value in present):
        return "text and numbers with fractions; a slot takes text and whole numbers"
    strange = next((one for one in present if not isinstance(one, str | bytes | int | float | Decimal | date)), None)
    return None if strange is None else f"{type(strange).__name__} is neither text nor number; write one of these"


def _place_svm(column: Column, values: Sequence[Any]) -> None:
    """The format says what a column is."""
    present = [value for value in values if value is not None]
    if column.name == QID:
        column.kind = "category"
        column.note = "the group"
    elif isinstance(present[0], list):
        column.kind = "list"
        if column.distinct == 1:
            _leave(column, "always the same feature")
    else:
        column.kind = "number"
        column.quantiles = tuple(np.quantile(np.array(present, np.float64), [0, 0.05, 0.5, 0.95, 1]).tolist())


def _place_multislot(column: Column, values: Sequence[Any]) -> None:
    """Keys, or numbers. Whoever wrote a line has chosen what is in it: readers take all of it, so none is left out."""
    if isinstance(values[0], list):
        column.kind = "list"
    elif not all(map(is_key, values)):
        column.kind = "number"
        column.quantiles = tuple(np.quantile(np.array(values, np.float64), [0, 0.05, 0.5, 0.95, 1]).tolist())
    if column.distinct == 1:
        column.note = "always the same"


def _leave(column: Column, why: str) -> None:
    column.kind, column.note, column.left_out = "left out", why, True


def _rising(texts: Sequence[str]) -> bool:
    numbers = np.array(texts[:1000], np.float64)
    return bool((np.diff(numbers) > 0).all())


def _time_format(name: str, texts: Sequence[str], numeric: bool) -> str | None:
    if not numeric:
        return "auto" if all(ISO.match(text) for text in texts) else None
    if not TIMES.search(_words(name)):
        return None
    if all(len(text) == 8 and text.isdigit() and _is_date_hour(text) for text in texts):
        return "yymmddhh"
    numbers = np.array(texts, np.float64)
    if (numbers > 9e8).all() and (numbers < 5e9).all():
        return "seconds"
    return "milliseconds" if (numbers > 9e11).all() and (numbers < 5e12).all() else None


def _is_date_hour(text: str) -> bool:
    return 1 <= int(text[2:4]) <= 12 and 1 <= int(text[4:6]) <= 31 and int(text[6:]) <= 23


def _separator(texts: Sequence[str]) -> str | None:
    """The character that separates the values of lists: values then repeat, which whole texts do less."""
    for mark in SEPARATORS:
        having = [text for text in texts if mark in text]
        if len(having) < 0.3 * len(texts):
            continue
        parts = [part for text in texts for part in text.split(mark) if part]
        longest = max(map(len, parts), default=0)
        distinct = len(set(parts))
        often = mark in "|;" and 2 * distinct < len(parts)  # what nobody writes within a value
        if parts and longest <= 64 and (often or distinct < 0.8 * len(set(texts))):
            return mark
    return None


def _relation(column: Column, values: Sequence[Any], truth: np.ndarray[Any, Any]) -> float | None:
    """Mutual information with the label as a share of the label's entropy, beyond what shuffled labels would give."""
    if column.left_out or column.kind in ("label", "weight", "time", "list"):
        return None
    known = ~np.isnan(truth)
    if column.kind == "number":
        numbers = np.array([float(value) if value not in (None, "") else np.nan for value in values])
        bounds = np.unique(np.nanquantile(numbers, np.linspace(0.1, 0.9, 9)))
        codes = np.where(np.isnan(numbers), -1, np.searchsorted(bounds, numbers, side="right"))
    else:
        table: dict[str, int] = {}
        codes = np.array([table.setdefault(str(value), len(table)) for value in values])
    codes, clicks = codes[known], truth[known]
    entropy = _entropy(np.array([clicks.sum(), len(clicks) - clicks.sum()]))
    if not entropy:
        return None
    _, places = np.unique(codes, return_inverse=True)
    # A value that occurs once tells its own label, whatever it is: what shuffled labels seem to tell is chance.
    by_chance = _entropy_within(places, np.random.default_rng(0).permutation(clicks))
    return max(0.0, float((by_chance - _entropy_within(places, clicks)) / entropy))


def _entropy_within(places: np.ndarray[Any, Any], clicks: np.ndarray[Any, Any]) -> float:
    """What is left of the label's entropy where the value is known."""
    counts = np.bincount(places)
    share = np.bincount(places, weights=clicks) / counts
    with np.errstate(divide="ignore", invalid="ignore"):
        each = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return float((np.nan_to_num(each) * counts).sum() / len(clicks))


def _entropy(counts: np.ndarray[Any, Any]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _svm_name(column: str, kind: str) -> str:
    """Of the feature that is made of a column of libsvm or libffm."""
    if kind == "number":
        return f"value_{column.removesuffix(VALUE)}"
    return column if kind != "list" or column == FEATURES else f"field_{column}"


def _svm_schema(columns: Sequence[Column], label: str) -> Schema:
    """libsvm and libffm: features have numbers already, which are taken as keys; names begin with a letter."""
    dense = []
    slots = []
    for column in columns:
        if column.left_out:
            continue
        name, named = column.name, _svm_name(column.name, column.kind)
        if column.kind == "list":
            slots.append(Slot(named, keys=True, column=None if named == name else name))
        elif column.kind == "number":
            dense.append(replace(_number(column), name=named, column=name))
    if not slots:
        raise ConfigError("all features have values other than 0 and 1: a model here needs at least one slot")
    group = QID if any(column.name == QID and not column.left_out for column in columns) else None
    return Schema(tuple(dense), tuple(slots), label, sparse_feature_dim=0, group=group)


def _multislot_schema(columns: Sequence[Column], table: RawTable, label: str) -> Schema:
    """Values are keys and numbers that somebody else has made, and slots are told apart by their place alone."""
    slots = tuple(Slot(column.name, keys=True) for column in columns if column.kind in ("category", "list"))
    if not slots:
        raise ConfigError("no slot holds feature keys: a model here needs at least one")
    dense = tuple(DenseFeature(column.name) for column in columns if column.kind == "number")
    return Schema(dense, slots, label, sparse_feature_dim=0, multislot=table.slots)


def _schema(columns: Sequence[Column], table: RawTable, label: str) -> Schema:
    if table.format in ("libsvm", "libffm"):
        return _svm_schema(columns, label)
    if table.format == "multislot":
        return _multislot_schema(columns, table, label)
    dense: list[DenseFeature] = []
    slots: list[Slot] = []
    more: list[Label] = []
    names = {column.name for column in columns}
    time = weight = group = None
    time_format = "auto"
    for column in columns:
        missing = "" if column.missing else None
        if column.kind == "number":
            dense.append(_number(column))
        elif column.kind in ("category", "list"):
            slots.append(Slot(column.name, split=column.separator, missing=missing))
            if GROUPS.search(_words(column.name)) and group is None:
                group = column.name
        elif column.kind == "time" and time is None:
            time, time_format = column.name, column.time_format or "auto"
            for part in ("hour", "weekday"):
                free = part if part not in names else f"{column.name}_{part}"
                slots.append(Slot(free, column=column.name, derive=part))
        elif column.kind == "time":
            _leave(column, "a second time column; its hour or weekday can be a slot (derive)")
        elif column.kind == "weight" and weight is None:
            weight = column.name
        elif column.kind == "label" and column.name != label:
            more.append(Label(column.name, column.note or None))
    if not slots:
        raise ConfigError("no column looks like a category or a list: a model here needs at least one slot")
    distinct = sum(column.distinct for column in columns if column.kind in ("category", "list"))
    sources = {feature.source for feature in dense} | {slot.source for slot in slots}
    lines = table.format == "jsonl"
    few = {column.name for column in columns if column.rows - column.missing < SELDOM * column.rows}
    return Schema(
        dense=tuple(dense),
        slots=tuple(slots),
        # Other files may be without what few rows have, and are no others for that.
        optional=tuple(column.name for column in columns if column.name in sources & few) if lines else (),
        label=label,
        sparse_feature_dim=1000001 if distinct < 300_000 else 10_000_019,
        more_labels=tuple(more),
        weight=weight,
        group=group,
        time=time,
        time_format=time_format,
        csv=table.dialect,
    )


def _number(column: Column) -> DenseFeature:
    assert column.quantiles is not None
    low, _, half, high, greatest = column.quantiles
    if low >= 0 and greatest > 20 * max(half, 1e-9) and greatest > 10:
        top = round(math.log1p(high), 6)
        return DenseFeature(column.name, 0.0, top if top > 0 else 1.0, function="log1p")
    diff = high - low
    return DenseFeature(column.name, float(f"{low:.6g}"), float(f"{diff:.6g}") if diff > 0 else 1.0)


_MULTISLOT = {
    "multislot": "The slots of a line, in order. Lines carry no names, so slots are called by their number; names can\n"
    "be changed, here and below alike. A line holds all of them: none can be left out.",
    "dense": "Numbers, taken as they stand in the line: whoever wrote it has normalised them.",
    "slots": "Feature keys, taken as they stand in the line (modulo sparse_feature_dim, where that is not 0).",
}


def _comments(found: Inspection) -> dict[str, str]:
    table = found.table
    seen = "all" if table.whole else "the first"
    comments = {
        "optional": "Fewer than 1 in 100 rows have these, so that a file may be without: else a column that no row has "
        "is refused.",
        "": f"Made by `sparsefleet data inspect` of {seen} {table.rows:,} rows; {100 * found.label_rate:.2f} % of them "
        f"have {found.schema.label} = 1.\nEdit it: take lines out, or add settings. Commands take it by --schema.",
        "dense": 'Numbers: clip = [low, high], function = "log1p" or "ln2", then (x - minimum) / diff; missing = x.\n'
        'measure = "min-max" or "standard" in place of minimum and diff (data prepare measures).',
        "slots": 'Categories: lower = true, length = n, split = "|", first = n, missing = "x", keys = true;\n'
        'min_count = n, rare = "x" (data prepare counts);\n'
        'also { name = "a_b", cross = ["a", "b"] }, { name = "price_range", column = "price", buckets = [1, 10] },\n'
        "or quantiles = 10 in place of buckets (data prepare measures).",
        "group": "group AUC is measured within it",
        "time_format": "auto: ISO 8601, or seconds since 1970; UTC",
    }
    if table.format == "multislot":
        comments |= _MULTISLOT
    left = []
    for column in found.columns:
        if column.left_out:
            left.append(f"left out: {column.name} ({column.note})")
        else:
            name = column.name if table.format not in ("libsvm", "libffm") else _svm_name(column.name, column.kind)
            comments[name] = _describe(column)
    if left:
        comments["#left out"] = "\n".join(left)
    return comments


def _describe(column: Column) -> str:
    parts = [column.kind, column.note] if column.note and column.kind != "label" else [column.kind]
    if column.missing:
        parts.append(f"{100 * column.missing / column.rows:.1f} % missing")
    if column.quantiles is not None:
        parts.append(f"{column.quantiles[0]:g} to {column.quantiles[4]:g}, half below {column.quantiles[2]:g}")
    else:
        parts.append(f"{column.distinct:,} distinct")
    return ", ".join(parts).replace("\n", " ")
