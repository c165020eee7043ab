"""`sparsefleet word2vec …`: word vectors from text, and what to do with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sparsefleet import fleet
from sparsefleet.cli import train_checks
from sparsefleet.cli.console import (
    LOG_SECONDS,
    add_figures,
    console,
    errors_to_exit,
    figures,
    progress,
    results,
    say,
)
from sparsefleet.cli.run_config import given
from sparsefleet.cli.server_role import log_to_stderr, serve
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.interrupts import sigterm_interrupts
from sparsefleet.fleet.roles import Role
from sparsefleet.word2vec.config import ASYNC_BATCH_WORDS, BATCH_WORDS, Word2VecConfig

if TYPE_CHECKING:
    from sparsefleet.train import FitResult, Trainer
    from sparsefleet.word2vec import Vocabulary
    from sparsefleet.word2vec.reporting import WordsReport

app = typer.Typer(help="Train word vectors from text; look at them, judge them, export them.", no_args_is_help=True)


def _panel(name: str) -> Callable[[str], Any]:
    """Options of one group of the help text."""
    return lambda text: typer.Option(help=text, rich_help_panel=name)


_text, _model, _training = _panel("Text"), _panel("Model"), _panel("Training")
_saving, _output, _many = _panel("Saving"), _panel("Output"), _panel("Many processes")
_USUAL, _WORDS = fleet.DistributedStrategy(), Word2VecConfig()
K_STEPS = 400
VOCABULARY_FILE = "vocabulary.txt"

Model = Annotated[str, typer.Argument(help="What `word2vec train --save` wrote: a checkpoint, or the folder.")]


@app.command("train")
@errors_to_exit
def train_command(
    context: typer.Context,
    text: Annotated[
        list[str], _text("Text: a file, a folder or a pattern, plain or gzip; may be given several times.")
    ],
    save: Annotated[str, _saving("Folder for checkpoints: one per epoch, and on Ctrl-C.")],
    min_count: Annotated[int, _text("Words that occur less often get no vector.")] = 5,
    vocabulary: Annotated[
        str | None, _text("Vocabulary file, a word and its count a line; default: the words of the text are counted.")
    ] = None,
    dim: Annotated[int, _model("Values of a word's vector.")] = _WORDS.dim,
    window: Annotated[int, _model("Words on each side, at most, that a word is predicted from.")] = _WORDS.window,
    negatives: Annotated[int, _model("Words drawn at random that each is told from.")] = _WORDS.negatives,
    shared_negatives: Annotated[
        int, _model("So many words, one behind the other, are told from the same negatives; more is faster.")
    ] = _WORDS.shared_negatives,
    subsample: Annotated[
        float, _model("Words above this share of the text are left out at random; 0: none.")
    ] = _WORDS.subsample,
    epochs: Annotated[int, _training("Passes over the text; of a run that is resumed, since its beginning.")] = 5,
    learning_rate: Annotated[
        float, _training("At the beginning; it falls in a straight line until the last epoch's end.")
    ] = _WORDS.learning_rate,
    min_learning_rate: Annotated[float, _training("At the last epoch's end.")] = _WORDS.min_learning_rate,
    batch_size: Annotated[
        int | None,
        _training(
            f"Words that a thread takes rows for at a time; default {BATCH_WORDS}, of trainers in mode async "
            f"{ASYNC_BATCH_WORDS}."
        ),
    ] = None,
    threads: Annotated[int | None, _training("Training threads of a process; default 2, with workers 1.")] = None,
    seed: Annotated[int, _training("With --threads 1, the same seed gives the same bits.")] = 0,
    save_every: Annotated[int | None, _saving("Also save after every so many batches (of the first worker).")] = None,
    keep: Annotated[int, _saving("Checkpoints that stay in the folder.")] = 3,
    resume: Annotated[
        str | None,
        _saving(
            "Go on from a checkpoint, or from the newest one of a folder, with its vocabulary; auto: from the newest "
            "one of the --save folder, or begin where there is none, so that the same command may be started again."
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="The last line on stdout is one JSON object.", rich_help_panel="Output")
    ] = False,
    log_dir: Annotated[str | None, _output("Folder for the logs of all processes (log).")] = None,
    servers: Annotated[int | None, _many("Parameter servers to start on this host; with --workers.")] = None,
    workers: Annotated[int | None, _many("Trainers to start on this host; with --servers.")] = None,
    mode: Annotated[
        str, _many("sync, half_async, async or geo: how trainers work together (docs/word2vec.md).")
    ] = "async",
    k_steps: Annotated[int, _many("geo: batches between two exchanges.")] = K_STEPS,
    max_merge: Annotated[int, _many("async: batches merged into one message.")] = _USUAL.max_merge,
    timeout: Annotated[
        float, _many("Seconds without a sign of life after which a process counts as lost.")
    ] = _USUAL.timeout,
    connect_timeout: Annotated[
        float, _many("Seconds that trainers wait for servers to come up, and the job for trainers that come late.")
    ] = _USUAL.connect_timeout,
    lost_trainer: Annotated[
        str | None, _many("error: the others stop; drop: they go on. Default: error in sync, else drop.")
    ] = None,
) -> None:
    """Train word vectors (skip-gram, negative sampling): in this process, or with --servers and --workers in many."""
    role = Role.from_environment()
    train_checks.check_counts(servers, workers, role)
    strategy = fleet.DistributedStrategy(
        mode=mode,
        k_steps=k_steps if mode == "geo" else _USUAL.k_steps,
        max_merge=max_merge,
        timeout=timeout,
        connect_timeout=connect_timeout,
        lost_trainer=lost_trainer,
    )
    train_checks.check_knobs(context, mode, alone=role.kind == "single" and not servers)
    train_checks.check_folder("--save", save)
    if epochs < 1:
        raise ConfigError(f"--epochs {epochs} must be 1 or above")
    _check_vocabulary(context, vocabulary, resume)
    config = Word2VecConfig(dim, window, negatives, shared_negatives, subsample, learning_rate, min_learning_rate, seed)

    if role.is_server:
        serve(role, strategy)

    # Late imports: what is said above, and by --help, need not wait for torch; and servers do without it.
    from sparsefleet import word2vec
    from sparsefleet.cli import train_roles
    from sparsefleet.train import SavePolicy, Trainer
    from sparsefleet.train.reporting import console_reporter
    from sparsefleet.word2vec.reporting import WordsReport
    from sparsefleet.word2vec.resume import check_resumed

    fleet.init(role)
    job = fleet.distributed_optimizer(word2vec.step_rule(), strategy)
    if role.kind != "single":
        log_to_stderr()
    files = word2vec.text_files(text)
    if threads is None:
        threads = 2 if role.kind == "single" and not workers else 1
    begins_from = train_checks.goes_on_from(resume, save)
    if begins_from:
        check_resumed(begins_from, config)
        if role.is_first_worker:
            alone = role.kind == "single" and not workers
            train_checks.look_at_resumed(begins_from, epochs, mode, alone=alone)
    if role.kind == "single":
        train_checks.look_at_used_folder(save, begins_from)
    if servers and workers:
        word2vec.share_text(files, 0, workers)
        folder = Path(log_dir or train_roles.LOG_FOLDER)
        # All trainers are to mean one checkpoint, or none; and whoever gets a vocabulary counts nothing.
        kept = ["resume", "min_count"]
        if begins_from:
            more = [f"--resume={begins_from}"]
            kept.append("vocabulary")
        else:
            more = [] if vocabulary else [_counted_once(files, min_count, folder)]
        status, summary = train_roles.launch_roles(
            *(context, servers, workers, job.strategy, folder),
            words=("word2vec", "train"),
            more=more,
            kept=kept,
        )
        _tell(summary)
        if json_output and summary:
            print(json.dumps(summary))
        raise typer.Exit(status)

    with sigterm_interrupts():
        if begins_from:
            known = word2vec.saved_vocabulary(begins_from)
        elif vocabulary:
            known = word2vec.Vocabulary.load(vocabulary)
        else:
            known = _count(files, min_count, threads)
        count = role.worker_num
        share = word2vec.share_text(files, max(role.index, 0) if count > 1 else 0, count)
        # A run may go on with another text than its vocabulary was counted in.
        words = _words_in(share, threads) if begins_from else known.text_words / count
        usual = ASYNC_BATCH_WORDS if role.kind != "single" and mode == "async" else BATCH_WORDS
        reader = word2vec.WordReader(
            share,
            known,
            config,
            epochs=epochs,
            batch_size=usual if batch_size is None else batch_size,
            threads=threads,
            words=words,
        )
        report = WordsReport(reader.words)
        log_seconds = LOG_SECONDS if role.kind == "single" else train_roles.ROLE_LOG_SECONDS
        reporters = (console_reporter(console, log_seconds, report.describe), report)
        trainer = Trainer(job, threads=threads, seed=seed, reporters=reporters)
        fleet.init_worker()
        if begins_from:
            _tell_another_text(trainer, words, known)
        policy = SavePolicy(save, every_steps=save_every, keep=keep)
        result = trainer.fit(word2vec.SkipGram(known, config), reader, epochs, save=policy, resume=begins_from)
        summary = _summary(trainer, result, known, report)
        fleet.stop_worker()
    _tell(summary)
    if json_output:
        print(json.dumps(summary))


def _check_vocabulary(context: typer.Context, vocabulary: str | None, resume: str | None) -> None:
    """Words come from one place: whoever names another one, or says how to count there, expects it to do something.

    With --resume auto it does, where the run begins; the command that begins it is the one that goes on with it.
    """
    resume = None if resume == "auto" else resume
    if resume and vocabulary:
        raise ConfigError(
            "--resume goes on with the vocabulary that lies in the checkpoint, so --vocabulary does nothing: leave it "
            "out; to train with another vocabulary, begin a new run without --resume"
        )
    if not given(context, "min_count"):
        return
    if resume:
        raise ConfigError(
            "--resume goes on with the vocabulary that lies in the checkpoint, so --min-count does nothing: leave it "
            "out; for other words, begin a new run without --resume"
        )
    if vocabulary:
        raise ConfigError(
            f"--vocabulary {vocabulary} says which words there are, so --min-count does nothing: leave it out, and "
            "take rare words out of the file; or leave out --vocabulary, and the words of the text are counted"
        )


def _count(files: list[str], min_count: int, threads: int) -> Vocabulary:
    from sparsefleet.word2vec import count_words

    with progress("counting words", "bytes") as told:
        known = count_words(files, min_count=min_count, threads=threads, progress=told)
    say(
        f"[bold]vocabulary[/] {len(known):,} words of {known.text_words:,} in the text; those that occur less than "
        f"{min_count} times are left out"
    )
    return known


def _words_in(files: list[str], threads: int) -> int:
    from sparsefleet.word2vec import words_in

    with progress("counting words", "bytes") as told:
        return words_in(files, threads=threads, progress=told)


def _tell_another_text(trainer: Trainer, words: float, known: Vocabulary) -> None:
    """Say so where the text is not the one that the checkpoint's vocabulary was counted in; all trainers call it."""
    text_words = round(sum(part["words"] for part in trainer.crew.reduce("text", {"words": words})))
    if text_words != known.text_words and trainer.crew.index == 0:
        say(
            f"[yellow]another text[/]: it has {text_words:,} words, and the checkpoint's vocabulary was counted in "
            f"{known.text_words:,}. Words that the vocabulary does not have get no vector; the rate falls over all "
            "--epochs as before"
        )


def _counted_once(files: list[str], min_count: int, folder: Path) -> str:
    """Count the words for all trainers: the option that tells them where the vocabulary is."""
    known = _count(files, min_count, 2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known.save(folder / VOCABULARY_FILE)
    except OSError as error:
        raise ConfigError(f"log_dir={str(folder)!r} cannot be used: {error.strerror}; give a folder") from None
    return f"--vocabulary={folder / VOCABULARY_FILE}"


def _summary(trainer: Trainer, result: FitResult, known: Vocabulary, report: WordsReport) -> dict[str, Any]:
    """Of the whole job; all trainers call it."""
    mine = {
        "words": report.words_done,
        "trained": result.rows,
        "seconds": result.seconds,
        "model": result.checkpoint,
        "loss": None if report.loss != report.loss else report.loss,
    }
    parts: list[Mapping[str, Any]] = trainer.crew.reduce("result", mine)
    words, seconds = sum(part["words"] for part in parts), max(part["seconds"] for part in parts)
    losses = [part["loss"] for part in parts if part["loss"] is not None]
    return {
        "vocabulary": len(known),
        "words": round(words),
        "trained": sum(part["trained"] for part in parts),
        "seconds": seconds,
        "words_per_s": words / seconds if seconds else 0.0,
        "loss": sum(losses) / len(losses) if losses else None,
        "steps": result.steps,
        "model": next((part["model"] for part in parts if part["model"]), None),
        "trainers": len(parts),
        "lost": trainer.crew.lost(),
    }


def _tell(summary: Mapping[str, Any]) -> None:
    """The end of a run, for people."""
    if not summary:
        return
    loss = "" if summary["loss"] is None else f"   loss {summary['loss']:.4f}"
    console.print(f"[bold]{summary['words']:,} words[/]  {summary['words_per_s']:,.0f} words/s{loss}")
    for lost in summary["lost"]:
        say(f"[yellow]without[/] {escape(lost)}: words that it had not trained are missing")
    if summary["model"]:
        say(f"[bold]model[/] {escape(str(summary['model']))}")


@app.command("eval")
@errors_to_exit
def eval_command(
    model: Model,
    questions: Annotated[str, typer.Option(help="Analogy questions, `a b c d` a line, sections `: name`.")],
    restrict: Annotated[int, typer.Option(help="Only so many of the most frequent words count.")] = 300_000,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Judge word vectors by analogy questions ("a is to b as c is to what?"), section by section."""
    from sparsefleet.word2vec import WordVectors, read_questions

    if restrict < 1:
        raise ConfigError(f"--restrict {restrict} must be 1 or above")
    sections = read_questions(questions)
    answered = WordVectors.load(model).analogies(sections, restricted=restrict)
    right, asked, skipped = (sum(getattr(each, name) for each in answered) for name in ("right", "asked", "skipped"))
    if not asked:
        raise ConfigError(
            f"none of the {skipped:,} questions in {questions} can be asked: each has a word that is not in the "
            "vocabulary; give questions in the language (and case) of the text, or train on more of it"
        )
    if json_output:
        told = [{"section": e.name, "right": e.right, "asked": e.asked, "skipped": e.skipped} for e in answered]
        whole = {"accuracy": right / asked, "right": right, "asked": asked, "skipped": skipped, "sections": told}
        print(json.dumps(whole))
        return
    table = figures("section", ">right", ">asked", ">%", ">skipped")
    for each in answered:
        share = f"{100 * each.accuracy:.1f}" if each.asked else "-"
        add_figures(table, each.name, f"{each.right:,}", f"{each.asked:,}", share, f"{each.skipped:,}")
    add_figures(table, "all", f"{right:,}", f"{asked:,}", f"{100 * right / asked:.2f}", f"{skipped:,}")
    results().print(table)
    if skipped:
        say(f"{skipped:,} questions were skipped: a word of theirs is not in the vocabulary")


@app.command("neighbours")
@errors_to_exit
def neighbours_command(
    model: Model,
    word: Annotated[str, typer.Argument(help="A word of the vocabulary.")],
    count: Annotated[int, typer.Option(help="How many.")] = 10,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show the words whose vectors are nearest to a word's, with the cosine of the angle between them."""
    from sparsefleet.word2vec import WordVectors

    near = WordVectors.load(model).neighbours(word, count)
    if json_output:
        print(json.dumps({"word": word, "neighbours": near}, ensure_ascii=False))
        return
    table = figures("word", ">cosine")
    for other, cosine in near:
        add_figures(table, other, f"{cosine:.4f}")
    results().print(table)


@app.command("export")
@errors_to_exit
def export_command(
    model: Model,
    output: Annotated[str | None, typer.Option(help="File to write; default: standard output.")] = None,
    format: Annotated[
        str, typer.Option(help="word2vec: what the word2vec program writes, and gensim reads.")
    ] = "word2vec",
    binary: Annotated[bool, typer.Option("--binary", help="Values as float32, not as text.")] = False,
) -> None:
    """Write word vectors for other programs (gensim: KeyedVectors.load_word2vec_format)."""
    if format != "word2vec":
        raise ConfigError(f"--format {format} is not a format of word vectors; choose word2vec")

    if output is None and binary and sys.stdout.isatty():
        raise ConfigError("binary vectors would go to the terminal; give --output FILE, or redirect the output")

    from sparsefleet.word2vec import WordVectors

    vectors = WordVectors.load(model)
    if output is None:
        vectors.write(sys.stdout.buffer, binary=binary)
        return
    vectors.export(output, binary=binary)
    say(f"[bold]{len(vectors):,} vectors[/] of {vectors.dim} values: {escape(output)}")
