"""Fields of the schema that no line of JSON has: refused as a column that CSV and Parquet lack; rare ones are fine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sparsefleet as sf
from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import DenseFeature, Schema, Slot
from sparsefleet.data.formats import absent_fields
from sparsefleet.data.formats.base import BadSamples, Unit
from sparsefleet.data.formats.jsonl import JsonLinesFormat
from sparsefleet.train.given_data import differing_schemas
from sparsefleet.verify.samples import read_samples

SCHEMA = Schema((DenseFeature("price"),), (Slot("user"), Slot("tags")), "click")


def write(path: Path, rows: int, row: Callable[[int], dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps({"click": n % 2} | row(n), ensure_ascii=False) + "\n" for n in range(rows)))
    return str(path)


def full(n: int) -> dict[str, Any]:
    return {"price": n, "user": f"u{n % 9}", "tags": ["a"]}


def without(*names: str, **more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda n: {name: value for name, value in full(n).items() if name not in names} | more


def read(files: str | list[str], schema: Schema = SCHEMA, *, threads: int = 1, labelled: bool = True) -> int:
    with sf.open_reader(files, schema, format_name="jsonl", labelled=labelled, threads=threads).epoch(threads) as epoch:
        return sum(len(batch) for stream in epoch.streams for batch in stream)


def test_a_field_that_was_renamed(tmp_path: Path) -> None:
    file = write(tmp_path / "f", 1500, without("user", user_id="x"))
    said = (
        r"f: no row has 'user' \(but 'user_id'\); they have click, price, tags, user_id \(1,000 rows looked at, 16 MB "
        r"searched\)\. Where a field has another name here.*column = .*write null for it, or name it under optional"
    )
    for use in (
        lambda: read(file),
        lambda: read(file, threads=3),
        lambda: read(file, labelled=False),
        lambda: read_samples(file, SCHEMA, 10, format_name="jsonl"),
        lambda: list(JsonLinesFormat(SCHEMA).read(Unit(file, 20_000, 21_000), BadSamples())),
        lambda: sf.open_reader(file, SCHEMA, format_name="jsonl", kind="memory"),
    ):
        with pytest.raises(DataError, match=said):
            use()
    assert read(file, replace(SCHEMA, slots=(Slot("user", column="user_id"), Slot("tags")))) == 1500
    assert read(file, replace(SCHEMA, optional=("user",))) == 1500
    assert read(write(tmp_path / "g", 1500, without("user", user=None))) == 1500, "null says that it is missing"


def test_data_of_another_kind_is_refused_however_little_there_is(tmp_path: Path) -> None:
    file = write(tmp_path / "f", 3, lambda n: {"other": 1})
    with pytest.raises(DataError, match="f: no row has 'price' or 'user' or 'tags'; they have click, other"):
        read(file)
    assert read(file, replace(SCHEMA, optional=("price", "user", "tags"))) == 3


def test_rows_may_lack_a_field(tmp_path: Path) -> None:
    def one(n: int) -> dict[str, Any]:
        return full(n) if n == 700 else {"price": 1}

    assert read(write(tmp_path / "f", 1500, one)) == 1500

    def later(n: int) -> dict[str, Any]:
        return full(n) if n == 2900 else {"price": 1, "user": "u"}

    assert read(write(tmp_path / "f", 3000, later), threads=4) == 3000


def test_few_rows_prove_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    few = [write(tmp_path / f"few-{n}", 400, without("tags")) for n in range(2)]
    assert read(few) == 800
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.endswith("few-0: none of its 400 rows has 'tags'; they have click, price, user")
    more = write(tmp_path / "more", 400, without("tags"))
    with pytest.raises(DataError, match="more: no row has 'tags'"):
        read([*few, more])  # 1,200 rows by now
    caplog.clear()
    rare = write(tmp_path / "rare", 400, lambda n: full(n) if n == 399 else {"price": n, "user": "u"})
    assert read([*few, more, rare]) == 1600, "another file has it"
    assert not caplog.records


def test_one_file_of_several_is_another(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a", 300, full), write(tmp_path / "b", 300, without("price", cost=1))
    for files in ([good, bad], [bad, good]):
        with pytest.raises(DataError, match="b: no row has 'price'; they have click, user"):
            read(files)


def test_the_group_is_a_column_as_well(tmp_path: Path) -> None:
    schema, file = replace(SCHEMA, group="query"), write(tmp_path / "f", 1100, full)
    with pytest.raises(DataError, match="has 'query'"):
        read(file, schema)
    assert read(file, schema, labelled=False) == 1100, "requests have none"
    assert read(file, replace(schema, optional=("query",))) == 1100


def test_names_as_json_may_write_them(tmp_path: Path) -> None:
    schema = Schema((), (Slot("straße"), Slot('say "hi"'), Slot("user")), "click")
    late = [json.dumps({"click": 1, "user": "u"}) + "\n"] * 1200
    for ascii_only in (False, True):
        last = json.dumps({"click": 1, "straße": "x", 'say "hi"': "y"}, ensure_ascii=ascii_only)
        (tmp_path / "f").write_text("".join([*late, last + "\n"]))
        assert read(str(tmp_path / "f"), schema) == 1201
    (tmp_path / "f").write_text("".join(late))
    with pytest.raises(DataError, match="'straße' or 'say \"hi\"'"):
        read(str(tmp_path / "f"), schema)


def test_a_name_on_the_border_of_two_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text('{"click": 1}\n' * 3 + '{"click": 0, "user": "u"}\n')
    for block in range(1, 60):
        monkeypatch.setattr(absent_fields, "BLOCK_BYTES", block)
        assert absent_fields.occurs("user", str(tmp_path / "f"))
        assert not absent_fields.occurs("use", str(tmp_path / "f"))


def test_broken_lines_are_the_parsers(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("nonsense\n[]\n" + json.dumps({"click": 1, **full(1)}) + "\n")
    with pytest.raises(DataError, match="line 1: not a JSON object"):
        read(str(tmp_path / "f"))


def test_the_setting() -> None:
    schema = replace(SCHEMA, optional=("tags", "price"))
    assert Schema.from_dict(schema.to_dict()) == schema
    assert "optional" not in SCHEMA.to_dict()
    assert differing_schemas(SCHEMA.to_dict(), schema.to_dict()) == [], "a run that goes on may say so"
    for wrong, said in ((("nobody",), "optional: 'nobody' is no column"), ("tags", "optional='tags' is mistyped")):
        with pytest.raises(ConfigError, match=said):
            replace(SCHEMA, optional=wrong)
