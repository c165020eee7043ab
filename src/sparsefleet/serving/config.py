"""ServeConfig: how a bundle is served."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from sparsefleet.core.errors import ConfigError

TOKEN = "SPARSEFLEET_TOKEN"


@dataclass(frozen=True)
class ServeConfig:
    bundle: str
    """A bundle, or a folder of bundles with a file `current` that names one of them: then it is followed."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    threads: int = 2
    """Threads that score requests."""
    sparse: str = "mmap"
    """Where rows come from: mmap (the bundle's own files), or redis://host:port/database?prefix=NAME."""
    check: str = "full"
    """What of a bundle is checked before it serves: full (every byte) or quick (all but the rows)."""
    max_body: int = 16 << 20
    """Bytes of a request."""
    max_rows: int = 10_000
    """Samples of a JSON request; an Arrow stream may have as many as fit into the body."""
    batch_rows: int = 400
    """Samples scored at once: a longer request is cut into pieces. Short requests that wait at the same time are
    joined, up to `batcher.JOINED_SAMPLES`."""
    max_waiting_rows: int = 200_000
    """Samples that may wait to be scored; beyond them requests are refused with 503."""
    allow_missing: bool = False
    """A field that a sample leaves out counts as null instead of being refused."""
    log_requests: str | None = None
    """A file to which every JSON request is written with its scores, a line each."""
    log_max_bytes: int = 256 << 20
    """A log that reaches this size is renamed to FILE.1, and a new one is begun."""
    watch_seconds: float = 2.0
    """How often `current` is looked at."""
    body_timeout: float = 30.0
    """Seconds in which a request's body must have come."""
    drain_timeout: float = 30.0
    """Seconds that requests under way get when the server is told to end."""
    token: str | None = field(default_factory=lambda: os.environ.get(TOKEN) or None, repr=False)
    """Clients that send it may switch versions; without one, clients on this machine may."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must be 0 (any free one) to 65535")
        if self.check not in ("full", "quick"):
            raise ConfigError(f"check={self.check!r} is not a check; choose full or quick")
        for name in ("threads", "max_body", "max_rows", "batch_rows", "max_waiting_rows", "log_max_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be 1 or above")
        for name in ("watch_seconds", "body_timeout", "drain_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0")
