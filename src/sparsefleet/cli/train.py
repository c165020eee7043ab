"""`sparsefleet train`: CTR-DNN from files to a checkpoint, without a script."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape

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


def _panel(name: str) -> Callable[[str], Any]:
    """Options of one group of the help text."""
    return lambda text: typer.Option(help=text, rich_help_panel=name)


_data, _model, _training = _panel("Data"), _panel("Model"), _panel("Training")
_saving, _output = _panel("Saving"), _panel("Output")


@errors_to_exit
def train(
    data: Annotated[str, _data("Training files: a folder, a file or a pattern.")],
    test_data: Annotated[str | None, _data("Rows to score after each epoch.")] = None,
    schema: Annotated[str | None, _data("Schema file; default: schema.json beside the data, else Criteo's.")] = None,
    reader: Annotated[str, _data("queue, memory, pyreader or feeder.")] = "queue",
    format: Annotated[str, _data("auto, criteo, multislot or parquet.")] = "auto",
    shuffle: Annotated[
        bool, _data("Give each epoch's rows in an order of its own, drawn from --seed; needs --reader memory.")
    ] = False,
    pipe_command: Annotated[
        str | None, _data("Shell command that turns a file (its stdin) into MultiSlot text.")
    ] = None,
    on_bad_row: Annotated[str, _data("error: stop at a row that does not parse; skip: count it and go on.")] = "error",
    preset: Annotated[str, _model("default, or paddle: the reference's settings to the letter.")] = "default",
    embedding_size: Annotated[int | None, _model("Values in a row of the table.")] = None,
    hidden: Annotated[str | None, _model("Widths of the relu layers, such as 400,400,400.")] = None,
    init_range: Annotated[float | None, _model("New rows are uniform in [-R, R).")] = None,
    sparse_feature_dim: Annotated[int | None, _model("Fold keys into this many rows; 0 keeps all 64 bits.")] = None,
    epochs: Annotated[int, _training("Passes over the data.")] = 1,
    batch_size: Annotated[int, _training("Rows in a batch.")] = 1000,
    threads: Annotated[int, _training("Training threads (Hogwild), each with its reader thread.")] = 2,
    optimizer: Annotated[str, _training(f"{', '.join(optim.RULES)}.")] = "adam",
    learning_rate: Annotated[float | None, _training("Step size; default 1e-3 (preset paddle: 1e-4).")] = None,
    lr_decay: Annotated[float | None, _training("Multiply the learning rate by this every --lr-decay-steps.")] = None,
    lr_decay_steps: Annotated[int, _training("Steps between decays.")] = 1000,
    warmup_steps: Annotated[int, _training("Raise the learning rate from zero over this many steps.")] = 0,
    precision: Annotated[str, _training("float32 or bf16, for the dense network.")] = "float32",
    seed: Annotated[int, _training("With --threads 1, the same seed gives the same bits.")] = 0,
    save: Annotated[str | None, _saving("Folder for checkpoints: one per epoch, and on Ctrl-C.")] = None,
    save_every: Annotated[int | None, _saving("Also save after every so many batches.")] = None,
    keep: Annotated[int, _saving("Checkpoints that stay in the folder.")] = 3,
    resume: Annotated[str | None, _saving("Go on from a checkpoint, or from the newest one of a folder.")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="The last line on stdout is one JSON object.", rich_help_panel="Output")
    ] = False,
    log_dir: Annotated[str | None, _output("Folder for metrics.jsonl; default: the --save folder.")] = None,
    tensorboard: Annotated[str | None, _output("Folder for TensorBoard (needs the tensorboard extra).")] = None,
) -> None:
    """Train CTR-DNN, evaluate it, save it."""
    if save_every is not None and not save:
        raise ConfigError("--save-every needs --save FOLDER")
    if shuffle and reader != "memory":
        raise ConfigError(f"--shuffle needs --reader memory; --reader {reader} gives rows in their order")
    rows = schema_for(data, schema, sparse_feature_dim)
    reading = ReadingOptions(reader, format, pipe_command, batch_size, on_bad_row, threads)
    rule = _rule(optimizer, learning_rate, preset, lr_decay, lr_decay_steps, warmup_steps)
    trainer = Trainer(rule, threads=threads, precision=precision, seed=seed)
    torch.manual_seed(seed)
    model = _network(rows, preset, embedding_size, hidden, init_range)
    policy = SavePolicy(save, every_steps=save_every, keep=keep) if save else None
    with sigterm_interrupts():
        train_rows = reading.open(data, rows, seed if shuffle else None)
        test_rows = reading.open(test_data, rows) if test_data else None
        # After the data: nothing is written for a run that cannot be.
        trainer.reporters = _reporters(log_dir or save, tensorboard)
        result = trainer.fit(model, train_rows, epochs, test=test_rows, save=policy, resume=resume)
    test_skipped = test_rows.skipped() if test_rows else {}
    _tell(result, data, test_skipped)
    if json_output:
        print(json.dumps(plain_numbers(_summary(result, test_skipped))))


def _reporters(metrics: str | None, tensorboard: str | None) -> tuple[Reporter, ...]:
    reporters: list[Reporter] = [console_reporter(console)]
    if metrics:
        reporters.append(JsonLinesReporter(metrics))
    if tensorboard:
        reporters.append(TensorBoardReporter(tensorboard))
    return tuple(reporters)


def _network(
    schema: Schema, preset: str, embedding_size: int | None, hidden: str | None, init_range: float | None
) -> CTRDNN:
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: choose {' or '.join(PRESETS)}")
    base = PRESETS[preset]
    try:
        widths = tuple(int(width) for width in hidden.split(",")) if hidden else base.hidden
    except ValueError:
        raise ConfigError(f"--hidden {hidden}: give widths separated by commas, such as 400,400,400") from None
    if init_range is not None and not 0 <= init_range < math.inf:
        raise ConfigError(f"--init-range {init_range}: give a number, 0 or above")
    config = CTRDNNConfig(
        embedding_size=base.embedding_size if embedding_size is None else embedding_size,
        hidden=widths,
        initializer=base.initializer if init_range is None else Uniform(-init_range, init_range),
    )
    return CTRDNN(schema.slot_names, len(schema.dense), config)


def _rule(name: str, rate: float | None, preset: str, decay: float | None, decay_steps: int, warmup: int) -> UpdateRule:
    schedule: Schedule = Constant() if decay is None else ExponentialDecay(decay_steps, decay)
    if warmup:
        schedule = LinearWarmup(warmup, schedule)
    default = 1e-4 if preset == "paddle" else 1e-3
    return optim.by_name(name, default if rate is None else rate, schedule=schedule)


def _summary(result: FitResult, test_skipped: Mapping[str, int]) -> dict[str, object]:
    summary: dict[str, object] = {f"train_{name}": value for name, value in result.train.items() if name != "rows"}
    for name, value in (result.test or {}).items():
        summary[f"test_{name}"] = value
    return {
        **summary,
        "rows": result.rows,
        "steps": result.steps,
        "seconds": result.seconds,
        "samples_per_s": result.samples_per_s,
        "skipped": dict(result.skipped),
        **({"test_skipped": dict(test_skipped)} if result.test else {}),
        "model": result.checkpoint,
    }


def _tell(result: FitResult, data: str, test_skipped: Mapping[str, int]) -> None:
    """The end of a run, for people."""
    tell_skipped(result.skipped, "the training data")
    tell_skipped(test_skipped, "the test data")
    if result.test:
        best = _best_possible(Path(data))
        beside = f"   best possible {best:.4f}" if best else ""
        console.print(f"[bold]test AUC {result.test['auc']:.4f}[/]{beside}")
    if result.checkpoint:
        console.print(f"[bold]model[/] {escape(result.checkpoint)}", soft_wrap=True)


def _best_possible(data: Path) -> float | None:
    """What `sparsefleet data synth` says of its own test rows."""
    for place in (data, data.parent):
        try:
            return float(json.loads((place / "synth.json").read_text())["best_auc"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
