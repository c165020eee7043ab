"""What a parameter server must know before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sparsefleet.core.elastic import Elastic
from sparsefleet.core.errors import ConfigError
from sparsefleet.store.wire.auth import INSECURE_VARIABLE, TOKEN_VARIABLE, check_token, is_loopback

INCOMPLETE = 3
"""Exit status of a server whose trainers have all stopped but for some that were lost, or left before: who started it
by hand might hear of it nowhere else."""


@dataclass(frozen=True)
class ServerConfig:
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """0: any free one."""
    index: int = 0
    """Which of the run's servers this is."""
    endpoints: tuple[str, ...] | None = None
    """All servers of the run; None: the first trainer that registers says."""
    workers: int | None = None
    """Trainers of the run; None: the first trainer that registers says."""
    elastic: Elastic | None = None
    """Trainers may come and go, so many of them; `workers` are there at the beginning. None: they may not."""
    mode: str | None = None
    """How the trainers work together; None: the first one of them that says so."""
    timeout: float = 60.0
    """Seconds of silence after which a trainer is lost."""
    join_timeout: float = 120.0
    """Seconds, from the first trainer's registration, in which all others must have registered."""
    abandoned_after: float | None = None
    """End, as failed, when all trainers have been silent for so many seconds; None: wait for others for ever."""
    lost_trainer: Literal["error", "drop"] = "error"
    """When others wait for a trainer that was killed or cut off: they get an error that names it, or go on without it.

    One that fails by an error of its own ends the job in any case.
    """
    load_from: str | None = None
    """A checkpoint that tables and blocks start from as they are created."""
    attempt: int | None = None
    """Which life of the job this is, in a job that heals: whoever speaks for another one is told to rejoin. None: a job
    that ends, or goes on without its trainer, when a process is lost."""
    cut: str | None = None
    """The checkpoint that this attempt begins from; None: `load_from`, as the first one did."""
    begun_because: str | None = None
    """What ended the attempt before."""
    stopped: tuple[int, ...] = ()
    """Trainers that came to their end in an earlier attempt."""
    crew: tuple[int, ...] | None = None
    """Of an elastic job: the trainers that this attempt begins with; others may come later. None: the first `workers`
    numbers, as the job itself began."""
    token: str | None = field(default=None, repr=False)
    """Shared secret that every call must carry."""
    tls_certificate: bytes | None = field(default=None, repr=False)
    tls_key: bytes | None = field(default=None, repr=False)
    """PEM; with both, only encrypted connections are taken."""
    insecure: bool = False
    """Listen beyond this machine without a token."""
    watch_parent: bool = False
    """End when the process that started this one ends."""

    @property
    def start(self) -> str | None:
        """What tables and blocks start from as they are created."""
        return self.cut or self.load_from

    @property
    def vacant(self) -> set[int]:
        """Of an elastic job: numbers that nobody has at the beginning, and that nobody waits for."""
        if self.elastic is None:
            return set()
        return set(range(self.elastic.most)).difference(range(self.workers or 0) if self.crew is None else self.crew)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port={self.port} must be 0 to 65535")
        if self.endpoints is not None and not 0 <= self.index < len(self.endpoints):
            raise ConfigError(
                f"index={self.index} must be 0 to {len(self.endpoints) - 1}: that many servers are listed"
            )
        if self.index < 0:
            raise ConfigError(f"index={self.index} must be 0 or above")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers={self.workers} must be 1 or above")
        if self.elastic is not None and self.workers is None:
            raise ConfigError("elastic: say with how many workers the job begins, too")
        if self.elastic is not None and self.workers is not None:
            self.elastic.check_start(self.workers)
        if self.crew is not None:
            numbers = range(0 if self.elastic is None else self.elastic.most)
            if not self.crew or not all(worker in numbers for worker in self.crew):
                allowed = f"at least one of 0 to {len(numbers) - 1}" if numbers else "for elastic jobs"
                raise ConfigError(f"crew={self.crew} lists the trainers that an attempt begins with: {allowed}")
        for name in ("timeout", "join_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be above 0 seconds")
        if self.abandoned_after is not None and not self.abandoned_after > 0:
            raise ConfigError(f"abandoned_after={self.abandoned_after} must be above 0 seconds, or None")
        if self.lost_trainer not in ("error", "drop"):
            raise ConfigError(f"lost_trainer={self.lost_trainer!r} must be 'error' or 'drop'")
        if self.attempt is not None and self.attempt < 1:
            raise ConfigError(f"attempt={self.attempt} must be 1 or above, or None")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key go together: give both or none")
        if self.token:
            check_token(self.token)
        if not (is_loopback(self.host) or self.token or self.insecure):
            raise ConfigError(
                f"host={self.host!r} is reachable from other machines: set a token ({TOKEN_VARIABLE}), "
                f"or say {INSECURE_VARIABLE}=1 (insecure=True) to take calls from anyone"
            )
