"""`sparsefleet word2vec …` as a user runs it, in one process and in many."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine, command_line
from topical_text import TOPICS
from typer.testing import CliRunner

from sparsefleet.cli.app import app
from sparsefleet.core.errors import CheckpointError
from sparsefleet.store.base import RunFacts
from sparsefleet.train.training_state import TrainingState
from sparsefleet.word2vec import WordVectors

SMALL = ("--dim", "12", "--window", "4", "--subsample", "0", "--learning-rate", "0.05", "--batch-size", "250")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path) as made:
        yield made


def run(*words: object):
    return CliRunner().invoke(app, ["word2vec", *map(str, words)], terminal_width=200)


@pytest.fixture(scope="module")
def saved(text, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "model"
    done = run("train", "--text", text, *SMALL, "--epochs", 3, "--save", folder, "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["vocabulary"], summary["words"], summary["trained"]) == (24, 72_000, 72_000)
    assert summary["words_per_s"] > 0
    assert summary["loss"] < 4.0, "ln 2 for each of six outputs is where it begins"
    return folder


def test_training_tells_words_and_loss(saved, text, tmp_path):
    done = run("train", "--text", text, *SMALL, "--epochs", 1, "--save", tmp_path / "m")
    assert "vocabulary 24 words of 24,000 in the text" in done.output
    assert "words/s  loss" in done.output


def test_evaluating(saved, tmp_path):
    questions = tmp_path / "questions"
    questions.write_text(": topics\nship sail bread butter\nship sail bread nothing\n")
    done = run("eval", saved, "--questions", questions, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["asked"], told["skipped"]) == (1, 1)
    shown = run("eval", saved, "--questions", questions)
    assert "topics" in shown.stdout
    assert "1 questions were skipped" in shown.output
    questions.write_text("x y z w\n")
    refused = run("eval", saved, "--questions", questions)
    assert refused.exit_code == 1
    assert "none of the 1 questions" in refused.output


def test_neighbours_and_export(saved, tmp_path):
    told = json.loads(run("neighbours", saved, "ship", "--count", 3, "--json").stdout)
    assert [word for word, _ in told["neighbours"]] == [w for w, _ in WordVectors.load(saved).neighbours("ship", 3)]
    assert "not in the vocabulary" in run("neighbours", saved, "submarine").output
    out = tmp_path / "vectors.txt"
    done = run("export", saved, "--format", "word2vec", "--output", out)
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("24 12\n")
    assert run("export", saved, "--format", "word2vec", "--binary", "--output", out).exit_code == 0
    assert run("export", saved, "--format", "word2vec", "--binary").stdout_bytes == out.read_bytes()
    assert "choose word2vec" in run("export", saved, "--format", "glove", "--output", out).output


def test_what_cannot_be_trained_is_refused(tmp_path, text, saved):
    empty, binary, few, same = (tmp_path / name for name in ("empty", "binary", "few", "same"))
    empty.write_bytes(b"")
    binary.write_bytes(bytes(range(256)) * 30)
    few.write_text("each word once only")
    same.write_text("so " * 5)
    for words, why in (
        (("--text", empty), "the file is empty"),
        (("--text", binary), "binary data"),
        (("--text", few), "the vocabulary is empty"),
        (("--text", same), "so frequent that subsample=0.001 leaves them all out"),
        (("--text", text, "--dim", "0"), "dim=0 must be"),
        (("--text", text, "--threads", "0"), "threads=0 must be 1 or above"),
        (("--text", text, "--k-steps", "3"), "--k-steps does nothing in one process"),
        (("--text", text, "--resume", saved), "trained with other settings: dim was 12 then, is 100 now"),
        (("--text", tmp_path / "none"), "no such file"),
    ):
        done = run("train", *words, "--save", tmp_path / "m")
        assert done.exit_code == 1, done.output
        assert why in done.output.replace("\n", " ")
    assert not (tmp_path / "m").exists()


def test_words_come_from_one_place(saved, text, tmp_path):
    words = tmp_path / "words"
    words.write_text("ship 10\nsail 9\n")
    train = ("train", "--text", text, *SMALL, "--save", tmp_path / "m")
    for more, why in (
        (("--resume", saved, "--vocabulary", words), "so --vocabulary does nothing: leave it out; to train with"),
        (("--resume", saved, "--min-count", 5), "so --min-count does nothing: leave it out; for other words"),
        (("--vocabulary", words, "--min-count", 2), "says which words there are, so --min-count does nothing"),
        (("--vocabulary", words, "--min-count", 2, "--servers", 1, "--workers", 1), "so --min-count does nothing"),
    ):
        done = run(*train, *more)
        assert done.exit_code == 1, done.output
        assert why in " ".join(done.output.split())
    assert not (tmp_path / "m").exists()
    for more in (("--vocabulary", words), ("--min-count", 1)):
        done = run(*train, *more, "--epochs", 1, "--json")
        assert done.exit_code == 0, done.output


def test_a_launcher_counts_by_its_min_count(shell: CommandLine, text: Path) -> None:
    """It hands the vocabulary on, and not what it has counted by."""
    (shell.folder / "rare").write_text("seldom " * 3)
    words = ("--text", text, "--text", "rare", *SMALL, "--epochs", 1, "--save", "model", "--min-count", 2)
    result = shell.result("word2vec", "train", *words, "--servers", 1, "--workers", 1)
    assert result["vocabulary"] == 25


def test_async_takes_twice_as_many_words_at_a_time(shell: CommandLine, text: Path) -> None:
    """There the rows of each batch travel; in one process, where --mode says nothing, they do not."""
    words = ("--text", text, "--dim", 12, "--subsample", 0, "--epochs", 1, "--threads", 1, "--mode", "async")
    alone = shell.result("word2vec", "train", *words, "--save", "alone")
    many = shell.result("word2vec", "train", *words, "--save", "many", "--servers", 1, "--workers", 1)
    assert alone["trained"] == many["trained"] > 4000
    assert alone["steps"] == math.ceil(alone["trained"] / 1000)
    assert many["steps"] == math.ceil(many["trained"] / 2000)


def test_a_run_is_resumed(saved, text, tmp_path):
    first = ("train", "--text", text, *SMALL, "--threads", 1, "--save", tmp_path / "m", "--json")
    assert run(*first, "--epochs", 1).exit_code == 0
    done = run(*first, "--epochs", 3, "--resume", tmp_path / "m")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["words"] == 48_000, "what was missing"


def test_a_run_that_goes_on_with_another_text_says_so_and_counts_what_it_reads(saved, text, tmp_path):
    shorter = tmp_path / "shorter.txt"
    shorter.write_text("".join(text.read_text().splitlines(keepends=True)[:500]) + "words that are unknown\n")
    words = ("--save", tmp_path / "m", "--epochs", 5, "--resume", saved, "--json")
    done = run("train", "--text", shorter, *SMALL, *words)
    assert done.exit_code == 0, done.output
    assert "another text: it has 6,004 words, and the checkpoint's vocabulary was counted in 24,000" in " ".join(
        done.output.split()
    )
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["words"], summary["trained"]) == (2 * 6004, 2 * 6000)
    assert summary["words_per_s"] == pytest.approx(2 * 6004 / summary["seconds"])


def test_what_a_checkpoint_within_an_epoch_is_not_resumed_with(text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(text.read_text())
    saved = run(
        "train", "--text", text, *SMALL, "--epochs", 1, "--save", tmp_path / "m", "--save-every", 40, "--threads", 1
    )
    assert saved.exit_code == 0, saved.output
    within = next((tmp_path / "m").glob("step-*40"))
    again = run("train", "--text", other, *SMALL, "--epochs", 1, "--resume", within, "--save", tmp_path / "n")
    said = " ".join(again.output.split())
    assert "begin the epoch anew: resume a checkpoint of an epoch's end" in said
    facts = RunFacts(step=1, positions={"0": {"at": 1}}, extra={})
    with pytest.raises(CheckpointError, match=r"do not fit 2: .* \(`sparsefleet train --leases`, or open_reader"):
        TrainingState.from_facts(facts, 0, 2)


def test_resume_auto_begins_and_goes_on(shell: CommandLine, text: Path) -> None:
    begin = ("word2vec", "train", "--text", text, *SMALL, "--resume", "auto", "--min-count", 3)
    train = (*begin, "--save", "m")
    first = shell.result(*train, "--epochs", 1)
    assert first["words"] == 24_000
    more = shell.run(*train, "--epochs", 2, "--json")
    assert json.loads(more.stdout.splitlines()[-1])["words"] == 24_000, "what was missing"
    assert "goes on from" in more.stderr
    assert "another text" not in more.stderr
    assert "of an earlier run" not in more.stderr
    job = ("--servers", 1, "--workers", 2, "--mode", "geo", "--k-steps", 10)
    assert shell.result(*train, "--epochs", 3, *job)["words"] == 24_000
    begun = shell.result(*begin, "--save", "n", "--epochs", 1, *job)
    assert (begun["words"], begun["trainers"]) == (24_000, 2), "where there is nothing to go on from"


@pytest.mark.parametrize(
    "mode",
    [*(pytest.param(mode, marks=pytest.mark.slow) for mode in ("sync", "half_async", "async")), "geo"],
)
def test_two_servers_and_two_trainers(shell: CommandLine, text: Path, mode: str) -> None:
    job = ("--servers", 2, "--workers", 2, "--mode", mode, *(("--k-steps", 10) if mode == "geo" else ()))
    result = shell.result("word2vec", "train", "--text", text, *SMALL, "--epochs", 3, "--save", "model", *job)
    assert shell.left() == []
    assert (result["trainers"], result["words"], result["trained"]) == (2, 72_000, 72_000)
    topics = {word: name for name, words in TOPICS.items() for word in words}
    vectors = WordVectors.load(shell.folder / "model")
    near = [topics[other] == topics[word] for word in topics for other, _ in vectors.neighbours(word, 3)]
    assert sum(near) / len(near) > 0.9
    if mode == "async":  # what many have trained, one goes on with, in its own mode and vocabulary
        more = shell.result(
            "word2vec", "train", "--text", text, *SMALL, "--epochs", 4, "--save", "more", "--resume", "model"
        )
        assert more["words"] == 24_000
