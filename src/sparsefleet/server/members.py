"""Member: a trainer as a server knows it. Registration: what it says of itself when it comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Member:
    worker: int
    incarnation: str
    about: str
    last_seen: float
    status: dict[str, Any] = field(default_factory=dict)
    resting: bool = False
    stopped: bool = False
    gone: bool = False
    failure: str | None = None
    """Why it ended too early, if it or its launcher said so."""
    no_error: bool = False
    """Its process seems to end well all the same: nobody but us can tell that the job has not."""
    dropped: bool = False
    late: bool = False
    """It came while the others were at work."""
    retired: bool = False
    """In a job that heals: it was lost, and the others go on with its data; another life of it may join them."""
    share_missing: bool = False
    """It was lost to a call of `fit` in which it had a share of its own, though later ones have leased data."""
    in_fit: bool | None = None
    """It has begun a call of `fit`, and not all have come to its end; server 0 alone hears that, in a job that heals.
    Outside of it, nobody else does what its script does there, such as to save for all. None: it has begun none."""
    fits: int = 0
    """Calls of `fit` that it had begun when it came to this attempt."""
    leaving: bool = False
    """It was asked to leave, and does when it has trained what it holds."""

    @property
    def ended(self) -> bool:
        return self.gone or self.failure is not None or self.dropped


@dataclass(frozen=True, slots=True)
class Registration:
    """What a trainer says of itself and of the job, as it sees it."""

    worker: int
    workers: int
    servers: tuple[str, ...]
    index: int
    """The number that it takes this server for."""
    about: str
    mode: str | None = None
    """None: it trains nothing, or in no mode that others need know."""
    attempt: int | None = None
    """The attempt of the job that it joins; None: of a job that does not heal."""
    fits: int = 0
    """Calls of `fit` that its process has begun: in an earlier attempt."""
