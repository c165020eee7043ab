"""`--config run.toml`: the options of a command from a file, and the file that a run leaves in its folder.

```
data = "data/train"
valid-data = "data/valid"          # an option by its long name; - and _ mean the same
epochs = 20
patience = 2

[model]
name = "deepfm"                    # --model
dropout = 0.2                      # an option of that name, or else --set dropout=0.2
```
What stands on the command line counts before the file; the file before presets and defaults.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from sparsefleet import __version__
from sparsefleet.checkpoint import locate
from sparsefleet.checkpoint.storage.base import writing
from sparsefleet.cli.console import errors_to_exit
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.filesystems import is_uri

FILE_NAME = "run.toml"
_KEY = "sparsefleet.config"
_OWN = ("config", "json", "launched", "help")
"""Options that belong to one start of the command, not to the run."""
_PATHS = ("data", "test-data", "valid-data", "schema", "save", "start-from", "resume", "log-dir", "tensorboard")
"""Options whose relative paths a run's file gives from the root: it may be used from another folder."""


@errors_to_exit
def read_config(context: typer.Context, value: Path | None) -> Path | None:
    """An eager option's callback: what the file says are the defaults of all options that are looked at after it."""
    if value is None or context.resilient_parsing:
        return value
    try:
        with value.open("rb") as file:
            read = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{value} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{value} is not TOML: {error}") from None
    found = _options_of(read, _by_name(context.command), str(value))
    context.default_map = {**(context.default_map or {}), **found}
    context.meta[_KEY] = frozenset(found)
    return value


def given(context: typer.Context, name: str) -> bool:
    """Whether an option, by its parameter's name, was given: on the command line or in the file of --config."""
    source = context.get_parameter_source(name)
    if source is None:
        return False
    return source.name == "COMMANDLINE" or (source.name == "DEFAULT_MAP" and name in context.meta.get(_KEY, ()))


def leave_config(context: typer.Context, folder: str) -> None:
    """Write what this run was given into its folder, for `--config FOLDER/run.toml` to repeat it."""
    target = locate(folder) / FILE_NAME
    with writing(target):
        target.storage.make_dir(target.parent.path)
        target.storage.replace_file(target.path, config_text(context).encode())


def config_text(context: typer.Context) -> str:
    """All options of the command: those that were given, and in comments the others as they are by default."""
    said, usual = list[str](), list[str]()
    for name, parameter in _by_name(context.command).items():
        value = context.params.get(str(parameter.name))
        if name in _OWN or value is None or value == ():
            continue
        line = f"{name} = {_toml(_from_anywhere(name, value))}"
        (said if given(context, str(parameter.name)) else usual).append(line)
    head = f"# What sparsefleet {__version__} trained with: sparsefleet {context.info_name} --config {FILE_NAME}"
    defaults = ["", "# By default:", *(f"# {line}" for line in usual)] if usual else []
    return "\n".join([head, *said, *defaults]) + "\n"


def _by_name(command: Any) -> dict[str, Any]:
    """Options by their long names, without the dashes before them."""
    return {
        word.lstrip("-"): parameter for parameter in command.params for word in parameter.opts if word.startswith("--")
    }


def _options_of(read: Mapping[str, Any], known: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values by the names of parameters."""
    found: dict[str, Any] = {}
    for written, value in read.items():
        if written == "model" and isinstance(value, Mapping):
            _take_model(value, known, where, found)
            continue
        if isinstance(value, Mapping):
            raise ConfigError(f"{where}: there is no section [{written}]; the only one is [model]")
        _take(_known(written, known, where), written, value, known, where, found)
    return found


def _take_model(section: Mapping[str, Any], known: Mapping[str, Any], where: str, found: dict[str, Any]) -> None:
    """[model]: its name, options of the command, and for all others --set."""
    settings = []
    for written, value in section.items():
        name = "model" if written == "name" else written.replace("_", "-")
        if name in known and name not in _OWN:
            _take(name, f"[model] {written}", value, known, where, found)
        elif "set" in known and written != "name":
            settings.append(f"{written}={_plain(value, f'{where}: [model] {written}')}")
        else:
            raise ConfigError(f"{where}: [model] {written} is no option of this command{_near(name, known)}")
    if settings:
        parameter = str(known["set"].name)
        found[parameter] = [*found.get(parameter, ()), *settings]


def _known(written: str, known: Mapping[str, Any], where: str) -> str:
    name = written.replace("_", "-")
    if name in _OWN:
        raise ConfigError(f"{where}: {written} belongs on the command line")
    if name not in known:
        raise ConfigError(f"{where}: {written} is no option of this command{_near(name, known)}")
    return name


def _near(name: str, known: Mapping[str, Any]) -> str:
    options = [option for option in known if option not in _OWN]
    near = difflib.get_close_matches(name, options, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(options)}"


def _take(name: str, written: str, value: Any, known: Mapping[str, Any], where: str, found: dict[str, Any]) -> None:
    parameter = known[name]
    if str(parameter.name) in found:
        raise ConfigError(f"{where}: {written} stands there twice, with - and with _ or in [model]")
    flag = bool(getattr(parameter, "is_flag", False))
    if flag != isinstance(value, bool):
        wanted = "true or false" if flag else "a value, not true or false"
        raise ConfigError(f"{where}: {written} = {_plain(value, where)}: it takes {wanted}")
    if getattr(parameter, "multiple", False):
        several = value if isinstance(value, list) else [value]
        found[str(parameter.name)] = [_plain(each, f"{where}: {written}") for each in several]
    else:
        found[str(parameter.name)] = value if flag else _plain(value, f"{where}: {written}")


def _plain(value: Any, where: str) -> str:
    """As it would stand on a command line: lists with commas between."""
    if isinstance(value, list):
        return ",".join(_plain(each, where) for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{where}: a {type(value).__name__} is no value of an option; give text, a number or a list")


def _from_anywhere(name: str, value: Any) -> Any:
    """A path from the root. A model's own class, `my_model.py:MyNet`, begins with one too."""
    if not isinstance(value, str) or not value or is_uri(value) or value == "auto":
        return value
    if name in _PATHS or (name == "model" and ".py:" in value):
        return os.path.abspath(os.path.expanduser(value))
    return value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_toml(each) for each in value)}]"
    # Basic strings of TOML are written as JSON's are.
    return repr(value) if isinstance(value, int | float) else json.dumps(str(value), ensure_ascii=False)
