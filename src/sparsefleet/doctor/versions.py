"""Versions of what SparseFleet stands on."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from sparsefleet import __version__
from sparsefleet.doctor.findings import Check, Finding

NEEDED = ("torch", "numpy", "pyarrow", "safetensors")
OPTIONAL = ("onnxruntime", "onnx", "starlette", "uvicorn", "uvloop", "httptools", "tensorboard", "redis")


def packages() -> Iterator[Finding]:
    yield Finding("sparsefleet", __version__, facts={"version": __version__})
    yield Finding("Python", f"{platform.python_version()}, {platform.python_implementation()}")
    for name in NEEDED:
        version = _version(name)
        # torch may be left out on purpose, where a machine only serves.
        yield Finding(name, version or "not installed", facts={"version": version})
    versions = {name: _version(name) for name in OPTIONAL}
    there = [f"{name} {version}" for name, version in versions.items() if version]
    absent = [name for name, version in versions.items() if not version]
    text = ", ".join(there) or "none"
    if absent:
        text += f"; not installed: {', '.join(absent)}"
    yield Finding("optional", text, facts={"versions": versions})


def system() -> Iterator[Finding]:
    library = " ".join(platform.libc_ver()).strip() or "C library not known"
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        distribution = ""
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding("system", ", ".join(filter(None, (distribution, kernel, library))))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


CHECKS = (Check("packages", packages), Check("system", system))
