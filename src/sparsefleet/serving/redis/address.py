"""RedisAddress: where Redis is, and under which prefix the rows stand."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from sparsefleet.core.errors import ConfigError

PASSWORD = "SPARSEFLEET_REDIS_PASSWORD"
"""Holds the password, so that it need not stand in a command line, which everybody on the machine can read."""
PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,40}")
FORM = "redis://[user:password@]host[:port][/database][?prefix=NAME&timeout=SECONDS&cache_mb=N]"


@dataclass(frozen=True)
class RedisAddress:
    host: str
    port: int = 6379
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    prefix: str = "sparsefleet"
    timeout: float = 0.5
    """Seconds that a server waits for a connection, or for the rows of one request."""
    cache_mb: float = 128.0
    """Size of a server's cache of rows, for each version that it has open."""

    def __post_init__(self) -> None:
        if not PREFIX.fullmatch(self.prefix):
            raise ConfigError(f"prefix={self.prefix!r} must be 1 to 40 of A-Z a-z 0-9 _ . -")
        if not self.host or not 1 <= self.port <= 65535 or self.db < 0:
            raise ConfigError(f"{self.shown} is no Redis address; wanted is {FORM}")
        if not 0 < self.timeout <= 600:
            raise ConfigError(f"timeout={self.timeout} must be above 0, and 600 seconds at most")
        if not 0 <= self.cache_mb < 2**30:
            raise ConfigError(f"cache_mb={self.cache_mb} must be 0 (no cache) or above")

    @staticmethod
    def parse(url: str, *, prefix: str | None = None) -> RedisAddress:
        """`prefix`, where given, is taken in place of the URL's."""
        wrong = ConfigError(f"{_hidden(url)!r} is no Redis address; wanted is {FORM}, rediss:// for TLS")
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            port, database = parts.port or 6379, parts.path.strip("/") or "0"
        except ValueError:
            raise wrong from None
        if parts.scheme not in ("redis", "rediss") or not database.isdecimal() or parts.fragment:
            raise wrong
        unknown = options.keys() - {"prefix", "timeout", "cache_mb"}
        if unknown:
            raise ConfigError(
                f"{min(unknown)!r} is not an option of a Redis address; there are prefix, timeout and cache_mb"
            )
        password = unquote(parts.password) if parts.password else os.environ.get(PASSWORD) or None
        return RedisAddress(
            host=parts.hostname or "",
            port=port,
            db=int(database),
            user=unquote(parts.username) if parts.username else None,
            password=password,
            tls=parts.scheme == "rediss",
            prefix=prefix or options.get("prefix", "sparsefleet"),
            timeout=_number(options, "timeout", 0.5),
            cache_mb=_number(options, "cache_mb", 128.0),
        )

    @property
    def shown(self) -> str:
        """The address for messages, without the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.db}"


def _number(options: dict[str, str], name: str, default: float) -> float:
    try:
        return float(options.get(name, default))
    except ValueError:
        raise ConfigError(f"{name}={options[name]!r} is not a number") from None


def _hidden(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else url
