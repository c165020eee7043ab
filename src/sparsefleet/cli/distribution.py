"""Which distribution of this package is installed, and how to install more of it.

There are two of the same files: `sparsefleet`, and the small `sparsefleet-serve` without torch. Who installs the other
one on top has two distributions that own each file.
"""

from __future__ import annotations

from importlib import metadata

WHOLE, SMALL = "sparsefleet", "sparsefleet-serve"
SMALL_HAS = ("serve",)
"""Extras of the whole that the small one has without asking."""


def installed() -> str:
    """The whole where nothing is known: run from its sources, say."""
    names = []
    for name in (WHOLE, SMALL):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        names.append(name)
    return SMALL if names == [SMALL] else WHOLE


def pip_install(*extras: str) -> str:
    """What to type for packages of these extras."""
    name = installed()
    wanted = [extra for extra in extras if name == WHOLE or extra not in SMALL_HAS]
    return f"pip install '{name}[{','.join(wanted)}]'" if wanted else f"pip install {name}"
