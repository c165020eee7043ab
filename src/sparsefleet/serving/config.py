"""ServeConfig: how a bundle is served."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

from sparsefleet.core.errors import ConfigError
from sparsefleet.core.tokens import PREDICT_TOKEN, check_token
from sparsefleet.export.gate import Requirement

TOKEN = "SPARSEFLEET_TOKEN"
MAX_SECONDS = 1_000_000
"""More is a mistake; and clocks and waits refuse infinity in words that help nobody."""


@dataclass(frozen=True)
class ServeConfig:
    bundle: str
    """A bundle, or a folder of bundles with a file `current` that names one of them: then it is followed. A path or a
    URI."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    grpc_port: int | None = None
    """Also serve the KServe v2 protocol over gRPC there; 0 takes a free one."""
    model_name: str = "model"
    """What clients of that protocol call the model."""
    threads: int | None = None
    """Threads that score requests; None: one a core, and two at least; half as many again where rows come from Redis,
    for a thread that waits for Redis leaves its core to another."""
    sparse: str = "mmap"
    """Where rows come from: mmap (the bundle's own files), or redis://host:port/database?prefix=NAME."""
    fallback: str | None = None
    """`file`: the bundle's own rows files, wherever Redis cannot give rows."""
    check: str = "full"
    """What of a bundle is checked before it serves: full (every byte) or quick (all but the rows)."""
    max_body: int = 16 << 20
    """Bytes of a request."""
    max_rows: int = 10_000
    """Samples of a JSON request; an Arrow stream may have as many as fit into the body."""
    require: tuple[str, ...] = ()
    """Requirements such as auc>=.75: a bundle whose lineage does not meet them is not served."""
    canary: str | None = None
    """A second bundle, which answers a share of the requests."""
    canary_share: float = 0.05
    shadow: str | None = None
    """A bundle that scores what the first one scored; its scores are compared, and answer nobody."""
    batch_rows: int = 400
    """Samples scored at once at most. Long requests are cut into pieces, and short ones that wait at the same time are
    joined: see `batcher`."""
    queue_rows: int = 50_000
    """Samples that may wait to be scored; beyond them requests are refused with 429."""
    deadline: float = 30.0
    """Seconds in which a request must be answered, unless its header x-timeout-ms says less."""
    allow_missing: bool = False
    """A field that a sample leaves out counts as null instead of being refused."""
    allow_extra: bool = False
    """A field that the model does not have is left out of account instead of being refused."""
    log_requests: str | None = None
    """A file to which every JSON request is written with its scores, a line each."""
    log_max_bytes: int = 256 << 20
    """A log that reaches this size is renamed to FILE.1, and a new one is begun."""
    watch_seconds: float = 2.0
    """How often `current` is looked at."""
    body_timeout: float = 30.0
    """Seconds in which a request's body must have come."""
    header_timeout: float = 10.0
    """Seconds in which the head of a request must have come, once it has begun; and a TLS handshake, once connected."""
    answer_timeout: float = 30.0
    """Seconds in which a client must have taken an answer; else its connection is ended."""
    client_connections: int = 2000
    """Connections without a request that one address may hold; the oldest is closed for one more."""
    max_connections: int = 0
    """Connections at a time, as far as the limit of open files allows; 0: as many as it allows."""
    linger: float = 1.0
    """Seconds that the server goes on taking requests and connections after SIGTERM. Each answer closes its
    connection."""
    drain_timeout: float = 30.0
    """Seconds that requests under way get after that."""
    tls_cert: str | None = None
    """A file with the certificate (and those that vouch for it), PEM: the server speaks HTTPS."""
    tls_key: str | None = None
    predict_token: str | None = field(default_factory=lambda: os.environ.get(PREDICT_TOKEN) or None, repr=False)
    """What clients must send (Authorization: Bearer …) for everything but /healthz and /readyz."""
    token: str | None = field(default_factory=lambda: os.environ.get(TOKEN) or None, repr=False)
    """Clients that send it may switch versions; without one, clients on this machine may."""

    @property
    def scoring_threads(self) -> int:
        if self.threads is not None:
            return self.threads
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(2, cores) if self.sparse == "mmap" else max(2, cores) * 3 // 2

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must be 0 (any free one) to 65535")
        if self.grpc_port is not None and not 0 <= self.grpc_port <= 65535:
            raise ConfigError(f"grpc_port={self.grpc_port} must be 0 (any free one) to 65535")
        if self.check not in ("full", "quick"):
            raise ConfigError(f"check={self.check!r} is not a check; choose full or quick")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads={self.threads} must be 1 or above")
        for name in (
            "max_body",
            "max_rows",
            "batch_rows",
            "queue_rows",
            "log_max_bytes",
            "client_connections",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be 1 or above")
        for name in ("watch_seconds", "deadline", "header_timeout", "body_timeout", "answer_timeout", "drain_timeout"):
            if not 0 < getattr(self, name) < MAX_SECONDS:
                raise ConfigError(f"{name}={getattr(self, name)} must be seconds, above 0 and below {MAX_SECONDS:,}")
        if not 0 <= self.linger < MAX_SECONDS:
            raise ConfigError(f"linger={self.linger} must be seconds, 0 or above and below {MAX_SECONDS:,}")
        if self.max_connections < 0:
            raise ConfigError(f"max_connections={self.max_connections} must be 0 or above")
        if not 0 <= self.canary_share <= 1:
            raise ConfigError(f"canary_share={self.canary_share} must be 0 to 1")
        for text in self.require:
            Requirement.parse(text)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together: a certificate, and the key that it is of")
        if self.tls_cert is not None and self.tls_key is not None:
            try:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.tls_cert, self.tls_key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"cannot use {self.tls_cert} with {self.tls_key}: {error}") from error
        for name in ("token", "predict_token"):
            if (text := getattr(self, name)) is not None:
                check_token(name, text)
