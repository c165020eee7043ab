"""parse_train_configs: the settings of a training script, from a file, the environment and the command line.

```
configs = X.parse_train_configs()
python ctr_app.py --lr 0.001 --batch_size 500         the command line comes first,
SPARSEFLEET_TRAIN_BATCH_SIZE=500 python ctr_app.py    then the environment,
python ctr_app.py --config train.toml                 then a TOML file (also SPARSEFLEET_TRAIN_CONFIG), then defaults
```
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sparsefleet.core.errors import ConfigError

PREFIX = "SPARSEFLEET_TRAIN_"
FILE = "CONFIG"


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class TrainConfigs:
    """What a script may want to know. Nothing here acts by itself: the script hands it on."""

    lr: float = _setting(1e-4, "learning rate")
    batch_size: int = _setting(1000, "samples in a batch")
    epochs: int = _setting(1, "passes over the data")
    threads: int = _setting(1, "training threads of each trainer")
    mode: str = _setting("async", "sync, half_async, async or geo")
    k_steps: int = _setting(2, "geo: steps between two exchanges")
    data: str = _setting("./train_data", "folder of training files")
    test_data: str = _setting("", "folder of test files; empty: none")
    model_path: str = _setting("", "where to save the model; empty: nowhere")
    init_model: str = _setting("", "checkpoint to start from; empty: none")

    def __post_init__(self) -> None:
        if not self.lr >= 0:
            raise ConfigError(f"lr={self.lr} must be 0 or above")
        for name in ("batch_size", "epochs", "threads", "k_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be 1 or above")
        if self.mode not in ("sync", "half_async", "async", "geo"):
            raise ConfigError(f"mode={self.mode!r} is not a mode; choose sync, half_async, async or geo")


_TYPES: Mapping[str, type] = {each.name: type(each.default) for each in fields(TrainConfigs)}


def parse_train_configs(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> TrainConfigs:
    """The settings of this script. Of one that stands in several places, the command line's counts, then the
    environment's, then the file's. `arguments`: those of the command line, unless told.
    """
    given = os.environ if environment is None else environment
    words = sys.argv[1:] if arguments is None else list(arguments)
    told = {name: value for name, value in vars(_parser().parse_args(words)).items() if value is not None}
    path = told.pop("config", None) or given.get(PREFIX + FILE)
    configs = TrainConfigs()
    for settings in (_of_file(path) if path else {}, _of_environment(given), told):
        configs = replace(configs, **settings)
    return configs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Settings of this training script.",
        epilog=f"Each may also be set in the environment, as {PREFIX}BATCH_SIZE, or in the TOML file of --config "
        f"({PREFIX}{FILE}): batch_size = 500. The command line counts before the environment, that before the file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file with any of these settings")
    for each in fields(TrainConfigs):
        kind = _TYPES[each.name]
        words = dict.fromkeys((f"--{each.name}", f"--{each.name.replace('_', '-')}"))
        shown = repr(each.default) if each.default != "" else "none"
        parser.add_argument(
            *words, dest=each.name, type=kind, metavar=kind.__name__.upper(), help=f"{each.metadata['help']} ({shown})"
        )
    return parser


def _of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    settings = {}
    for variable, text in environment.items():
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable == PREFIX + FILE:
            continue
        _check_known(variable, name)
        try:
            settings[name] = _TYPES[name](text)
        except ValueError:
            raise ConfigError(f"{variable}={text!r} must be {_a(name)}") from None
    return settings


def _of_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            read = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read: {error.strerror or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from None
    for name, value in read.items():
        _check_known(f"{path}: {name}", name)
        fits = type(value) is _TYPES[name] or (_TYPES[name] is float and type(value) is int)
        if not fits:
            raise ConfigError(f"{path}: {name}={value!r} must be {_a(name)}")
    return {name: _TYPES[name](value) for name, value in read.items()}


def _check_known(where: str, name: str) -> None:
    if name not in _TYPES:
        near = difflib.get_close_matches(name, _TYPES, n=1)
        raise ConfigError(
            f"{where} is no setting; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(_TYPES)}")
        )


def _a(name: str) -> str:
    return {float: "a number", int: "a whole number", str: "text"}[_TYPES[name]]
