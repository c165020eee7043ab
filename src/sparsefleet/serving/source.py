"""SparseSource: where a served model's rows come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefleet.core.batch import F32, U64
from sparsefleet.core.errors import BundleError, ConfigError, SparseFleetError
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.kernels.bundle_rows import Found
from sparsefleet.serving.kernels.request import PlainRequests
from sparsefleet.serving.kernels.tower import BodiesScored, NetworkPlan


class SourceError(SparseFleetError):
    """Rows cannot be read at the moment. The request is answered with 503; the next one may succeed."""


class NotPublishedError(BundleError):
    """Not all of a bundle's rows are published where the server reads them; once they are, it can be loaded."""


BodyScorer = Callable[[PlainRequests, Sequence[bytes], Sequence[int]], BodiesScored | None]
"""Of bodies with at most so many samples each, together. None: they have to go the long way, which also tells why where
Redis is at fault."""


class SparseSource(ABC):
    """The rows of one bundle; another version is another source. Called from several threads at once."""

    @abstractmethod
    def rows(self, table: str, keys: U64) -> tuple[F32, Found]:
        """Rows [U, D] of unique keys, zeros where the table holds none, and which it holds [U]."""

    def fetch(self, asked: Sequence[tuple[str, U64]]) -> list[tuple[F32, Found]]:
        """Rows of several tables, whose names are distinct: all that a request needs, in one call."""
        return [self.rows(table, keys) for table, keys in asked]

    def probe(self, asked: Sequence[tuple[str, U64]]) -> list[tuple[F32, Found]]:
        """`fetch` past every cache: whether rows can be had now."""
        return self.fetch(asked)

    def body_scorer(self, plan: NetworkPlan) -> BodyScorer | None:
        """The way from requests' bytes to probabilities in one native call, where rows come over a network."""
        return None

    @property
    def merges(self) -> bool:
        """Whether several requests should be scored together where they wait: they would each wait for the network."""
        return False

    def look(self) -> list[str]:
        """Look after what the rows are read from, now and then; what is new and worth telling. May take long."""
        return []

    def stats(self) -> Mapping[str, Any]:
        """Counters for /metrics and /v1/model."""
        return {}

    def close(self) -> None:  # noqa: B027  (a mapping closes itself)
        """Close connections. `rows` and `fetch` are not called afterwards."""


OpenSource = Callable[[Bundle], SparseSource]
Fetch = Callable[[Sequence[tuple[str, U64]]], list[tuple[F32, Found]]]


def needs_files(where: str, fallback: str | None) -> bool:
    """Whether a bundle's own rows files are read."""
    return where == "mmap" or fallback is not None


def source_opener(where: str, fallback: str | None = None) -> OpenSource:
    """What `--sparse` means: `mmap`, the bundle's own files, or the address of a Redis that holds its rows.

    `fallback`: `file`: the bundle's own files wherever Redis cannot give rows.
    """
    if fallback is not None:
        if fallback != "file" or where == "mmap":
            raise ConfigError(
                f"fallback={fallback!r:.80}, sparse={where!r:.80}: the one fallback is file, and it goes with a redis://"
            )
        from sparsefleet.serving.fallback import FallbackSource

        first = source_opener(where)
        return lambda bundle: FallbackSource(bundle, first)
    if where == "mmap":
        from sparsefleet.serving.mmap import MappedSource

        return MappedSource
    if where.startswith(("redis://", "rediss://")):
        from sparsefleet.serving.redis import RedisAddress, RedisSource

        address = RedisAddress.parse(where)
        return lambda bundle: RedisSource(bundle, address)
    raise ConfigError(f"sparse={where!r:.80} is not a place for rows; choose mmap or redis://host:port/database")
