"""Other commits of the project: built once, and an environment that runs them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from rich.console import Console

from sparsefleet.kernels import _native, levels

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "trees"
"""Commits that were built before."""


def checkout(what: str) -> Path:
    """A folder with the tree and its native module, for a folder or a commit."""
    if Path(what).is_dir():
        tree = Path(what).resolve()
        if not list((tree / "src" / "sparsefleet" / "kernels").glob("_native*.so")):
            if tree == ROOT:
                return as_installed()
            raise SystemExit(f"{tree} has no native module in src/sparsefleet/kernels: build it, or name a commit")
        return tree
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--verify", f"{what}^{{commit}}"], capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{what} is neither a folder nor a commit of {ROOT}")
    commit = found.stdout.strip()
    tree = BUILT / commit
    if not (tree / "ready").exists():
        Console(stderr=True).print(f"building {what} in {tree}")
        tree.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run([*git, "archive", commit], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
        build(tree)
        (tree / "ready").touch()
    return tree


def as_installed() -> Path:
    """This tree's sources, with the module that `make setup` has put into the environment."""
    tree = BUILT / "this"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "src", tree / "src")
    module = Path(str(_native.__file__))
    shutil.copy(module, tree / "src" / "sparsefleet" / "kernels" / module.name)
    return tree


def build(tree: Path) -> None:
    settings = [f"-DPython_EXECUTABLE={sys.executable}", f"-DSPARSEFLEET_LEVELS={';'.join(levels.chosen.available)}"]
    for command in (
        ["cmake", "-S", tree, "-B", tree / "build", "-G", "Ninja", *settings],
        ["cmake", "--build", tree / "build"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (module,) = (tree / "build").glob("_native*.so")
    module.rename(tree / "src" / "sparsefleet" / "kernels" / module.name)


def python_of(tree: Path, environment: Path) -> Path:
    """The Python of a new environment with this one's packages: whatever process it starts runs that tree's code."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/*/site-packages")
    borrowed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path[1:]])
    (packages / "tree.pth").write_text("\n".join([str(tree / "src"), *filter(None, borrowed)]))
    return environment / "bin" / "python"
