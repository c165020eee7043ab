"""How much of the machine this process may have: memory, processor time, shared memory, open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from sparsefleet.doctor.findings import Check, Finding, Verdict
from sparsefleet.doctor.processor import usable_cores

GIB = 1 << 30
WANTED_FILES = 4096
"""A server has a descriptor or two per trainer thread, a reader one per file."""
NO_LIMIT = 1 << 60
"""Cgroups of version 1 say "no limit" by a number of this size."""
CGROUPS = Path("/sys/fs/cgroup")


def memory(meminfo: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    if not meminfo.exists():
        yield Finding("memory", "not known: there is no /proc/meminfo")
        return
    lines = (line.split() for line in meminfo.read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}
    total, available = sizes["MemTotal"], sizes["MemAvailable"]
    low = available < total // 10
    yield Finding(
        "memory",
        f"{gib(available)} available of {gib(total)}",
        Verdict.LOW if low else Verdict.OK,
        "other programs hold nine tenths of it: see `ps aux --sort -rss`" if low else "",
        {"total": total, "available": available},
    )


def cgroup(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> Iterator[Finding]:
    """A container's limits, which neither /proc/meminfo nor the number of cores tells."""
    sizes = [_number(file) for file in _files(root, own, "memory", ("memory.max", "memory.limit_in_bytes"))]
    limits = [size for size in sizes if size is not None and size < NO_LIMIT]
    memory = min(limits, default=None)
    text = f"{gib(memory)}" if memory is not None else "none"
    yield Finding("memory limit", text, facts={"bytes": memory})

    cores = min(filter(None, map(_cores, _files(root, own, "cpu", ("cpu.max", "cpu.cfs_quota_us")))), default=None)
    usable = usable_cores()
    low = cores is not None and cores < usable
    yield Finding(
        "cores limit",
        "none" if cores is None else f"{cores:g} cores' time",
        Verdict.LOW if low else Verdict.TOLD,
        f"programs see {usable} cores and get the time of {cores:g}: ask for no more threads than that" if low else "",
        {"cores": cores},
    )


def shared_memory(folder: str = "/dev/shm") -> Iterator[Finding]:
    try:
        room = os.statvfs(folder)
        size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
        yield Finding(folder, f"{gib(free)} free of {gib(size)}", facts={"size": size, "free": free})
    except OSError as error:
        yield Finding(folder, f"none: {error.strerror}")
    try:
        os.close(os.memfd_create("sparsefleet-doctor"))
        yield Finding("memfd", "works", Verdict.OK)
    except (OSError, AttributeError) as error:
        advice = "trainers and servers of one host talk through sockets instead, which is slower"
        yield Finding("memfd", f"fails: {error}", Verdict.LOW, advice)


def open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft != resource.RLIM_INFINITY and soft < WANTED_FILES
    if hard == resource.RLIM_INFINITY or hard >= WANTED_FILES:
        advice = f"`ulimit -n {WANTED_FILES}` before the job"
    else:
        advice = "have the hard limit raised (limits.conf, LimitNOFILE=, --ulimit nofile=)"
    yield Finding(
        "open files",
        f"{_limit(soft)}, at most {_limit(hard)}",
        Verdict.LOW if low else Verdict.OK,
        f"many trainers or files need more: {advice}" if low else "",
        {"soft": soft, "hard": hard},
    )


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else f"{number:,}"


def _files(root: Path, own: Path, controller: str, names: tuple[str, ...]) -> Iterator[Path]:
    """The controller's files for this process's group and all above it: each limits what is below it."""
    if not own.exists():
        return
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has no controllers here and stands in the root; version 1 has a folder each.
        base = root / controllers if controllers else root
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(base):
                yield from (file for name in names if (file := folder / name).exists())


def _number(file: Path) -> int | None:
    text = file.read_text().strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _cores(file: Path) -> float | None:
    if file.name == "cpu.max":
        quota, period = file.read_text().split()
    else:
        quota, period = file.read_text().strip(), file.with_name("cpu.cfs_period_us").read_text().strip()
    return None if quota in ("max", "-1") else int(quota) / int(period)


CHECKS = (
    Check("memory", memory),
    Check("container", cgroup),
    Check("shared memory", shared_memory),
    Check("open files", open_files),
)
