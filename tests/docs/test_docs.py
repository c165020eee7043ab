"""Documents are tested: code blocks run or at least resolve, commands parse, named files exist.

A fence ```sh run``` is executed by bash, all those of one file as one script, with ports of its own. A fence
```python run``` is executed, all those of one file in one namespace, in a folder with a little data. A plain
```python``` block is compiled and its imports are resolved.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import itertools
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import typer.main
from redis_server import BINARY, SKIPPED, redis_server

from sparsefleet.cli.app import app
from sparsefleet.datasets.synth import SynthSpec, synth
from sparsefleet.fleet.roles import ROLE_VARIABLES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(sparsefleet [^`]+)`")
IGNORED_ARGUMENTS = {"…"}
SHELL = {"&", "|", ">"}
"""What follows is the shell's business."""
UsageError = typer.BadParameter.__mro__[1]
"""Of the click that typer stands on, which is not always the one that `import click` finds."""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, *kinds: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each fenced block whose info string is one of `kinds`."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        if found[1].strip() in kinds:
            yield text.count("\n", 0, found.start(2)) + 1, found[2]


# --- Python


@each_page
def test_python_blocks_compile_and_their_imports_resolve(page):
    for line, source in blocks(page, "python", "python run"):
        for node in ast.walk(ast.parse(source, f"{page.name}:{line}")):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{page.name}:{line}: {node.module} has no {alias.name}"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    synth(folder, SynthSpec(2000, 500, 2, 1))
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p, "python run"))], ids=lambda page: page.name)
def test_python_blocks_run(page, data, tmp_path, monkeypatch):
    (tmp_path / "data").symlink_to(data)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    # What `python …` in a pipe command stands for, here as in the reader's environment.
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    threads, names = torch.get_num_threads(), {"__name__": "__main__"}
    try:
        for line, source in blocks(page, "python run"):
            exec(compile("\n" * (line - 1) + source, str(page), "exec"), names)
    finally:
        torch.set_num_threads(threads)


# --- commands


def commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """The arguments of each `sparsefleet` call in a block of commands."""
    for line, source in blocks(page, "console", "sh", "sh run", ""):
        for number, text in enumerate(source.splitlines(), line):
            if text.startswith(("$ sparsefleet ", "sparsefleet ")):
                words = shlex.split(text.removeprefix("$ "), comments=True)[1:]
                yield number, list(itertools.takewhile(lambda word: word not in SHELL, words))


SLOW_PAGES = ("serving.md",)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in SLOW_PAGES else ())
        for page in PAGES
        if any(blocks(page, "sh run"))
    ],
)
def test_commands_run(page, tmp_path):
    """Every command as a reader types it; the ports of a server and of Redis are replaced by free ones."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sparsefleet"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sparsefleet "$@"\n')
    program.chmod(0o755)
    script = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    script += "".join(source for _, source in blocks(page, "sh run"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    script = script.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("--port 8000", f"--port {port}")
    with contextlib.ExitStack() as stack:
        if "redis://127.0.0.1:6379" in script:
            if not BINARY:
                pytest.skip(SKIPPED)
            store = stack.enter_context(redis_server(tmp_path))
            script = script.replace("127.0.0.1:6379", f"127.0.0.1:{store.port}")
        paths = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
        clean = {name: value for name, value in os.environ.items() if name not in ROLE_VARIABLES}
        # Into a file: a pipe would stay open as long as any process of a script that failed.
        with (tmp_path / "said").open("w") as said:
            ended = subprocess.Popen(
                ["bash", "-c", script],
                cwd=tmp_path,
                env={**clean, **paths},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                status = ended.wait(timeout=240)  # commands of seconds, on however busy a machine
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(ended.pid, signal.SIGKILL)
                ended.wait(timeout=10)
    assert status == 0, (tmp_path / "said").read_text()


def find(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that the first arguments name, and what is left for it."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in command.commands, f"there is no command {' '.join(arguments)!r}"
        command = command.commands[name]
    return command, rest


@each_page
def test_commands_parse(page):
    for line, arguments in commands(page):
        command, rest = find(arguments)
        try:
            command.make_context(command.name, rest)  # parses, and calls nothing
        except UsageError as error:
            pytest.fail(f"{page.name}:{line}: sparsefleet {' '.join(arguments)}: {error.format_message()}")


@each_page
def test_commands_in_the_text_exist_with_their_options(page):
    text = FENCE.sub("", page.read_text())
    for found in INLINE.finditer(text):
        arguments = [word for word in shlex.split(found[1])[1:] if word not in IGNORED_ARGUMENTS]
        command, rest = find(arguments)
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        unknown = [word for word in rest if word.startswith("--") and word not in known]
        assert not unknown, f"{page.name}: `{found[1]}`: no option {unknown}"


def test_options_named_alone_exist_in_a_command():
    names = ("train", "infer", "importance", "export", "serve", "verify", "replay", "doctor", "ray-metrics")
    parameters = [parameter for name in names for parameter in find([name])[0].params]
    known = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
    for group in ("data", "checkpoint", "word2vec"):
        for command in find([group])[0].commands.values():
            known |= {option for parameter in command.params for option in parameter.opts}
    for page in PAGES:
        text = FENCE.sub("", page.read_text())
        for found in re.finditer(r"`(--[a-z0-9-]+)[^`]*`", text):
            assert found[1] in known, f"{page.name}: no command has an option {found[1]}"


def test_the_check_of_commands_sees_mistakes():
    with pytest.raises(AssertionError, match="no command 'trian'"):
        find(["trian"])
    command, rest = find(["train", "--data", "x", "--no-such-option"])
    with pytest.raises(UsageError, match="no-such-option"):
        command.make_context("train", rest)


# --- files

PLACES = (ROOT, ROOT / "src" / "sparsefleet")
SUFFIXES = (".py", ".cpp", ".h", ".md", ".txt", ".toml", ".json")
WRITTEN_BY_RUNS = {"schema.json", "manifest.json", "metrics.jsonl"}


def paths(page: Path) -> set[str]:
    """What looks like a file of the repository, in code spans and in the picture."""
    text = page.read_text()
    spans = [span for span in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)) if " " not in span]
    spans += [word for _, source in blocks(page, "") for word in source.split() if "/" in word]
    return {span for span in spans if span.endswith(SUFFIXES) and "*" not in span} - WRITTEN_BY_RUNS


def test_files_named_in_the_architecture_exist():
    named = paths(ROOT / "ARCHITECTURE.md")
    assert len(named) > 40
    missing = [name for name in sorted(named) if not any((place / name).is_file() for place in PLACES)]
    assert not missing, f"ARCHITECTURE.md names files that do not exist: {', '.join(missing)}"


def classes_of_the_package() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for file in (ROOT / "src" / "sparsefleet").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def has_name(classes: dict[str, list[ast.ClassDef]], owner: str, name: str) -> bool:
    """Whether a class of that name, or one that it derives from, defines the name or sets it on `self`."""
    for kind in classes.get(owner, []):
        for node in ast.walk(kind):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return True
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(name in (getattr(target, "id", None), getattr(target, "attr", None)) for target in targets):
                return True
        if any(has_name(classes, ast.unparse(base).split("[")[0].split(".")[-1], name) for base in kind.bases):
            return True
    return False


def test_names_of_classes_in_the_architecture_exist():
    text = FENCE.sub("", (ROOT / "ARCHITECTURE.md").read_text())
    named = sorted(set(re.findall(r"`([A-Z]\w+)\.(\w+)`", text)) - {("CMakeLists", "txt")})
    classes = classes_of_the_package()
    assert len(named) > 30
    missing = [f"{owner}.{name}" for owner, name in named if not has_name(classes, owner, name)]
    assert not missing, f"ARCHITECTURE.md names what does not exist: {', '.join(missing)}"


def test_the_protocol_lists_every_message():
    server = ROOT / "src" / "sparsefleet" / "server"
    page = (ROOT / "src" / "sparsefleet" / "store" / "wire" / "PROTOCOL.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    taken: set[str] = set()
    for file, table in ((server / "service.py", "self._actions"), (server / "exchange.py", "OPERATIONS")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table:
                taken |= {ast.literal_eval(key) for key in node.value.keys}
    assert len(taken) > 50
    assert taken == listed


def test_formats_say_the_versions_that_are_written():
    from sparsefleet.checkpoint.manifest import VERSION as CHECKPOINT
    from sparsefleet.export.manifest import VERSION as BUNDLE
    from sparsefleet.serving.redis.record import HOT as ROWS
    from sparsefleet.store.wire import PROTOCOL

    package = ROOT / "src" / "sparsefleet"
    for page, version in {
        "checkpoint/FORMAT.md": f"version {CHECKPOINT}",
        "export/FORMAT.md": f"version {BUNDLE}",
        "serving/redis/FORMAT.md": f"version {ROWS}",
        "store/wire/PROTOCOL.md": f"protocol {PROTOCOL}",
    }.items():
        title = (package / page).read_text().splitlines()[0]
        assert title.endswith(version), f"{page}: {title!r}; the code writes {version}"


def test_folders_and_files_named_elsewhere_exist():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for name in sorted(paths(page)):
            if "/" in name:
                assert (ROOT / name).is_file(), f"{page.name} names {name}, which does not exist"
        for name in re.findall(r"^\| `([a-z]+/(?:[a-z]+/)?)` \|", page.read_text(), re.MULTILINE):
            assert (ROOT / name).is_dir(), f"{page.name} names {name}, which does not exist"


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_documents_are_free_of_machine_paths():
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        found = re.search(r"/(?:work|root|home|Users)/\S+", page.read_text())
        assert not found, f"{page.name} has a path of one machine: {found[0]}"


def test_commits_that_are_named_are_in_the_history():
    """What was measured on a working state says so: nobody could look its commit up."""
    git = ["git", "-C", str(ROOT)]
    known = [*git, "merge-base", "--is-ancestor"]
    if not shutil.which("git") or subprocess.run([*known, "24ee871", "HEAD"], capture_output=True).returncode:
        pytest.skip("no git here, or not the whole history")
    named: dict[str, str] = {}
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("src/**/*.md")]:
        for found in re.finditer(r"(?:commit|code of|--before) ([0-9a-f]{7,40})\b", page.read_text()):
            named.setdefault(found[1], page.name)
    assert len(named) > 5
    lost = [
        f"{name} ({page})"
        for name, page in named.items()
        if subprocess.run([*known, name, "HEAD"], capture_output=True).returncode
    ]
    assert not lost, f"no such commits: {', '.join(lost)}"


def test_only_the_places_that_the_architecture_names_print():
    source, page = ROOT / "src" / "sparsefleet", (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", page[page.index("**Who prints.**") : page.index("## Contracts")]))
    printing = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write"))
        or (isinstance(node, ast.ImportFrom) and node.module == "rich.console")
    }
    assert {name for name in printing if not name.startswith("cli/")} == named


def test_every_rule_reader_and_format_is_documented():
    from sparsefleet import optim
    from sparsefleet.data.formats import FORMATS
    from sparsefleet.data.open import _MAKERS

    training, data = (ROOT / "docs" / "training.md").read_text(), (ROOT / "docs" / "data.md").read_text()
    for name in optim.RULES:
        assert f"`{name}`" in training
    for name in optim.schedule.SCHEDULES.values():
        assert f"`{name.__name__}`" in training
    for name in (*FORMATS, *_MAKERS):
        assert f"`{name}`" in data
