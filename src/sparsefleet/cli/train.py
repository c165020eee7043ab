"""`sparsefleet train`: CTR-DNN from files to a checkpoint, without a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from sparsefleet import optim
from sparsefleet.cli.console import console, errors_to_exit, sigterm_interrupts
from sparsefleet.cli.reading import ReadingOptions, schema_for, tell_skipped
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.initializer import Uniform
from sparsefleet.core.schema import Schema
from sparsefleet.models import CTRDNN, PRESETS, CTRDNNConfig
from sparsefleet.optim.base import UpdateRule
from sparsefleet.optim.schedule import Constant, ExponentialDecay, LinearWarmup, Schedule
from sparsefleet.train import FitResult, SavePolicy, Trainer
from sparsefleet.train.reporting import JsonLinesReporter, Reporter, TensorBoardReporter, console_reporter
from sparsefleet.train.reporting.jsonl import plain_numbers

DATA, MODEL, TRAINING, SAVING, OUTPUT = "Data", "Model", "Training", "Saving", "Output"


@errors_to_exit
def train(
    data: Annotated[str, typer.Option(help="Training files: a folder, a file or a pattern.", rich_help_panel=DATA)],
    test_data: Annotated[
        str | None, typer.Option(help="Rows to score after each epoch.", rich_help_panel=DATA)
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Schema file; default: schema.json beside the data, else Criteo's.", rich_help_panel=DATA)
    ] = None,
    reader: Annotated[str, typer.Option(help="queue, memory, pyreader or feeder.", rich_help_panel=DATA)] = "queue",
    format: Annotated[
        str, typer.Option(help="auto, criteo, multislot or parquet.", rich_help_panel=DATA)
    ] = "auto",
    pipe_command: Annotated[
        str | None, typer.Option(help="Shell command that turns a file (its stdin) into MultiSlot text.", rich_help_panel=DATA)
    ] = None,
    on_bad_row: Annotated[
        str, typer.Option(help="error: stop at a row that does not parse; skip: count it and go on.", rich_help_panel=DATA)
    ] = "error",
    preset: Annotated[
        str, typer.Option(help="default, or paddle: the reference's settings to the letter.", rich_help_panel=MODEL)
    ] = "default",
    embedding_size: Annotated[int | None, typer.Option(help="Values in a row of the table.", rich_help_panel=MODEL)] = None,
    hidden: Annotated[str | None, typer.Option(help="Widths of the relu layers, such as 400,400,400.", rich_help_panel=MODEL)] = None,
    init_range: Annotated[
        float | None, typer.Option(help="New rows are uniform in [-R, R).", rich_help_panel=MODEL)
    ] = None,
    sparse_feature_dim: Annotated[
        int | None, typer.Option(help="Fold keys into this many rows; 0 keeps all 64 bits.", rich_help_panel=MODEL)
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.", rich_help_panel=TRAINING)] = 1,
    batch_size: Annotated[int, typer.Option(help="Rows in a batch.", rich_help_panel=TRAINING)] = 1000,
    threads: Annotated[
        int, typer.Option(help="Training threads (Hogwild), each with its reader thread.", rich_help_panel=TRAINING)
    ] = 2,
    optimizer: Annotated[
        str, typer.Option(help=f"{', '.join(optim.RULES)}.", rich_help_panel=TRAINING)
    ] = "adam",
    learning_rate: Annotated[
        float | None, typer.Option(help="Step size; default 1e-3 (preset paddle: 1e-4).", rich_help_panel=TRAINING)
    ] = None,
    lr_decay: Annotated[
        float | None, typer.Option(help="Multiply the learning rate by this every --lr-decay-steps.", rich_help_panel=TRAINING)
    ] = None,
    lr_decay_steps: Annotated[int, typer.Option(help="Steps between decays.", rich_help_panel=TRAINING)] = 1000,
    warmup_steps: Annotated[
        int, typer.Option(help="Raise the learning rate from zero over this many steps.", rich_help_panel=TRAINING)
    ] = 0,
    precision: Annotated[
        str, typer.Option(help="float32 or bf16, for the dense network.", rich_help_panel=TRAINING)
    ] = "float32",
    seed: Annotated[int, typer.Option(help="With --threads 1, the same seed gives the same bits.", rich_help_panel=TRAINING)] = 0,
    save: Annotated[
        str | None, typer.Option(help="Folder for checkpoints: one per epoch, and on Ctrl-C.", rich_help_panel=SAVING)
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(help="Also save after every so many batches.", rich_help_panel=SAVING)
    ] = None,
    keep: Annotated[int, typer.Option(help="Checkpoints that stay in the folder.", rich_help_panel=SAVING)] = 3,
    resume: Annotated[
        str | None, typer.Option(help="Go on from a checkpoint, or from the newest one of a folder.", rich_help_panel=SAVING)
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="The last line on stdout is one JSON object.", rich_help_panel=OUTPUT)
    ] = False,
    log_dir: Annotated[
        str | None, typer.Option(help="Folder for metrics.jsonl; default: the --save folder.", rich_help_panel=OUTPUT)
    ] = None,
    tensorboard: Annotated[
        str | None, typer.Option(help="Folder for TensorBoard (needs the tensorboard extra).", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Train CTR-DNN, evaluate it, save it."""
    rows = schema_for(data, schema, sparse_feature_dim)
    reading = ReadingOptions(reader, format, pipe_command, batch_size, on_bad_row, threads)
    rule = _rule(optimizer, learning_rate, preset, lr_decay, lr_decay_steps, warmup_steps)
    torch.manual_seed(seed)
    model = _model(rows, preset, embedding_size, hidden, init_range)
    policy = SavePolicy(save, every_steps=save_every, keep=keep) if save else None
    if save_every and not save:
        raise ConfigError("--save-every needs --save FOLDER")
    reporters: list[Reporter] = [console_reporter(console)]
    if log_dir or save:
        reporters.append(JsonLinesReporter(log_dir or str(save)))
    if tensorboard:
        reporters.append(TensorBoardReporter(tensorboard))
    trainer = Trainer(rule, threads=threads, precision=precision, seed=seed, reporters=reporters)
    train_rows = reading.open(data, rows)
    test_rows = reading.open(test_data, rows) if test_data else None
    with sigterm_interrupts():
        result = trainer.fit(model, train_rows, epochs, test=test_rows, save=policy, resume=resume)
    _tell(result, data)
    if json_output:
        print(json.dumps(plain_numbers(_summary(result))))


def _model(
    schema: Schema, preset: str, embedding_size: int | None, hidden: str | None, init_range: float | None
) -> CTRDNN:
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: choose {' or '.join(PRESETS)}")
    base = PRESETS[preset]
    try:
        widths = tuple(int(width) for width in hidden.split(",")) if hidden else base.hidden
    except ValueError:
        raise ConfigError(f"--hidden {hidden}: give widths separated by commas, such as 400,400,400") from None
    config = CTRDNNConfig(
        embedding_size=base.embedding_size if embedding_size is None else embedding_size,
        hidden=widths,
        initializer=base.initializer if init_range is None else Uniform(-init_range, init_range),
    )
    return CTRDNN(schema.slot_names, len(schema.dense), config)


def _rule(
    name: str, rate: float | None, preset: str, decay: float | None, decay_steps: int, warmup: int
) -> UpdateRule:
    schedule: Schedule = Constant() if decay is None else ExponentialDecay(decay_steps, decay)
    if warmup:
        schedule = LinearWarmup(warmup, schedule)
    default = 1e-4 if preset == "paddle" else 1e-3
    return optim.by_name(name, default if rate is None else rate, schedule=schedule)


def _summary(result: FitResult) -> dict[str, object]:
    summary: dict[str, object] = {f"train_{name}": value for name, value in result.train.items() if name != "rows"}
    for name, value in (result.test or {}).items():
        summary[f"test_{name}"] = value
    return {
        **summary,
        "rows": result.rows,
        "steps": result.steps,
        "seconds": result.seconds,
        "samples_per_s": result.samples_per_s,
        "skipped": sum(result.skipped.values()),
        "model": result.checkpoint,
    }


def _tell(result: FitResult, data: str) -> None:
    """The end of a run, for people."""
    if result.skipped:
        console.print(f"[yellow]{tell_skipped(dict(result.skipped))}[/]")
    if result.test:
        best = _best_possible(Path(data))
        beside = f"   best possible {best:.4f}" if best else ""
        console.print(f"[bold]test AUC {result.test['auc']:.4f}[/]{beside}")
    if result.checkpoint:
        console.print(f"[bold]model[/] {result.checkpoint}")


def _best_possible(data: Path) -> float | None:
    """What `sparsefleet data synth` says of its own test rows."""
    for place in (data, data.parent):
        try:
            return float(json.loads((place / "synth.json").read_text())["best_auc"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
