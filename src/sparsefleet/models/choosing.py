"""Which model: a name of ours, or `file.py:Class` and `package.module:Class` for one of the user's own.

What a checkpoint keeps of a model are its name and settings, never code: whoever loads a model of the user's own says
again where its class is.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.schema import Schema
from sparsefleet.models import registry
from sparsefleet.models.base import Rebuildable
from sparsefleet.models.settings import from_texts, has_setting

DEFAULT = "ctr_dnn"


def choose(name: str) -> type[Rebuildable]:
    """The class that `--model` means."""
    if ":" in name:
        return _own(name)
    shelf = {_plain(each): model for each, model in (*registry.SHELF.items(), *registry.MODELS.items())}
    if _plain(name) in shelf:
        return shelf[_plain(name)]
    close = difflib.get_close_matches(name.lower(), registry.SHELF, 1)
    raise ConfigError(
        f"--model {name}: there is no such model{f'; do you mean {close[0]}?' if close else '.'} Choose "
        f"{', '.join(registry.SHELF)}; or give a class of your own as my_model.py:MyNet or package.module:MyNet"
    )


def make(name: str, schema: Schema, texts: Mapping[str, str], options: Mapping[str, Any] | None = None) -> nn.Module:
    """A new model for samples of this schema.

    texts: settings by name, as text. options: those that have an option of their own on the command line, by their
    option (`--hidden`), where given: a value, or a text to be read like the others.
    """
    model = choose(name)
    given = dict(texts)
    ready: dict[str, Any] = {}
    for option, value in (options or {}).items():
        setting = option.removeprefix("--").replace("-", "_")
        if value is None:
            continue
        if not has_setting(model, setting):
            raise ConfigError(f"{option}: {name} has no such setting; `sparsefleet models {name}` tells those it has")
        if setting in given:
            raise ConfigError(f"{option} and --set {setting}=… both are given: leave one of them out")
        if isinstance(value, str):
            given[setting] = value
        else:
            ready[setting] = value
    try:
        return model.from_schema(schema, **from_texts(model, given), **ready)
    except TypeError as error:  # a class of the user's own, whose from_schema takes no such thing
        raise ConfigError(f"--model {name}: from_schema cannot be called so: {error}") from error


def parse_sets(given: Sequence[str]) -> dict[str, str]:
    """`--set name=value`, several times, as a dict."""
    made: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise ConfigError(f"--set {text}: give name=value, such as --set embedding_size=16")
        if name in made:
            raise ConfigError(f"--set {name}=… is given twice: leave one of them out")
        made[name] = value.strip()
    return made


def rebuilt(description: Mapping[str, Any], name: str | None) -> nn.Module:
    """A checkpoint's model, with fresh weights. name: `--model`, where the model is one of the user's own."""
    return registry.build(description, None if name is None else _own_or_shelf(description, name))


def _own_or_shelf(description: Mapping[str, Any], name: str) -> type[Rebuildable]:
    model = choose(name)
    saved = str(description.get("name"))
    if saved != registry.CUSTOM and registry.MODELS.get(saved) is not model:
        raise ConfigError(f"--model {name}: the checkpoint holds {saved}, a model of ours; leave --model out")
    return model


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _own(name: str) -> type[Rebuildable]:
    where, _, called = name.rpartition(":")
    module = _from_file(name, Path(where)) if where.endswith(".py") else _from_package(name, where)
    found: Any = module
    for part in called.split("."):
        found = getattr(found, part, None)
    if found is None:
        classes = [
            each
            for each, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
        ]
        told = f"its models are {', '.join(classes)}" if classes else "it has no torch.nn.Module"
        raise ConfigError(f"--model {name}: {where} has no class {called!r}; {told}")
    if not (isinstance(found, type) and issubclass(found, Rebuildable)):
        raise ConfigError(
            f"--model {name}: {called} must be a class derived from sparsefleet.models.SchemaModel (or from "
            "Rebuildable, with describe, build and from_schema), so that checkpoints can bring it back; docs/models.md "
            "has an example"
        )
    return found


def _from_file(name: str, file: Path) -> ModuleType:
    path = file.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"--model {name}: there is no file {file}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    # Under the file's own name, as its neighbours would import it; unless that is another module's.
    there = None if known is not None else importlib.util.find_spec(path.stem)
    free = known is None and (there is None or there.origin == str(path))
    called = path.stem if free else f"own_{path.stem}"
    if called in sys.modules and getattr(sys.modules[called], "__file__", None) == str(path):
        return sys.modules[called]
    spec = importlib.util.spec_from_file_location(called, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--model {name}: {file} cannot be imported as Python")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: what stands beside it hides no package
    module = importlib.util.module_from_spec(spec)
    sys.modules[called] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[called]
        raise _failed(name, error) from error
    return module


def _from_package(name: str, where: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(where)
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"--model {name}: importing it failed: {type(error).__name__}: {error}")
