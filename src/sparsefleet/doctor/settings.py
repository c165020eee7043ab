"""Environment variables that change what programs do. Values that may be secret are not shown."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sparsefleet.doctor.findings import Check, Finding

PREFIX = "SPARSEFLEET_"
SHOWN = ("SPARSEFLEET_ISA", "SPARSEFLEET_INSECURE")
"""The others are tokens, passwords or paths of keys: it is enough to know that they are set."""
THREADS = ("OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy")


def variables() -> Iterator[Finding]:
    found = sorted(os.environ.items())
    ours = {name: value if name in SHOWN else None for name, value in found if name.startswith(PREFIX)}
    yield Finding(
        f"{PREFIX}…",
        ", ".join(f"{name} is set" if value is None else f"{name}={value}" for name, value in ours.items()) or "none",
        facts={"variables": ours},
    )
    threads = {name: value for name, value in found if name.startswith(THREADS)}
    text = ", ".join(f"{name}={value}" for name, value in threads.items()) or "none set"
    yield Finding("threads", text, facts={"variables": threads})
    # By name only: a proxy's address may hold a password.
    proxies = [name for name, _ in found if name.lower() in PROXIES]
    alone = bool(proxies) and not any(name.lower() == "no_proxy" for name in proxies)
    yield Finding(
        "proxies",
        f"set: {', '.join(proxies)}" if proxies else "none set",
        advice="a job's servers are looked for through it; name their hosts in no_proxy" if alone else "",
        facts={"names": proxies},
    )


CHECKS = (Check("variables", variables),)
