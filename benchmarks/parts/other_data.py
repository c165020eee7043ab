"""Criteo-like text of another maker than `sparsefleet data synth`: integers and categories are drawn otherwise, and
labels come from a linear model with a weight for each value of a category.

    python benchmarks/parts/other_data.py FOLDER [--rows 400000] [--test-rows 40000] [--seed 1]

Integer j (0 to 12) is floor(exp(N(1 + .2 j, 1.2)) - 1), a fifth of them blank. A category is drawn from a Zipf
distribution with exponent 1.05, bounded by as many values as the column has in Criteo's set. The logit is -1.4, plus
for each category a weight in ±.65 that a hash of column and value draws, plus .25 tanh(log1p(x) - 1 - .2 j) for each
integer that is there, its sign alternating.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Values of each category in Criteo's Kaggle set."""
INTEGERS, EXPONENT, BLANK = 13, 1.05, 0.2
BIAS, WEIGHT, BEND = -1.4, 0.65, 0.25
PARTS = 4

F64 = npt.NDArray[np.float64]


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's last steps."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _weights(column: int, values: npt.NDArray[np.int64]) -> F64:
    drawn = _mixed(values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(column + 1))
    return ((drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53 * 2 - 1) * WEIGHT


def _columns(rows: int, seed: int) -> tuple[list[npt.NDArray[np.str_]], npt.NDArray[np.int64], F64]:
    """The text of every column, the labels, and the probabilities that they were drawn with."""
    random = np.random.default_rng(seed)
    logit, texts = np.full(rows, BIAS), []
    for j in range(INTEGERS):
        x = np.floor(np.exp(random.normal(1 + 0.2 * j, 1.2, rows)) - 1)
        blank = random.random(rows) < BLANK
        with np.errstate(divide="ignore"):  # log1p(-1): as small as can be
            bend = BEND * np.tanh(np.log1p(x) - 1 - 0.2 * j)
        logit += np.where(blank, 0.0, bend if j % 2 == 0 else -bend)
        texts.append(np.where(blank, "", x.astype(np.int64).astype(str)))
    for column, size in enumerate(CARDINALITIES):
        ends = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -EXPONENT)
        values = np.minimum(np.searchsorted(ends, random.random(rows) * ends[-1]), size - 1)
        logit += _weights(column, values)
        names = _mixed(values.astype(np.uint64) + np.uint64((column + 1) << 40)) >> np.uint64(32)
        texts.append(np.array([f"{name:08x}" for name in names.tolist()]))
    chance = 1 / (1 + np.exp(-logit))
    return texts, (random.random(rows) < chance).astype(np.int64), chance


def _best_auc(labels: npt.NDArray[np.int64], chance: F64) -> float:
    order = np.argsort(chance)
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    clicks = int(labels.sum())
    return float((ranks[labels == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(labels) - clicks)))


def _write(folder: Path, parts: int, texts: list[npt.NDArray[np.str_]], labels: npt.NDArray[np.int64]) -> None:
    folder.mkdir(parents=True)
    lines = list(map("\t".join, zip(labels.astype(str).tolist(), *(text.tolist() for text in texts), strict=True)))
    for part in range(parts):
        mine = lines[part * len(lines) // parts : (part + 1) * len(lines) // parts]
        (folder / f"part-{part}.txt").write_text("\n".join(mine) + "\n")


def other_data(folder: Path, rows: int, test_rows: int, seed: int = 1) -> float:
    """Write train/ and test/; returns the best AUC that is possible on the test rows. Made once for a folder."""
    told = folder / "synth.json"  # `sparsefleet train` shows what stands there beside its own
    if not told.exists():
        texts, labels, chance = _columns(rows + test_rows, seed)
        for name, part, parts in (("train", slice(rows), PARTS), ("test", slice(rows, None), PARTS)):
            _write(folder / name, parts, [text[part] for text in texts], labels[part])
        told.write_text(json.dumps({"best_auc": _best_auc(labels[rows:], chance[rows:]), "clicks": labels.mean()}))
    return float(json.loads(told.read_text())["best_auc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--test-rows", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"best possible AUC {other_data(given.folder, given.rows, given.test_rows, given.seed):.4f}")


if __name__ == "__main__":
    main()
