"""Builds wheels for Linux x86-64 into dist/: one for Python 3.11, and one for 3.12 and all later (stable ABI).

Each comes twice: as `sparsefleet`, and as `sparsefleet-serve`, the same files with other requirements: what serving a
bundle needs, without torch. The two are for different machines, not for one environment.

    python scripts/wheel.py                       for all Pythons that are found
    python scripts/wheel.py --python python3.12   for this one only

The compiler is Zig's clang, which comes from PyPI: it knows the symbols of old C libraries and links its own C++
library into the module, so what is built on a new Linux runs on old ones, without a container. auditwheel confirms it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheel"
TOOLS = ROOT / "scripts" / "wheel_tools.txt"
COMPILER = ROOT / "scripts" / "zig_cxx.sh"

GLIBC = "2.17"
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"
"""What auditwheel must find the wheel to be."""

OLDEST = (3, 11)
STABLE_ABI = (3, 12)
"""The first Python whose stable ABI has all that nanobind needs: a wheel for it is one for all later."""


@dataclass(frozen=True)
class Interpreter:
    path: Path
    version: tuple[int, int]

    @property
    def tag(self) -> str:
        return "cp{}{}".format(*self.version)


def candidates() -> list[Path]:
    """Whatever may be a Python: on the PATH by its versioned name, or among pyenv's."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    named = [path for folder in folders for path in sorted(folder.glob("python3.*"))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [path for path in named if re.fullmatch(r"python3\.\d+", path.name)] + sorted(
        pyenv.glob("versions/3.*/bin/python")
    )


def ask_version(path: Path) -> tuple[int, int] | None:
    """None where it is no CPython that runs (a shim of pyenv for a version that is not active, say)."""
    code = "import sys; print(sys.implementation.name, *sys.version_info[:2], getattr(sys, 'abiflags', ''))"
    try:
        answer = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = answer.stdout.split()
    if answer.returncode or len(words) != 3 or words[0] != "cpython":  # a fourth word: free-threaded, a debug build
        return None
    return int(words[1]), int(words[2])


def found(paths: Iterable[Path]) -> list[Interpreter]:
    """The first interpreter of each version, oldest version first."""
    versions: dict[tuple[int, int], Path] = {}
    for path in paths:
        version = ask_version(path)
        if version is not None:
            versions.setdefault(version, path)
    return [Interpreter(path, version) for version, path in sorted(versions.items())]


def builders(interpreters: Iterable[Interpreter]) -> list[Interpreter]:
    """Those that a wheel is built with: each version before the stable ABI, and the first that has it."""
    usable = [one for one in interpreters if one.version >= OLDEST]
    stable = [one for one in usable if one.version >= STABLE_ABI]
    return [one for one in usable if one.version < STABLE_ABI] + stable[:1]


def settings(interpreter: Interpreter) -> list[str]:
    """What the build is told beyond pyproject.toml."""
    given = {
        "build-dir": str(BUILD / interpreter.tag),
        "cmake.define.CMAKE_CXX_COMPILER": str(COMPILER),
        # nanobind's sources use it, and neither the stable ABI's headers nor Zig's C++ library bring it along.
        "cmake.define.CMAKE_CXX_FLAGS": "-include stdio.h -Wno-macro-redefined",
        "cmake.define.CMAKE_TRY_COMPILE_CONFIGURATION": "Release",  # Zig compiles its C++ library anew for each kind
        "cmake.define.CMAKE_MODULE_LINKER_FLAGS": "-s",  # no symbols: a third of the size
    }
    if interpreter.version >= STABLE_ABI:
        given["wheel.py-api"] = "cp{}{}".format(*STABLE_ABI)
    return [f"--config-settings={name}={value}" for name, value in given.items()]


def environment(python: Path) -> dict[str, str]:
    """For commands of the build's own virtual environment."""
    code = "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    zig = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)]),
        "ZIG": zig,
        "ZIG_TARGET": f"x86_64-linux-gnu.{GLIBC}",
        "ZIG_GLOBAL_CACHE_DIR": str(BUILD / "zig"),
    }


def build(interpreter: Interpreter, out: Path) -> Path:
    """One wheel, checked by auditwheel, in `out`."""
    tools, raw = BUILD / f"tools-{interpreter.tag}", BUILD / f"raw-{interpreter.tag}"
    python = tools / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter.path, "-m", "venv", tools], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", TOOLS], check=True)
    shutil.rmtree(raw, ignore_errors=True)
    run = {"check": True, "cwd": ROOT, "env": environment(python)}
    pip = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, f"--wheel-dir={raw}", *settings(interpreter), "."], **run)
    (built,) = raw.glob("*.whl")
    # Refuses where anything in it asks for a newer system than the platform's name promises.
    audit = [python, "-m", "auditwheel"]
    checked = raw / "checked"
    subprocess.run([*audit, "repair", f"--plat={PLATFORM}", f"--wheel-dir={checked}", built], **run)
    (wheel,) = checked.glob("*.whl")
    subprocess.run([*audit, "show", wheel], **run)
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(wheel, out))


SERVING = "sparsefleet-serve"
TRAINING_ONLY = ("torch", "safetensors", "onnx", "onnxscript")
"""What is needed to train or to make a bundle, and not to serve one."""
SERVING_EXTRAS = ("grpc",)


def serving_requirements() -> list[str]:
    """From pyproject.toml, so that versions stand in one place."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    return sorted(text for text in wanted if re.match(r"[A-Za-z0-9_.-]+", text)[0] not in TRAINING_ONLY)  # type: ignore[index]


def serving_extras() -> dict[str, list[str]]:
    """What may come with the small distribution, from pyproject.toml too."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return {name: extras[name] for name in SERVING_EXTRAS}


def serving_wheel(wheel: Path, out: Path) -> Path:
    """The small distribution, of the files of a wheel of the whole."""
    project, version, tags = re.fullmatch(r"([^-]+)-([^-]+)-(.+)\.whl", wheel.name).groups()  # type: ignore[union-attr]
    name = SERVING.replace("-", "_")
    old, new = f"{project}-{version}.dist-info", f"{name}-{version}.dist-info"
    target = out / f"{name}-{version}-{tags}.whl"
    record = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for entry in source.infolist():
            if entry.filename == f"{old}/RECORD":
                continue
            data = source.read(entry)
            if entry.filename == f"{old}/METADATA":
                data = serving_metadata(data.decode()).encode()
            elif entry.filename == f"{old}/entry_points.txt":
                data = b"[console_scripts]\nsparsefleet = sparsefleet.cli:main\n"
            entry.filename = entry.filename.replace(old, new)
            made.writestr(entry, data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{entry.filename},sha256={digest},{len(data)}")
        made.writestr(f"{new}/RECORD", "\n".join([*record, f"{new}/RECORD,,"]) + "\n")
    return target


def serving_metadata(text: str) -> str:
    head, _, body = text.partition("\n\n")
    kept = [line for line in head.splitlines() if not re.match("(Name|Summary|Requires-Dist|Provides-Extra):", line)]
    named = [f"Name: {SERVING}", "Summary: Serve bundles of sparsefleet: predictions over HTTP, without torch"]
    needs = [f"Requires-Dist: {text}" for text in serving_requirements()]
    for name, texts in serving_extras().items():
        needs += [f"Provides-Extra: {name}", *(f"Requires-Dist: {text}; extra == '{name}'" for text in texts)]
    return "\n".join([kept[0], *named, *kept[1:], *needs]) + "\n\n" + body


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--python", action="append", type=Path, help="build with this one; may be repeated")
    arguments.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheels go")
    given = arguments.parse_args()
    chosen = builders(found([Path(shutil.which(path) or path) for path in given.python or candidates()]))
    if not chosen:
        print("no Python 3.11 or newer was found to build with; name one with --python", file=sys.stderr)
        return 1
    made = [build(interpreter, given.out) for interpreter in chosen]
    made += [serving_wheel(wheel, given.out) for wheel in made]
    for wheel in made:
        print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")
    if all(one.version >= STABLE_ABI for one in chosen) or all(one.version < STABLE_ABI for one in chosen):
        print("!!! NOT ALL WHEELS: it takes both a Python 3.11 and one of 3.12 or later to build them", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
