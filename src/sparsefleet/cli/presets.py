"""Presets of `sparsefleet train`: options by name, plain data. What the command line says comes before a preset's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.markup import escape

from sparsefleet.cli.console import errors_to_exit, say
from sparsefleet.core.errors import ConfigError


@dataclass(frozen=True)
class Preset:
    line: str
    """For the help text."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the command's options, by parameter name."""
    besides: str = ""
    """What belongs to it that is no option: of the data, or of the network."""


PRESETS: Mapping[str, Preset] = {
    "default": Preset("what learns well (docs/defaults.md)"),
    "paddle": Preset("the reference's settings to the letter"),  # its parts: models/ctr_dnn.py and train_parts.rule
    "bars-criteo-x4": Preset(
        "DNN on Criteo_x4 as in BARS, published AUC .8140",
        {
            "model_name": "dnn",
            "settings": ["dropout=0.2"],
            "embedding_size": 16,
            "hidden": "1000,1000,1000,1000,1000",
            "init_range": 1.7e-4,  # as spread as BARS's normal of 1e-4
            "batch_size": 10_000,
            "optimizer": "adam",
            "learning_rate": 1e-3,
            "l2": 1e-5,
            "exact": True,
            "clip_norm": 10.0,
            "threads": 1,  # each batch of 10,000 is one update
            "plateau_factor": 0.1,  # with validation data: at each epoch that is not better
            "plateau_patience": 1,
            "patience": 2,
            "epochs": 100,  # at most: patience ends it
        },
        "--valid-data, by which the learning rate falls and training ends (without it, 100 epochs); data split "
        "8:1:1, rare values (below 10) taken as one, numbers as categories floor(ln(x)^2)",
    ),
}


def preset_help() -> str:
    """What each is, in one sentence for --preset."""
    return "; ".join(f"{name}: {preset.line}" for name, preset in PRESETS.items()) + "."


@errors_to_exit
def use_preset(context: typer.Context, name: str) -> str:
    """The preset's options become this command's defaults; called before the other options are read."""
    if name not in PRESETS:
        raise ConfigError(f"--preset {name}: choose {', '.join(PRESETS)}")
    preset = PRESETS[name]
    if preset.besides:
        say(f"preset {name}: to it belong also {escape(preset.besides)}")
    # What the command already goes by, as from a file of settings, comes before a preset.
    context.default_map = {**preset.options, **(context.default_map or {})}
    return name
