"""show and diff, as functions and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint_builders import make_rows, save
from typer.testing import CliRunner

from sparsefleet.checkpoint import compare, diff, show
from sparsefleet.cli.checkpoint import app
from sparsefleet.core.table_rows import TableRows


def test_show(tmp_path: Path) -> None:
    save(tmp_path / "step-00000007", step=7, shards=2, model={"name": "ctr"}, extra={"auc": 0.75})
    found = show(tmp_path)
    assert found["path"] == str(tmp_path / "step-00000007")
    assert found["step"] == 7
    (table,) = found["tables"]
    assert (table["name"], table["rows"], table["dim"], table["optimizer"], table["files"]) == (
        "T",
        50,
        3,
        "adam",
        2,
    )
    (block,) = found["blocks"]
    assert block["parameters"]["fc1.weight"] == [4, 3]
    assert found["buffers"] == ["bn.count"]
    assert found["positions"] == {"0": {"unit": 3, "rows": 120}}
    assert found["extra"] == {"auc": 0.75}
    files = [
        file for file in (tmp_path / "step-00000007").rglob("*") if file.is_file() and file.name != "manifest.json"
    ]
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    json.dumps(found, allow_nan=False)


def test_equal_checkpoints_in_other_shards(tmp_path: Path) -> None:
    save(tmp_path / "a", shards=1)
    save(tmp_path / "b", shards=3, extra={"other": 1})
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found["same"]
    assert found["tables"]["T"]["in_both"] == 50


@pytest.mark.parametrize("budget", [1_000, 5_000, 1 << 28])
def test_differences_are_found_whatever_the_memory(
    budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "BUDGET", budget)
    rows = make_rows(50)
    values, state, seen = rows.values.copy(), rows.state.copy(), rows.seen.copy()
    values[10, 1] += 0.5
    state[11, 2] -= 0.25
    seen[12:15] ^= 1
    save(tmp_path / "a", rows=rows.select(np.arange(0, 45)))
    save(tmp_path / "b", rows=TableRows(rows.keys, values, state, seen).select(np.arange(2, 50)))
    found = diff(tmp_path / "a", tmp_path / "b")
    assert not found["same"]
    table = found["tables"]["T"]
    assert (table["only_in_a"], table["only_in_b"], table["in_both"], table["seen_differs"]) == (2, 5, 43, 3)
    assert table["max_difference"] == pytest.approx(0.5)
    assert table["max_state_difference"] == pytest.approx(0.25)
    assert all(tensor["same"] for tensor in found["dense"].values())


def test_nan_differs_from_a_number_but_not_from_itself(tmp_path: Path) -> None:
    rows = make_rows(5)
    values = rows.values.copy()
    values[0, 0] = np.nan
    save(tmp_path / "a", rows=rows)
    save(tmp_path / "b", rows=TableRows(rows.keys, values, rows.state, rows.seen))
    assert diff(tmp_path / "a", tmp_path / "b")["tables"]["T"]["max_difference"] == np.inf
    assert diff(tmp_path / "b", tmp_path / "b")["same"]
    result = CliRunner().invoke(app, ["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["tables"]["T"]["max_difference"] == "inf"


def test_dense_and_schema_differences(tmp_path: Path) -> None:
    save(tmp_path / "a", seed=1, rows=make_rows(5), schema={"hash_seed": 0, "label": "x"})
    save(tmp_path / "b", seed=2, rows=make_rows(5), schema={"hash_seed": 1, "label": "x"}, step=2)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert not found["same"]
    assert found["schema"] == {"hash_seed": [0, 1]}
    assert found["step"] == [1, 2]
    assert found["dense"]["model/fc1.weight"]["max_difference"] > 0
    assert found["dense"]["buffers/bn.count"]["same"]
    assert found["tables"]["T"]["spec"] == {"step": [1, 2]}


def test_command_show(tmp_path: Path) -> None:
    save(tmp_path / "c", step=1234)
    result = CliRunner().invoke(app, ["show", str(tmp_path / "c")])
    assert result.exit_code == 0
    assert "step 1,234" in result.stdout
    assert "fc1.weight" in result.stdout
    assert json.loads(CliRunner().invoke(app, ["show", str(tmp_path / "c"), "--json"]).stdout)["step"] == 1234
    missing = CliRunner().invoke(app, ["show", str(tmp_path / "absent")])
    assert missing.exit_code == 1
    assert "error: no checkpoint at" in missing.stderr


def test_command_verify(tmp_path: Path) -> None:
    save(tmp_path / "c")
    good = CliRunner().invoke(app, ["verify", str(tmp_path / "c")])
    assert good.exit_code == 0
    assert "3 files" in good.stdout
    file = tmp_path / "c/buffers.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    bad = CliRunner().invoke(app, ["verify", str(tmp_path / "c")])
    assert bad.exit_code == 1
    assert "buffers.safetensors: damaged" in bad.stderr
    report = json.loads(CliRunner().invoke(app, ["verify", str(tmp_path / "c"), "--json"]).stdout)
    assert report["ok"] is False
    assert len(report["problems"]) == 1


def test_command_diff(tmp_path: Path) -> None:
    save(tmp_path / "a", seed=1)
    save(tmp_path / "b", seed=1)
    save(tmp_path / "c", seed=2)
    same = CliRunner().invoke(app, ["diff", str(tmp_path / "a"), str(tmp_path / "b")])
    assert same.exit_code == 0
    assert "same" in same.stdout
    other = CliRunner().invoke(app, ["diff", str(tmp_path / "a"), str(tmp_path / "c")])
    assert other.exit_code == 1
    assert "they differ" in other.stdout


def at_80_columns(*words: object) -> str:
    """What a command prints into a plain terminal of 80 columns."""
    terminal = {"FORCE_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=terminal).invoke(app, [str(word) for word in words]).stdout


def test_no_figure_is_lost_in_a_narrow_terminal(tmp_path: Path) -> None:
    rows = make_rows(20_000)
    values = rows.values.copy()
    values[0, 0] += 0.0123456
    save(tmp_path / "a", step=12_345_678, rows=rows.select(np.arange(19_000)))
    save(tmp_path / "b", step=12_345_679, rows=TableRows(rows.keys, values, rows.state, rows.seen + 1))
    shown, compared = at_80_columns("show", tmp_path / "a"), at_80_columns("diff", tmp_path / "a", tmp_path / "b")
    for text in (shown, compared):
        assert "…" not in text
    assert ["T", "19,000", "3", "adam", "6", "12,345,678", "1"] in [line.split()[:7] for line in shown.splitlines()]
    (table,) = (line.split() for line in compared.splitlines() if line.startswith("T "))
    assert table[:5] == ["T", "19,000", "20,000", "0", "1,000"]
    assert float(table[5]) == pytest.approx(0.0123456, rel=1e-4)
    assert "table T: step: 12345678 | 12345679" in compared
    assert "table T: how often a row was seen: other counts in 19,000 rows" in compared
    assert compared.endswith("they differ\n")
