"""What a client must know of its servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError
from sparsefleet.store.wire.coarse import ENCODINGS


@dataclass(frozen=True)
class RemoteConfig:
    endpoints: tuple[str, ...]
    """`host:port` of every server, in the order that all processes of the run share."""
    worker: int = 0
    workers: int = 1
    """Trainers of the run."""
    elastic: Elastic | None = None
    """Trainers come and go: `workers` is as many as there may be. A trainer with number -1 is given one by server 0."""
    mode: str | None = None
    """How they work together: servers refuse a trainer whose mode is not the others'. None: nothing to compare."""
    timeout: float = 60.0
    """Seconds without a sign of life after which a server counts as lost."""
    connect_timeout: float = 120.0
    """Seconds to wait for servers that have not started yet."""
    heartbeat: float = 1.0
    """Seconds between two signs of life of this trainer."""
    shared_memory: bool = True
    """Exchange large bodies with servers of this host through memory instead of the network."""
    dense_wire: str = "float32"
    """How dense gradients and values travel with a step: float32, bfloat16 or int8 (`store/wire/coarse.py`)."""
    attempt: int | None = None
    """In a job that heals: the earliest attempt of it that this trainer may join. None: the job does not heal."""
    fits: int = 0
    """Calls of `fit` that this process has begun: in a job that heals, where it comes to its attempt."""
    token: str | None = field(default=None, repr=False)
    tls_root_certs: bytes | None = field(default=None, repr=False)
    """PEM; given, all connections are encrypted and the servers' certificates checked against it."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("endpoints is empty: name at least one server as host:port")
        for endpoint in self.endpoints:
            host, _, port = endpoint.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"endpoint {endpoint!r} must be host:port with a port of 1 to 65535")
        if len(set(self.endpoints)) != len(self.endpoints):
            raise ConfigError(f"endpoints {', '.join(self.endpoints)}: a server is named twice")
        least = 0 if self.elastic is None else -1
        if not least <= self.worker < self.workers:
            raise ConfigError(f"worker={self.worker} must be 0 to {self.workers - 1}: there are {self.workers} workers")
        if self.dense_wire not in ENCODINGS:
            raise ConfigError(f"dense_wire={self.dense_wire!r}: choose {', '.join(ENCODINGS)}")
        for name in ("timeout", "connect_timeout", "heartbeat"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0 seconds")
