"""Synthetic data: the same rows whatever the parts, shaped like the real set, with a true best AUC."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from sparsefleet.core.errors import ConfigError, DataError
from sparsefleet.core.schema import CRITEO, Schema
from sparsefleet.datasets import staging
from sparsefleet.datasets import synth as synth_module
from sparsefleet.datasets.planted import (
    BLOCK_ROWS,
    CATEGORIES,
    INTEGERS,
    TEST,
    TRAIN,
    Block,
    PlantedModel,
    mix32,
    mix64,
)
from sparsefleet.datasets.synth import SynthSpec, Truth, criteo_text, synth


def joined(folder: Path) -> bytes:
    parts = sorted(folder.iterdir(), key=lambda part: int(part.name.removeprefix("part-")))
    return b"".join(part.read_bytes() for part in parts)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synth") / "out"
    synth(out, SynthSpec(rows=30_000, test_rows=5_000, parts=4, seed=7))
    return out


def all_rows(blocks: list[Block]) -> Block:
    return Block(
        np.concatenate([b.labels for b in blocks]),
        np.concatenate([b.integers for b in blocks], axis=1),
        np.concatenate([b.integers_missing for b in blocks], axis=1),
        np.concatenate([b.values for b in blocks], axis=1),
        np.concatenate([b.values_missing for b in blocks], axis=1),
        np.concatenate([b.probabilities for b in blocks]),
    )


@pytest.fixture(scope="module")
def sample() -> Block:
    return all_rows(list(PlantedModel(1).blocks(TRAIN, 200_000)))


def test_writes_parts_schema_and_report(written: Path) -> None:
    assert sorted(path.name for path in written.iterdir()) == ["schema.json", "synth.json", "test", "train"]
    assert [len(p.read_bytes().splitlines()) for p in sorted((written / "train").iterdir())] == [7500] * 4
    assert [p.name for p in (written / "test").iterdir()] == ["part-0"]
    assert Schema.load(written / "schema.json") == CRITEO
    report = json.loads((written / "synth.json").read_text())
    assert (report["rows"], report["test_rows"], report["seed"]) == (30_000, 5_000, 7)


def test_rows_look_like_criteo(written: Path) -> None:
    for line in (written / "train" / "part-0").read_text().splitlines()[:200]:
        label, *rest = line.split("\t")
        integers, categories = rest[:13], rest[13:]
        assert label in ("0", "1")
        assert len(categories) == 26
        assert all(value == "" or int(value) >= -3 for value in integers)
        assert all(value == "" or (len(value) == 8 and int(value, 16) >= 0) for value in categories)


def test_text_of_a_hand_made_block() -> None:
    block = Block(
        labels=np.array([1], np.int8),
        integers=np.arange(13, dtype=np.int64).reshape(13, 1) - 3,
        integers_missing=np.array([[i == 5] for i in range(13)]),
        values=np.full((26, 1), 0x0012ABCD, np.uint32),
        values_missing=np.array([[c in (0, 25)] for c in range(26)]),
        probabilities=np.array([0.5]),
    )
    expected = ["1", "-3", "-2", "-1", "0", "1", "", "3", "4", "5", "6", "7", "8", "9", ""]
    expected += ["0012abcd"] * 24 + [""]
    assert bytes(criteo_text(block)) == ("\t".join(expected) + "\n").encode()


def test_same_seed_same_bytes_whatever_the_parts(written: Path, tmp_path: Path) -> None:
    synth(tmp_path / "other", SynthSpec(rows=30_000, test_rows=5_000, parts=7, seed=7))
    assert joined(tmp_path / "other" / "train") == joined(written / "train")
    assert joined(tmp_path / "other" / "test") == joined(written / "test")
    assert (tmp_path / "other" / "synth.json").read_text() == (written / "synth.json").read_text()


def test_fewer_rows_are_the_beginning_of_more(written: Path, tmp_path: Path) -> None:
    synth(tmp_path / "less", SynthSpec(rows=1000, test_rows=10, parts=1, seed=7))
    assert joined(written / "train").startswith(joined(tmp_path / "less" / "train"))


def test_parts_across_blocks_lose_nothing(tmp_path: Path) -> None:
    rows = BLOCK_ROWS + 1000
    synth(tmp_path / "out", SynthSpec(rows=rows, test_rows=0, parts=3, seed=2))
    counts = [part.read_bytes().count(b"\n") for part in sorted((tmp_path / "out" / "train").iterdir())]
    assert sum(counts) == rows
    assert max(counts) - min(counts) <= 1
    assert not (tmp_path / "out" / "test").exists()
    assert json.loads((tmp_path / "out" / "synth.json").read_text())["best_auc"] is None


def test_another_seed_gives_other_rows(written: Path, tmp_path: Path) -> None:
    synth(tmp_path / "other", SynthSpec(rows=1000, test_rows=10, parts=1, seed=8))
    assert not joined(written / "train").startswith(joined(tmp_path / "other" / "train"))


def test_pinned_first_row() -> None:
    """Data must stay the same over releases; whoever changes it on purpose changes this line."""
    text = bytes(criteo_text(PlantedModel(1).block(TRAIN, 0).rows(0, 1))).decode()
    assert text == PINNED_ROW


PINNED_ROW = (
    "0\t\t-1\t\t2\t2192\t\t1\t17\t97\t\t0\t0\t0\t"
    "2ab61f0b\t2a092eb3\t505ec1cc\t796d542b\tcece565e\t833221f1\t45e4c0f8\t3c277efd\tc2869c67\tb76b637b\t753868b0\t"
    "cfe32eba\t8bd348bd\t993a8165\t1fdc246f\t778f4c28\t224aeebd\t36a85e82\tdc092941\tab4897e8\t81670c45\t\t"
    "e28056f6\t55ca024c\t6404da97\t49a8513a\n"
)


def test_train_and_test_rows_differ_but_share_values() -> None:
    model = PlantedModel(3)
    train, test = model.block(TRAIN, 0), model.block(TEST, 0)
    assert not np.array_equal(train.labels, test.labels)
    frequent = [np.bincount(mix64(b.values[0].astype(np.uint64)) % np.uint64(997)).argmax() for b in (train, test)]
    assert frequent[0] == frequent[1]


def test_click_rate(sample: Block) -> None:
    assert 0.246 < sample.labels.mean() < 0.266
    for seed in range(10, 14):
        assert 0.244 < PlantedModel(seed).block(TEST, 0).probabilities.mean() < 0.268


def test_categories_have_the_cardinality_and_skew_of_the_real_set(sample: Block) -> None:
    for column, values, missing in zip(CATEGORIES, sample.values, sample.values_missing, strict=True):
        assert abs(missing.mean() - column.missing) < 0.01
        _, counts = np.unique(values[~missing], return_counts=True)
        assert len(counts) <= column.cardinality
        assert abs(counts.max() / counts.sum() - column.top) < 0.15 * column.top + 0.01
        if column.cardinality < 30:
            assert len(counts) == column.cardinality
        if column.cardinality > 5_000_000:
            assert len(counts) > 50_000
            assert (counts == 1).sum() > 0.5 * len(counts)


def test_integers_have_heavy_tails(sample: Block) -> None:
    for column, values, missing in zip(INTEGERS, sample.integers, sample.integers_missing, strict=True):
        present = values[~missing]
        assert abs(missing.mean() - column.missing) < 0.01
        assert present.min() == column.minimum
        assert abs(np.median(present) - column.median) <= 1 + 0.1 * column.median
        assert abs(np.quantile(present, 0.95) - column.p95) <= 1 + 0.1 * column.p95
        assert present.max() > 3 * column.p95


def test_ranks_never_share_a_value() -> None:
    assert len(np.unique(mix32(np.arange(1 << 20, dtype=np.uint32)))) == 1 << 20


def test_labels_follow_the_probabilities(sample: Block) -> None:
    order = np.argsort(sample.probabilities)
    for group in np.array_split(order, 20):
        expected, drawn = sample.probabilities[group].mean(), sample.labels[group].mean()
        assert abs(expected - drawn) < 5 * np.sqrt(expected * (1 - expected) / len(group))


def test_best_figures_are_those_of_the_true_probabilities(written: Path) -> None:
    rows = all_rows(list(PlantedModel(7).blocks(TEST, 5_000)))
    labels = np.array([line[:1] == b"1" for line in joined(written / "test").splitlines()])
    assert np.array_equal(labels, rows.labels == 1)
    report = json.loads((written / "synth.json").read_text())
    assert report["best_auc"] == pytest.approx(roc_auc_score(labels, rows.probabilities), abs=1e-6)
    assert report["best_logloss"] == pytest.approx(log_loss(labels, rows.probabilities), abs=1e-9)
    assert report["test_click_rate"] == pytest.approx(labels.mean())


def test_truth_with_ties_and_with_one_label() -> None:
    truth = Truth()
    truth.add(np.array([1, 0, 1, 0], np.int8), np.array([0.5, 0.5, 0.9, 0.1]))
    assert truth.auc() == pytest.approx(0.875)
    alone = Truth()
    assert alone.auc() is None
    assert alone.logloss() is None
    alone.add(np.array([1], np.int8), np.array([0.5]))
    assert alone.auc() is None


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_best_auc_is_near_that_of_the_real_set(seed: int) -> None:
    rows = all_rows(list(PlantedModel(seed).blocks(TEST, 100_000)))
    assert 0.80 < roc_auc_score(rows.labels, rows.probabilities) < 0.82


def hashed(block: Block, bits: int) -> np.ndarray:
    """[B, 39] one-hot places of log-bucketed integers and categories."""
    places = []
    for i in range(13):
        values = block.integers[i]
        logs = np.floor(np.log(np.maximum(values, 1).astype(np.float64)) ** 2).astype(np.int64) + 10
        buckets = np.where(block.integers_missing[i], 0, np.where(values > 2, logs, values + 4))
        places.append(buckets.astype(np.uint64) * np.uint64(64) + np.uint64(i))
    for c in range(26):
        values = np.where(block.values_missing[c], np.uint64(1 << 33), block.values[c].astype(np.uint64))
        places.append(values * np.uint64(64) + np.uint64(13 + c))
    return (mix64(np.stack(places, axis=1)) & np.uint64((1 << bits) - 1)).astype(np.int64)


def logistic_regression_auc(train: Block, test: Block, bits: int = 20, batch: int = 256) -> float:
    """One epoch of Adagrad."""
    weights, squares, bias = np.zeros(1 << bits), np.full(1 << bits, 0.1), -1.0
    places = hashed(train, bits)
    for start in range(0, len(train), batch):
        x, y = places[start : start + batch], train.labels[start : start + batch]
        error = 1 / (1 + np.exp(-(weights[x].sum(axis=1) + bias))) - y
        touched, where = np.unique(x.ravel(), return_inverse=True)
        gradient = np.bincount(where.ravel(), np.repeat(error, x.shape[1]))
        squares[touched] += gradient**2
        weights[touched] -= 0.05 * gradient / np.sqrt(squares[touched])
        bias -= 0.05 * error.mean()
    return float(roc_auc_score(test.labels, weights[hashed(test, bits)].sum(axis=1)))


@pytest.mark.slow
def test_hashed_logistic_regression_finds_it_as_hard_as_the_real_set(sample: Block) -> None:
    test = all_rows(list(PlantedModel(1).blocks(TEST, 60_000)))
    auc = logistic_regression_auc(sample, test)
    assert 0.74 < auc < 0.79
    assert auc < roc_auc_score(test.labels, test.probabilities) - 0.03


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "--rows 0: at least 1 row"),
        ({"test_rows": -1}, "--test-rows -1 must be 0 or above"),
        ({"parts": 0}, "--parts 0 must lie between 1 and the number of rows"),
        ({"parts": 11}, r"--parts 11 must lie between 1 and the number of rows \(10\)"),
        ({"seed": -1}, "--seed -1 must lie between 0"),
    ],
)
def test_refuses_nonsense(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SynthSpec(**({"rows": 10, "test_rows": 1, "parts": 1, "seed": 1} | settings))


SMALL = SynthSpec(rows=10, test_rows=5, parts=2)


def test_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"not empty \(it has mine.txt\).*--overwrite"):
        synth(tmp_path, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_overwrite_replaces_its_own_files_only(tmp_path: Path) -> None:
    synth(tmp_path, SynthSpec(rows=100, test_rows=5, parts=9))
    (tmp_path / "mine.txt").write_text("precious")
    (tmp_path / ".unfinished-killed").mkdir()
    synth(tmp_path, SMALL, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == ["part-0", "part-1"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["mine.txt", "schema.json", "synth.json", "test", "train"]


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file; give a folder"):
        synth(tmp_path / "file", SMALL)


def test_no_room_is_seen_beforehand(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"writes about .* GB, and the disk of .* has .* GB free"):
        synth(tmp_path / "out", SynthSpec(rows=10**15, test_rows=0, parts=1))
    assert not (tmp_path / "out").exists()


def test_out_of_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(block: Block) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(synth_module, "criteo_text", full)
    with pytest.raises(DataError, match=r"no space left on the disk of .*nothing was kept"):
        synth(tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_overwrite_leaves_the_old_data_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth(tmp_path, SMALL)
    before = joined(tmp_path / "train")

    def interrupt(done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synth(tmp_path, SynthSpec(rows=20, test_rows=5, parts=2), overwrite=True, on_progress=interrupt)
    assert joined(tmp_path / "train") == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(staging.STAGING_PREFIX)]


def test_progress_runs_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    synth(tmp_path / "out", SMALL, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, 15)
    assert seen[-1] == (15, 15)
