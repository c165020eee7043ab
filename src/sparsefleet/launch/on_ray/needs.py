"""RayNeeds: what a job asks of a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsefleet.core.errors import ConfigError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
USUAL_MEMORY = "1G"


@dataclass(frozen=True, slots=True)
class RayNeeds:
    """Ray places roles by these figures; it does not hold them to the memory."""

    server_cpus: float = 1.0
    worker_cpus: float = 1.0
    """Also what OMP_NUM_THREADS becomes: a trainer with N training threads wants N."""
    server_memory: int = 1 << 30
    """Bytes."""
    worker_memory: int = 1 << 30
    ship: str | None = None
    """Folder whose files every node gets a copy of, in which the roles run; None: nothing is shipped."""
    folder: str | None = None
    """Folder that every node has, in which the roles run; None: the shipped one, else wherever Ray's processes run."""

    def __post_init__(self) -> None:
        for name in ("server_cpus", "worker_cpus"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value} must be a number of processors above 0")
        for name in ("server_memory", "worker_memory"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be a number of bytes above 0")

    def of(self, kind: str) -> dict[str, float]:
        """Resources of a "server" or a "worker" by Ray's names."""
        return {"CPU": getattr(self, f"{kind}_cpus"), "memory": getattr(self, f"{kind}_memory")}

    def why_never(self, counts: Mapping[str, int], nodes: Sequence[Mapping[str, float]]) -> str | None:
        """Why so many roles of each kind cannot have room on nodes of such resources, though nothing else runs there.

        None: nothing speaks against it. (They may still not fit together.)
        """
        for kind, count in counts.items():
            asked = self.of(kind)
            if count and nodes and not any(_has(node, asked) for node in nodes):
                return (
                    f"no node is large enough for a {kind}: ask for less (--{kind}-cpus, --{kind}-memory), or wait for "
                    f"a larger node to join"
                )
        for name in ("CPU", "memory"):
            if sum(count * self.of(kind)[name] for kind, count in counts.items()) > sum(
                _of(node, name) for node in nodes
            ):
                return "it is too small for the job unless nodes join"
        return None


def _of(resources: Mapping[str, float], name: str) -> float:
    return resources.get(name, 0.0)


def _has(node: Mapping[str, float], asked: Mapping[str, float]) -> bool:
    return all(_of(node, name) >= amount for name, amount in asked.items())


def parse_memory(source: str, text: str) -> int:
    """Bytes of "512M", "2G" or "2GiB"; powers of two."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{source}={text!r} is no amount of memory; write 512M or 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def in_words(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0.0):g} CPU and {resources.get('memory', 0.0) / (1 << 30):.1f} GiB"
