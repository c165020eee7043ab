"""`sparsefleet train`: a model from files to a checkpoint, without a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sparsefleet import fleet, optim
from sparsefleet.cli import train_checks
from sparsefleet.cli.console import (
    LOG_SECONDS,
    add_figures,
    console,
    errors_to_exit,
    figures,
    say,
)
from sparsefleet.cli.presets import preset_help, use_preset
from sparsefleet.cli.reading import SCHEMA
from sparsefleet.cli.run_config import leave_config, read_config
from sparsefleet.cli.server_role import log_to_stderr, serve
from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.interrupts import sigterm_interrupts
from sparsefleet.data.formats import can_be_cut, format_help
from sparsefleet.fleet.roles import Role

if TYPE_CHECKING:
    from sparsefleet.data.base import Reader


def _panel(name: str) -> Callable[[str], Any]:
    """Options of one group of the help text."""
    return lambda text: typer.Option(help=text, rich_help_panel=name)


_data, _model, _training = _panel("Data"), _panel("Model"), _panel("Training")
_saving, _output, _many = _panel("Saving"), _panel("Output"), _panel("Many processes")
_ray = _panel("Where processes run")
_USUAL = fleet.DistributedStrategy()


@errors_to_exit
def train(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with any of these options by its long name, such as epochs = 3; what stands on the "
            "command line counts first. A run leaves such a file in its --save folder, run.toml.",
            is_eager=True,
            callback=read_config,
        ),
    ] = None,
    data: Annotated[str, _data("Training files: a folder, a file or a pattern.")],
    test_data: Annotated[str | None, _data("Rows to score after each epoch.")] = None,
    valid_data: Annotated[
        str | None,
        _data("Rows to score after each epoch, and to decide by: which checkpoint is the best one, when to stop."),
    ] = None,
    schema: Annotated[str | None, _data(SCHEMA)] = None,
    reader: Annotated[str, _data("queue, memory, pyreader or feeder.")] = "queue",
    format: Annotated[str, _data(format_help())] = "auto",
    shuffle: Annotated[
        bool, _data("Give each epoch's rows in an order of its own, drawn from --seed; needs --reader memory.")
    ] = False,
    pipe_command: Annotated[
        str | None, _data("Shell command that turns a file (its stdin) into MultiSlot text.")
    ] = None,
    on_bad_row: Annotated[str, _data("error: stop at a row that does not parse; skip: count it and go on.")] = "error",
    model_name: Annotated[
        str,
        typer.Option(
            "--model",
            help="A name that `sparsefleet models` lists, or your own class: my_model.py:MyNet, package.module:MyNet.",
            rich_help_panel="Model",
        ),
    ] = "ctr_dnn",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of the model, name=value, such as dropout=0.1 (`sparsefleet models` tells them); may be "
            "given several times.",
            rich_help_panel="Model",
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help=preset_help(), rich_help_panel="Model", is_eager=True, callback=use_preset)
    ] = "default",
    embedding_size: Annotated[int | None, _model("Values in a row of the table.")] = None,
    hidden: Annotated[str | None, _model("Widths of the relu layers, such as 400,400,400.")] = None,
    init_range: Annotated[float | None, _model("New rows are uniform in [-R, R).")] = None,
    sparse_feature_dim: Annotated[int | None, _model("Fold keys into this many rows; 0 keeps all 64 bits.")] = None,
    epochs: Annotated[int, _training("Passes over the data; of a run that is resumed, since its beginning.")] = 1,
    batch_size: Annotated[int, _training("Rows in a batch.")] = 1000,
    threads: Annotated[
        int | None,
        _training("Training threads (Hogwild) of a process, each with its reader thread; default 2, with workers 1."),
    ] = None,
    optimizer: Annotated[str, _training(f"{', '.join(optim.RULES)}.")] = "adam",
    learning_rate: Annotated[
        float | None,
        _training(
            f"Step size; default 1e-3; for sgd {optim.SGD_RATE} divided by the rows that an update sums over (the "
            f"batch), at most {optim.SGD_MOST:g}; preset paddle: 1e-4."
        ),
    ] = None,
    lr_decay: Annotated[float | None, _training("Multiply the learning rate by this every --lr-decay-steps.")] = None,
    lr_decay_steps: Annotated[int, _training("Steps between decays.")] = 1000,
    l2: Annotated[
        float,
        _training(
            "L2 on embeddings, as weight_decay on the mean of a batch's losses: half of it times the sum of squares. "
            "Only rows of the batch, unless --exact."
        ),
    ] = 0.0,
    exact: Annotated[
        bool,
        _training(
            "Every step moves every row of the tables, by L2 and by Adam's momentum, as a dense optimizer does; rows "
            "are caught up when they are read. Not in mode geo, not with ftrl."
        ),
    ] = False,
    clip_norm: Annotated[
        float | None,
        _training(
            "Scale a step's gradients down to this norm, of all gradients of the mean loss together; 0: never. In mode "
            "sync a step is of all trainers, in half_async of a trainer's threads, else of one batch."
        ),
    ] = None,
    warmup_steps: Annotated[int, _training("Raise the learning rate from zero over this many steps.")] = 0,
    watch: Annotated[
        str,
        _training(
            "The metric of --valid-data that says which epoch is better: auc, accuracy, logloss, normalized_entropy, "
            "gauc; of a further label its own, such as buy_auc."
        ),
    ] = "auc",
    patience: Annotated[
        int | None, _training("Stop after so many epochs in a row that were not better than the best one.")
    ] = None,
    min_delta: Annotated[float, _training("An epoch is better where --watch is by more than this.")] = 0.0,
    plateau_factor: Annotated[
        float | None,
        _training("Multiply the learning rate by this after --plateau-patience epochs in a row that were not better."),
    ] = None,
    plateau_patience: Annotated[int, _training("Epochs that are not better before the learning rate drops.")] = 1,
    precision: Annotated[str, _training("float32 or bf16, for the dense network.")] = "float32",
    seed: Annotated[int, _training("With --threads 1, the same seed gives the same bits.")] = 0,
    save: Annotated[str | None, _saving("Folder for checkpoints: one per epoch, and on Ctrl-C.")] = None,
    save_every: Annotated[int | None, _saving("Also save after every so many batches (of the first worker).")] = None,
    keep: Annotated[int, _saving("Checkpoints that stay in the folder.")] = 3,
    resume: Annotated[
        str | None,
        _saving(
            "Go on from a checkpoint, or from the newest one of a folder; auto: from the newest one of the --save "
            "folder, or begin where there is none, so that the same command may be started again at any time."
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        _saving(
            "Begin a new run with what fits of a checkpoint, or of a folder's best one: new data, all epochs, slots "
            "or layers more than it had."
        ),
    ] = None,
    fresh_optimizer: Annotated[
        bool, _saving("With --start-from: take values only, and let the optimizer begin without state.")
    ] = False,
    launched: Annotated[bool, typer.Option("--launched", hidden=True)] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="The last line on stdout is one JSON object.", rich_help_panel="Output")
    ] = False,
    log_dir: Annotated[
        str | None,
        _output("Folder for metrics.jsonl (default: the --save folder) and for the logs of all processes (log)."),
    ] = None,
    profile: Annotated[
        bool, _output("After training, tell where the time of a step went (docs/tuning.md says what to do about it).")
    ] = False,
    tensorboard: Annotated[str | None, _output("Folder for TensorBoard (needs the tensorboard extra).")] = None,
    servers: Annotated[int | None, _many("Parameter servers to start on this host; with --workers.")] = None,
    workers: Annotated[int | None, _many("Trainers to start on this host; with --servers.")] = None,
    on: Annotated[
        str, _ray("local: servers and workers are processes of this host; ray: of a Ray cluster (docs/clusters.md).")
    ] = "local",
    server_cpus: Annotated[float | None, _ray("Processors that each server asks for; default 1.")] = None,
    worker_cpus: Annotated[float | None, _ray("Processors that each worker asks for; default: its --threads.")] = None,
    server_memory: Annotated[str | None, _ray("Memory that each server asks for, such as 2G; default 1G.")] = None,
    worker_memory: Annotated[str | None, _ray("Memory that each worker asks for; default 1G.")] = None,
    mode: Annotated[
        str, _many("sync, half_async, async or geo: how trainers work together (docs/distributed.md).")
    ] = "async",
    k_steps: Annotated[int, _many("geo: steps between two exchanges.")] = _USUAL.k_steps,
    max_merge: Annotated[int, _many("async: steps merged into one message.")] = _USUAL.max_merge,
    send_queue_size: Annotated[int, _many("async: steps that may wait to be sent.")] = _USUAL.send_queue_size,
    staleness: Annotated[int | None, _many("async: a thread waits when so many of its steps are not applied.")] = None,
    dense_refresh: Annotated[
        int, _many("async: messages between two reads of the dense parameters.")
    ] = _USUAL.dense_refresh,
    dense_wire: Annotated[
        str,
        _many("float32, bfloat16 or int8: how dense parameters travel (not geo); fewer bits for a slow network."),
    ] = _USUAL.dense_wire,
    timeout: Annotated[
        float, _many("Seconds without a sign of life after which a process counts as lost.")
    ] = _USUAL.timeout,
    connect_timeout: Annotated[
        float,
        _many(
            "Seconds that trainers wait for servers to come up, and the job, once the first trainer has come, for the "
            "others. Give all processes the same; more where nodes are made and images pulled first (docs/clusters.md)."
        ),
    ] = _USUAL.connect_timeout,
    leases: Annotated[
        bool | None,
        typer.Option(
            "--leases/--no-leases",
            help="Hand the training files out in pieces as trainers ask for them, or in fixed shares. In pieces a fast "
            "one takes more, a lost one's go to the others, and a run is resumed on any number of trainers "
            "(docs/faults.md). Default: in pieces with --reader queue; the other readers have shares, and so has a run "
            "that goes on from a checkpoint that was cut within an epoch of shares.",
            rich_help_panel="Many processes",
            show_default=False,
        ),
    ] = None,
    elastic: Annotated[
        str | None,
        _many(
            "MIN:MAX: the job begins with --workers trainers, and goes on while so many are there: more may come and "
            "some may go at any time (docs/faults.md). Data is handed out by leases. With --restarts lost ones are "
            "started again."
        ),
    ] = None,
    restarts: Annotated[
        int,
        _many(
            "Losses within an hour that the job heals: a server or trainer that is killed or hangs is started again, "
            "and all go on from the last cut (docs/faults.md). 0: the first loss ends it, or a trainer is left out."
        ),
    ] = 0,
    cut_every: Annotated[
        float | None,
        _many(
            "With --restarts: seconds between cuts. Default: a hundred times as long as the last ones took, so that "
            "they take about 1 % of the time; 10 s to 30 minutes."
        ),
    ] = None,
    cuts: Annotated[
        str | None,
        _many(
            "With --restarts: where cuts go, a folder or a URI such as s3://bucket/job that every process sees. "
            "Default: the folder of logs."
        ),
    ] = None,
    lost_trainer: Annotated[
        str | None,
        _many(
            "error: the others stop; drop: they go on without a trainer that was killed or cut off; one that fails by "
            "an error of its own (bad row, NaN) always stops the job. Default: error in sync, else drop."
        ),
    ] = None,
) -> None:
    """Train a model, evaluate it, save it: in this process, or with --servers and --workers in many."""
    role = Role.from_environment()
    train_checks.check_counts(servers, workers, role)
    train_checks.check_regularisation(
        l2, exact, clip_norm, optimizer, mode, many=role.kind != "single" or bool(servers)
    )
    train_checks.check_place(context, on, many=bool(servers))
    strategy = fleet.DistributedStrategy(
        mode=mode, k_steps=k_steps, max_merge=max_merge, send_queue_size=send_queue_size, staleness=staleness,
        dense_refresh=dense_refresh, dense_wire=dense_wire, timeout=timeout, connect_timeout=connect_timeout,
        lost_trainer=lost_trainer,
    )  # fmt: skip
    train_checks.check_knobs(context, mode, alone=role.kind == "single" and not servers)
    if (restarts or cut_every is not None or cuts) and not servers and role.kind == "single":
        raise ConfigError("--restarts, --cut-every and --cuts are for many processes: give --servers and --workers too")
    bounds = Elastic.parse("--elastic", elastic) if elastic else role.elastic
    if elastic and workers:
        Elastic.parse("--elastic", elastic).check_start(workers)
    train_checks.check_leases(leases, reader, bounds, many=bool(servers) or role.kind != "single")
    if save_every is not None and not save:
        raise ConfigError("--save-every needs --save FOLDER")
    if save is not None:
        train_checks.check_folder("--save", save)
    train_checks.check_validation(context, valid_data)
    if shuffle and reader != "memory":
        raise ConfigError(f"--shuffle needs --reader memory; --reader {reader} gives rows in their order")
    if epochs < 1:
        raise ConfigError(f"--epochs {epochs} must be 1 or above; to score a saved model, there is sparsefleet infer")

    if role.is_server:
        serve(role, strategy)

    # Late imports: what is said above, and by --help, need not wait for torch; and servers do without it.
    import torch

    from sparsefleet import launch
    from sparsefleet.cli import train_parts, train_roles
    from sparsefleet.cli.reading import schema_for, tell_skipped
    from sparsefleet.data.files import list_files
    from sparsefleet.data.reading import ReadingOptions
    from sparsefleet.launch.on_ray.options import needs_of
    from sparsefleet.scoring.measuring import metrics_of
    from sparsefleet.train import SavePolicy, Trainer, Validation
    from sparsefleet.train.reporting.jsonl import plain_numbers
    from sparsefleet.train.reporting.tensorboard import writer_type

    alone = role.kind == "single" and not servers
    if threads is None:
        threads = 2 if alone else 1
    joint = train_parts.rows_of_an_update(
        batch_size, "" if alone else mode, threads, workers or role.worker_num, max_merge
    )
    rule = train_parts.rule(optimizer, learning_rate, preset, joint, lr_decay, lr_decay_steps, warmup_steps)
    if plateau_factor is not None:  # before the tables' own rule is made of it: their rate falls too
        rule = train_parts.lowered_on_plateaus(rule)
    summed = train_parts.summed_samples(
        optimizer, batch_size, mode, threads, workers or role.worker_num, 1 if alone else max_merge
    )
    rule, row_rule = train_parts.regularised(rule, l2, exact, summed)
    if clip_norm:
        strategy.clip_norm = clip_norm * summed
    validation = None
    if valid_data:
        validation = Validation(
            watch, patience, min_delta, plateau_factor=plateau_factor, plateau_patience=plateau_patience
        )
    fleet.init(role)
    job = fleet.distributed_optimizer(rule, strategy)
    rows = schema_for(data, schema, sparse_feature_dim)
    measured = metrics_of(rows)
    if validation is not None:
        validation = validation.decided(measured)  # here, not in the processes of a job, nor once the data is in memory
    trainer = Trainer(job, threads=threads, precision=precision, seed=seed, profile=profile, metrics=measured)
    torch.manual_seed(seed)
    model = train_parts.network(rows, preset, embedding_size, hidden, init_range, model_name, settings or ())
    train_parts.use_for_tables(model, row_rule)
    reading = ReadingOptions(reader, format, pipe_command, batch_size, on_bad_row, threads)
    policy = SavePolicy(save, every_steps=save_every, keep=keep) if save else None
    train_checks.check_start(start_from, fresh_optimizer, resume, save)
    if resume == "auto" and not save:
        raise ConfigError("--resume auto goes on from the checkpoints in the --save folder: give --save FOLDER")
    if role.is_first_worker and not launched:  # who started the job has said it
        train_checks.look_at_labels(model_name, model, rows.labels)
    if role.is_first_worker:
        begins_from = train_checks.goes_on_from(resume, save)
        if begins_from:
            train_checks.look_at_resumed(begins_from, epochs, mode, alone=alone)
        if save and role.kind == "single":
            train_checks.look_at_used_folder(save, begins_from)
    leased = not alone and train_checks.are_leased(leases, reader, bounds, resume, save, tell=role.is_first_worker)
    if servers and workers:
        # What only the processes would find out is found out before there are any.
        for path in filter(None, (data, test_data, valid_data)):
            reading.check(path, rows)
        train_roles.check_inputs([data, test_data, valid_data], workers, can_be_cut(format, pipe_command))
        if tensorboard:
            writer_type()
        folder = Path(log_dir or train_roles.LOG_FOLDER)
        needs = None
        if on == "ray":
            needs = needs_of(server_cpus, threads if worker_cpus is None else worker_cpus, server_memory, worker_memory)
        if save:
            leave_config(context, save)
        status, summary = train_roles.launch_roles(
            context,
            servers,
            workers,
            job.strategy,
            folder,
            # One answer for all, and for those that are started again when there are other checkpoints.
            more=["--launched", "--leases" if leased else "--no-leases"],
            on_ray=needs,
            restart=launch.RestartPolicy(restarts, cut_every=cut_every, cuts=cuts),
            elastic=bounds,
        )
        tell_end(summary, data, job=True)
        if json_output and summary:
            print(json.dumps(summary))
        raise typer.Exit(status)
    if role.kind != "single":
        log_to_stderr()
    with sigterm_interrupts():
        cuttable = can_be_cut(format, pipe_command)
        if leased:
            train_rows = replace(reading, leased=True).open(list_files(data), rows)
        else:
            train_rows = reading.open(train_roles.share(data, cuttable), rows, seed if shuffle else None)

        def scored(path: str | None) -> Reader | None:
            if path is None:
                return None
            if leased:  # as the training data: what a lost trainer has not scored, the others do
                return replace(reading, leased=True).open(list_files(path), rows)
            return reading.open(train_roles.share(path, cuttable), rows)

        test_rows, valid_rows = scored(test_data), scored(valid_data)
        # After the data: nothing is written for a run that cannot be.
        first = role.is_first_worker
        log_seconds = LOG_SECONDS if role.kind == "single" else train_roles.ROLE_LOG_SECONDS
        if save and first and not launched:
            leave_config(context, save)
        places = (log_dir or save, tensorboard) if first else (None, None)
        trainer.reporters = train_parts.reporters(log_seconds, *places)
        fleet.init_worker()
        result = trainer.fit(
            model, train_rows, epochs, test=test_rows, valid=valid_rows, validation=validation, save=policy,
            resume=resume, start_from=start_from, fresh_optimizer=fresh_optimizer,
        )  # fmt: skip
        test_skipped = test_rows.skipped() if test_rows else {}
        whole = train_roles.whole_job(trainer.crew, result)
        summary = plain_numbers({**train_parts.metrics(result, test_skipped), **whole})
        if leased:
            summary["leases"] = True
            summary["epoch_samples"] = result.epoch_samples
        fleet.stop_worker()
    tell_skipped(result.skipped, "the training data")
    tell_skipped(test_skipped, "the test data")
    tell_skipped(valid_rows.skipped() if valid_rows else {}, "the validation data")
    tell_end(summary, data, job=role.kind != "single")
    if json_output:
        print(json.dumps(summary))


def tell_end(summary: Mapping[str, Any], data: str, *, job: bool) -> None:
    """The end of a run, for people. job: of one with servers and trainers; one process has told its rows by epochs."""
    if job and summary.get("rows"):
        count = summary["trainers"]
        who = f"[bold]{count} trainers[/] together" if count > 1 else "[bold]1 trainer[/]"
        console.print(f"{who}: {summary['rows']:,} rows, {summary['samples_per_s']:,.0f} rows/s")
    for lost in summary.get("lost", ()):
        then = "others trained its pieces" if summary.get("leases") else "rows that it had not trained are missing"
        say(f"[yellow]without[/] {escape(lost)}: {then}")
    if summary.get("profile"):
        console.print(_profile_table(summary["profile"]))
    if summary.get("stopped"):
        say(f"[bold]stopped early[/]: {escape(str(summary['stopped']))}")
    if found := summary.get("best"):
        tested = found.get("test") or {}
        beside = f", test AUC {tested['auc']:.4f}" if tested.get("auc") is not None else ""
        what = f"{escape(found['metric'])} {found['value']:.5f}"
        say(f"[bold]best[/] validation {what}, after epoch {found['epoch']}{beside}")
    if summary.get("test_auc") is not None:
        best = _best_possible(Path(data))
        beside = f"   best possible {best:.4f}" if best else ""
        console.print(f"[bold]test AUC {summary['test_auc']:.4f}[/]{beside}")
    if summary.get("model"):
        say(f"[bold]model[/] {escape(str(summary['model']))}")


def _profile_table(profile: Mapping[str, Any]) -> Table:
    from sparsefleet.train.profile import PARTS

    table = figures("part of a step", ">ms", ">%", "what happens there")
    for part, spent in profile["parts"].items():
        add_figures(table, part, f"{spent['ms']:.3f}", f"{spent['percent']:.1f}", PARTS.get(part, ""))
    mean = f"mean of {profile['steps']:,} steps, threads: {profile['threads']}"
    add_figures(table, "all", f"{profile['ms_per_step']:.3f}", "100.0", mean)
    return table


def _best_possible(data: Path) -> float | None:
    """What `sparsefleet data synth` says of its own test rows."""
    for place in (data, data.parent):
        try:
            return float(json.loads((place / "synth.json").read_text())["best_auc"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
