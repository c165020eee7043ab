"""All commands in one place. Each is imported only where it is called for: torch alone takes seconds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

import typer

from sparsefleet import __version__

COMMANDS = {
    "data": "Make, prepare, fetch and look at data.",
    "train": "Train a model, evaluate it, save it: in this process, or with --servers and --workers in many.",
    "models": "List the models that `train --model` knows, with their settings.",
    "word2vec": "Train word vectors from text; look at them, judge them, export them.",
    "infer": "Score rows with a saved model, and measure it where rows have labels.",
    "importance": "Shuffle one slot or dense feature at a time, and tell how much AUC and log loss suffer.",
    "status": "Show tables, speed, latencies and trainers of a running job.",
    "scale": "Go on with more or fewer servers or trainers in a running job, without losing a sample.",
    "ray-metrics": "Show training figures on the Metrics page of Ray's dashboard, without Prometheus and Grafana.",
    "checkpoint": "Look into checkpoints, check them, compare them.",
    "export": "Make a bundle of a checkpoint: ONNX network, mapped rows, schema.",
    "publish": "Publish a bundle's rows to Redis, for `serve --sparse redis://…`.",
    "serve": "Serve predictions of a bundle: POST /v1/predict; GET /v1/model, /healthz, /readyz, /metrics.",
    "verify": "Compare a checkpoint with its bundle and whoever serves it: network, parameters, settings, scores.",
    "replay": "Send logged requests again and compare the scores; exit status 1 where they differ or a request fails.",
    "doctor": "Tell versions, processor, limits and speed of this machine; exit status 1 where something is broken.",
}
"""The first of each command's help. It stands in the module of its name, as `app` or as a function of that name."""


def application(words: Sequence[str]) -> typer.Typer:
    """What these words of a command line need: the command that they begin with, or only what there is."""
    return _application([name for name in words[:1] if name in COMMANDS])


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # With every command, for shells that complete words, and for tests.
    globals()["app"] = _application(COMMANDS)
    return globals()["app"]


def _application(imported: Collection[str]) -> typer.Typer:
    app = typer.Typer(
        name="sparsefleet",
        help="Train click-through-rate models with huge sparse embedding tables on CPU machines.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
    )
    app.callback(invoke_without_command=True)(_root)
    for name, text in COMMANDS.items():
        if name not in imported:
            app.command(name, help=text)(_not_imported)
            continue
        own = name.replace("-", "_")
        module: Any = import_module(f"sparsefleet.cli.{own}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, own))
    return app


def _not_imported() -> None:
    """Stands for a command in the list of all; it is called only where the command line begins with something else."""
    raise typer.BadParameter("a command comes first: sparsefleet COMMAND …")


def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit
