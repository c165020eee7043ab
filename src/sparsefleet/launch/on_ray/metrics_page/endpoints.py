"""Where a Ray cluster tells its figures: the list that its head keeps for Prometheus."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sparsefleet.core.errors import ConfigError

LIST = "prom_metrics_service_discovery.json"
"""In the head's folder: the latest cluster's. (Newer Rays keep it with the session, and a link to it here.)"""
MOST_BYTES = 1 << 20


def usual_folder() -> Path:
    """Where `ray start --head` keeps its files unless it is told another folder."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")


def read_endpoints(folder: Path) -> list[str]:
    """host:port of each, in the list's order."""
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}, where a head of Ray keeps its files: run this on the head's host, after "
            f"ray start --head; if that was given another --temp-dir, give it here, too"
        )
    path = folder / LIST
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} has no {LIST}: a head writes it seconds after its start, if it has a dashboard; start one "
            f"(ray start --head), or give the folder that it was given as --temp-dir"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{path} has more than {MOST_BYTES:,} bytes: that is no list of Ray's")
    try:
        found = [target for group in json.loads(text) for target in group["targets"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{path} is not the list that Ray writes: [{{'targets': ['host:port', …]}}]") from None
    return list(dict.fromkeys(target for target in found if isinstance(target, str)))
