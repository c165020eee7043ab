"""Word vectors beside gensim, and the modes beside one process: words/s, loss, analogies, in one run.

    python benchmarks/word2vec.py TEXT QUESTIONS --gensim PYTHON     PYTHON: an interpreter that has gensim
    python benchmarks/word2vec.py TEXT QUESTIONS --dims 100 --rounds 1 --first-seed 2     a piece of a longer run

Words/s are words of the text, left-out ones too, per second of training, without counting the vocabulary. Runs are
taken in turn, each with a seed of its own; figures are medians, analogies the mean of all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sparsefleet.word2vec import WordVectors, read_questions

HERE = Path(__file__).parent


@dataclass
class Case:
    name: str
    run: Callable[[int, Path], tuple[float, float, WordVectors]]
    """Seed and folder; words/s, loss, vectors."""
    against: str | None = None
    wanted: float | None = None
    speeds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    last: WordVectors | None = None


def ours(text: str, dim: int, epochs: int, *options: object) -> Callable[[int, Path], tuple[float, float, WordVectors]]:
    def run(seed: int, folder: Path) -> tuple[float, float, WordVectors]:
        command = [sys.executable, "-m", "sparsefleet", "word2vec", "train", "--text", text, "--dim", dim]
        command += ["--epochs", epochs, "--seed", seed, "--save", folder / "model", "--json", *options]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1800, cwd=folder)
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{done.stderr[-2000:]}")
        told = json.loads(done.stdout.strip().splitlines()[-1])
        return told["words_per_s"], told["loss"], WordVectors.load(folder / "model")

    return run


def theirs(python: str, text: str, dim: int, epochs: int) -> Callable[[int, Path], tuple[float, float, WordVectors]]:
    with Path(text).open(encoding="utf-8") as lines:
        words = sum(len(line.split()) for line in lines)

    def run(seed: int, folder: Path) -> tuple[float, float, WordVectors]:
        out = folder / "vectors.txt"
        command = [python, HERE / "peers" / "gensim_words.py", text, out, dim, 2, epochs, seed + 1]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1800)
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{done.stderr[-2000:]}")
        with out.open(encoding="utf-8") as lines:
            next(lines)
            parts = [line.rstrip("\n").split(" ") for line in lines]
        vectors = np.array([part[1:] for part in parts], np.float32)
        seconds = float(done.stdout.strip().splitlines()[-1])
        return words * epochs / seconds, float("nan"), WordVectors([part[0] for part in parts], vectors)

    return run


def opened_by(python: str, vectors: WordVectors) -> str:
    """What gensim says of the two exports of these vectors."""
    with tempfile.TemporaryDirectory() as folder:
        text, binary = Path(folder, "vectors.txt"), Path(folder, "vectors.bin")
        vectors.export(text)
        vectors.export(binary, binary=True)
        command = [python, str(HERE / "peers" / "gensim_opens.py"), str(text), str(binary)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"gensim does not open our exports:\n{done.stderr[-2000:]}")
    return done.stdout.strip()


def overlap(one: WordVectors, other: WordVectors, probes: int = 100, near: int = 10) -> float:
    """How many of the ten nearest of frequent words two models agree on."""
    words = [word for word in one.words[100:] if word in other][:probes]
    found = [
        len({w for w, _ in one.neighbours(word, near)} & {w for w, _ in other.neighbours(word, near)}) for word in words
    ]
    return sum(found) / (near * len(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=os.path.abspath)
    parser.add_argument("questions", type=os.path.abspath)
    parser.add_argument("--gensim", help="an interpreter that has gensim; without it, only we are measured")
    parser.add_argument("--dims", type=int, nargs="*", default=[100, 300])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="the first round's; each round has one of its own")
    parser.add_argument("--modes", nargs="*", default=["geo", "async", "half_async", "sync"])
    given = parser.parse_args()
    sections = read_questions(given.questions)
    cases: list[Case] = []
    for dim in given.dims:
        one = f"one process, 2 threads, {dim} dims"
        peer = f"gensim, 2 workers, {dim} dims"
        if given.gensim:
            cases.append(Case(peer, theirs(given.gensim, given.text, dim, given.epochs)))
        one_run = ours(given.text, dim, given.epochs, "--threads", 2)
        cases.append(Case(one, one_run, peer if given.gensim else None, 1.5 if given.gensim else None))
        if dim != given.dims[0]:
            continue
        for mode in given.modes:
            job = ["--servers", 2, "--workers", 2, "--mode", mode, *(["--k-steps", 400] if mode == "geo" else [])]
            wanted = {"geo": 0.9, "async": 0.4}.get(mode)
            cases.append(Case(f"{mode} 2 x 2, {dim} dims", ours(given.text, dim, given.epochs, *job), one, wanted))
    for seed in range(given.first_seed, given.first_seed + given.rounds):
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                speed, loss, case.last = case.run(seed, Path(folder))
            answered = case.last.analogies(sections)
            case.speeds.append(speed)
            case.losses.append(loss)
            case.right.append(100 * sum(each.right for each in answered) / sum(each.asked for each in answered))
            print(f"{case.name}: {speed:,.0f} words/s, loss {loss:.4f}, analogies {case.right[-1]:.2f} %", flush=True)
    speeds = {case.name: statistics.median(case.speeds) for case in cases}
    table = Table("what", "words/s", "ratio", "wanted", "loss", "analogies %")
    for case in cases:
        ratio = f"{speeds[case.name] / speeds[case.against]:.2f}" if case.against else ""
        spread = f"{statistics.mean(case.right):.2f} ({min(case.right):.2f} to {max(case.right):.2f})"
        wanted = "" if case.wanted is None else f"{case.wanted:g}"
        table.add_row(
            case.name, f"{speeds[case.name]:,.0f}", ratio, wanted, f"{statistics.mean(case.losses):.3f}", spread
        )
    Console(width=140).print(table)
    peer, mine = cases[0].last, cases[1].last if given.gensim else None
    if peer is not None and mine is not None:
        print(f"gensim opens both exports: {opened_by(given.gensim, mine)}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            again = cases[0].run(given.first_seed + given.rounds, Path(folder))[2]
        common, chance = overlap(peer, mine), overlap(peer, again)
        print(f"ten nearest in common: with gensim {common:.2f}, two runs of gensim {chance:.2f}")


if __name__ == "__main__":
    main()
