"""Write events of users as CSV: clicks and buys, with what a model has to find planted in them.

    out/train/part-0.csv …   out/test/part-0.csv …   out/schema.toml   out/synth.json

Each event shows an item to a user. Whether it is clicked depends on

- age × category and gender × brand: interactions without main effects, which a linear model cannot see;
- the history: whether one of the user's past items is of the same kind as the item shown. An item's kind stands in no
  column, so a model has to learn which items are alike, and to look at each item of the history for itself;
- the item, the user and the hour, a little.

Whether a clicked item is bought depends on the price and the age, on the item, and on the history too: so items that
are clicked more are bought more, and a model that sees clicked samples alone is misled about the others.

Memory stays flat. The same settings give the same files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from sparsefleet.core.schema import TOML_NAME, CsvDialect, DenseFeature, Label, Schema, Slot
from sparsefleet.core.schema.text import schema_text
from sparsefleet.datasets.progress import OnProgress, ignore_progress
from sparsefleet.datasets.staging import check_space, staged
from sparsefleet.datasets.synth import SYNTH_FILE, SynthSpec, Truth

BYTES_PER_ROW = 130
BLOCK_ROWS = 16384
ITEMS, CATEGORIES, BRANDS, KINDS, AGES, SHOWN = 2000, 20, 60, 40, 6, 15
"""SHOWN: items of the longest history."""
START = 1_700_000_000
"""When the first event happens, in seconds since 1970."""
COLUMNS = ("time", "user", "age", "gender", "item", "category", "brand", "price", "history", "click", "buy")
GENDERS = np.array(["f", "m"])

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def events_schema() -> Schema:
    return Schema(
        dense=(DenseFeature("log_price", 3.0, 1.0, column="price", function="log1p"),),
        slots=(
            Slot("user"),
            Slot("age"),
            Slot("gender"),
            Slot("item", hash_prefix="item="),
            Slot("category"),
            Slot("brand"),
            Slot("hour", column="time", derive="hour"),
            Slot("history", hash_prefix="item=", split="|"),  # the same items
        ),
        label="click",
        more_labels=(Label("buy", where="click"),),
        group="user",
        time="time",
        csv=CsvDialect(),
    )


@dataclass(frozen=True, slots=True)
class EventsReport:
    """What synth.json holds; the best figures are those of the true probabilities on the test rows."""

    rows: int
    test_rows: int
    seed: int
    users: int
    click_rate: float
    buy_rate: float
    """Of the clicked ones."""
    best_auc: float | None
    best_logloss: float | None
    best_buy_auc: float | None
    """Of buys among the clicked ones."""


@dataclass(frozen=True, slots=True)
class Events:
    """[B] rows as they are drawn."""

    columns: dict[str, pa.Array]
    clicks: npt.NDArray[np.int8]
    buys: npt.NDArray[np.int8]
    click_probability: F64
    buy_probability: F64

    def __len__(self) -> int:
        return len(self.clicks)


class EventsModel:
    """Users, items, and what decides about clicks and buys."""

    def __init__(self, seed: int, users: int) -> None:
        self.seed, self.users = seed, users
        draw = np.random.default_rng([seed, 0])
        self.category = draw.integers(CATEGORIES, size=ITEMS)
        self.brand = draw.integers(BRANDS, size=ITEMS)
        self.kind = draw.integers(KINDS, size=ITEMS)
        self.item_effect = draw.normal(0, 0.3, ITEMS)
        self.item_quality = draw.normal(0, 0.6, ITEMS)
        self.price = np.round(np.exp(draw.normal(3.0, 1.0, ITEMS)), 2)
        self.popularity = np.cumsum(1.0 / np.arange(1, ITEMS + 1) ** 0.8)
        self.age = draw.integers(AGES, size=users)
        self.gender = draw.integers(2, size=users)
        self.user_effect = draw.normal(0, 0.3, users)
        self.interests = draw.integers(KINDS, size=(users, 3))
        self.age_category = _centred(draw.normal(0, 1.0, (AGES, CATEGORIES)))
        self.gender_brand = _centred(draw.normal(0, 0.6, (2, BRANDS)))
        self.hour_effect = 0.3 * np.sin(np.arange(24) / 24 * 2 * np.pi)
        self.frugality = np.linspace(1.0, 0.2, AGES)
        order = np.argsort(self.kind, kind="stable")
        self._by_kind = order
        self._kind_start = np.searchsorted(self.kind[order], np.arange(KINDS + 1))

    def block(self, stream: int, index: int, rows: int) -> Events:
        """Rows `index * BLOCK_ROWS` to `+ rows` of a stream (1: training, 2: test)."""
        draw = np.random.default_rng([self.seed, stream, index])
        user = draw.integers(self.users, size=rows)
        time = START + (stream - 1) * 10**8 + (index * BLOCK_ROWS + np.arange(rows)) * 7 + draw.integers(7, size=rows)
        hour = time % 86400 // 3600
        item = np.where(draw.random(rows) < 0.35, self._of_interest(draw, user), self._popular(draw, rows))
        sizes = draw.integers(4, SHOWN + 1, size=rows)
        many = (rows, SHOWN)
        users = np.repeat(user[:, None], SHOWN, axis=1)
        history = np.where(draw.random(many) < 0.6, self._of_interest(draw, users), self._popular(draw, many))
        shown = np.arange(SHOWN) < sizes[:, None]
        match = ((self.kind[history] == self.kind[item][:, None]) & shown).any(axis=1)
        age, gender = self.age[user], self.gender[user]
        click_logit = (
            -1.9
            + 1.2 * self.age_category[age, self.category[item]]
            + self.gender_brand[gender, self.brand[item]]
            + 2.0 * match
            + self.item_effect[item]
            + self.user_effect[user]
            + self.hour_effect[hour]
        )
        log_price = np.log(self.price[item]) - 3.0
        buy_logit = -0.8 - 1.2 * self.frugality[age] * log_price + self.item_quality[item] + 1.0 * match
        click_probability, buy_probability = _sigmoid(click_logit), _sigmoid(buy_logit)
        clicks = (draw.random(rows) < click_probability).astype(np.int8)
        buys = ((draw.random(rows) < buy_probability) & (clicks == 1)).astype(np.int8)
        columns = {
            "time": pa.array(time),
            "user": _named("u", user),
            "age": pa.array(age),
            "gender": pa.array(GENDERS[gender]),
            "item": _named("i", item),
            "category": pa.array(self.category[item]),
            "brand": _named("b", self.brand[item]),
            "price": pa.array(self.price[item]),
            "history": pa.array(_joined(history, sizes)),
            "click": pa.array(clicks),
            "buy": pa.array(buys),
        }
        return Events(columns, clicks, buys, click_probability, buy_probability)

    def _popular(self, draw: np.random.Generator, size: int | tuple[int, int]) -> I64:
        found: I64 = np.searchsorted(self.popularity, draw.random(size) * self.popularity[-1])
        return found

    def _of_interest(self, draw: np.random.Generator, user: I64) -> I64:
        """An item of one of the user's kinds."""
        kind = self.interests[user, draw.integers(3, size=user.shape)]
        start, stop = self._kind_start[kind], self._kind_start[kind + 1]
        chosen: I64 = self._by_kind[start + (draw.random(user.shape) * (stop - start)).astype(np.int64)]
        return chosen


def synth_events(
    out: str | Path,
    spec: SynthSpec,
    *,
    overwrite: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> EventsReport:
    """Write the data and say how well one could possibly predict it. Progress is in rows."""
    total = spec.rows + spec.test_rows
    check_space(out, total * BYTES_PER_ROW)
    model = EventsModel(spec.seed, max(100, spec.rows // 50))
    clicks, buys = {"train": Truth(), "test": Truth()}, {"train": Truth(), "test": Truth()}
    with staged(out, ("train", "test", SYNTH_FILE, TOML_NAME), overwrite=overwrite) as stage:
        done = 0
        on_progress(done, total)
        for name, stream, rows, parts in (
            ("train", 1, spec.rows, spec.parts),
            ("test", 2, spec.test_rows, spec.test_parts),
        ):
            if not rows:
                continue
            (stage / name).mkdir()
            for events in _write_parts(stage / name, model, stream, rows, parts):
                clicks[name].add(events.clicks, events.click_probability)
                clicked = events.clicks == 1
                buys[name].add(events.buys[clicked], events.buy_probability[clicked])
                done += len(events)
                on_progress(done, total)
        report = EventsReport(
            rows=spec.rows,
            test_rows=spec.test_rows,
            seed=spec.seed,
            users=model.users,
            click_rate=clicks["train"].click_rate,
            buy_rate=buys["train"].click_rate if buys["train"].rows else 0.0,
            best_auc=clicks["test"].auc(),
            best_logloss=clicks["test"].logloss(),
            best_buy_auc=buys["test"].auc(),
        )
        (stage / SYNTH_FILE).write_text(json.dumps(asdict(report), indent=1) + "\n")
        (stage / TOML_NAME).write_text(schema_text(events_schema(), toml=True, comments=_COMMENTS))
    return report


_COMMENTS = {
    "": "Events of users, made by `sparsefleet data synth --kind events`.",
    "group": "group AUC is measured within users",
    "buy": "defined only where click is 1",
    "history": "past items of the user, such as i17|i4|i1203; by hash_prefix they are those of the slot item",
    "log_price": "ln(1 + price) - 3",
}


def _write_parts(folder: Path, model: EventsModel, stream: int, rows: int, parts: int) -> Iterator[Events]:
    """Part files of about equal length, each with a header; yields each block once it is written."""
    options = pa_csv.WriteOptions(include_header=False, quoting_style="none")
    ends = [rows * (part + 1) // parts for part in range(parts)]
    row = index = 0
    left: Events | None = None
    for part, end in enumerate(ends):
        with (folder / f"part-{part}.csv").open("wb") as file:
            file.write((",".join(COLUMNS) + "\n").encode())
            while row < end:
                if left is None or not len(left):
                    left = model.block(stream, index, min(BLOCK_ROWS, rows - index * BLOCK_ROWS))
                    index += 1
                size = min(end - row, len(left))
                now, left = _cut(left, 0, size), _cut(left, size, len(left))
                pa_csv.write_csv(pa.table(now.columns), file, options)
                row += size
                yield now


def _cut(events: Events, start: int, stop: int) -> Events:
    return Events(
        {name: column[start:stop] for name, column in events.columns.items()},
        events.clicks[start:stop],
        events.buys[start:stop],
        events.click_probability[start:stop],
        events.buy_probability[start:stop],
    )


def _centred(effects: F64) -> F64:
    """Without main effects: rows and columns have mean 0."""
    effects = effects - effects.mean(axis=1, keepdims=True)
    centred: F64 = effects - effects.mean(axis=0, keepdims=True)
    return centred


def _sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


def _named(letter: str, numbers: I64) -> pa.Array:
    return pa.array([f"{letter}{number}" for number in numbers.tolist()])


def _joined(history: I64, sizes: I64) -> list[str]:
    names = [f"i{item}" for item in range(ITEMS)]
    return [
        "|".join([names[item] for item in items[:size]])
        for items, size in zip(history.tolist(), sizes.tolist(), strict=True)
    ]
