"""Which server holds what. Stable for ever: every process of a run depends on it. Checkpoints say by which function
they were spread (`PARTITION`), so that a server may read its own files only; whoever spreads otherwise reads all.

Sparse: a key goes to server `high32(mix(key)) * N >> 32`, where mix is the finalizer of MurmurHash3. Tables choose
their shards by the top bits of a salted hash of their own, so a server's keys still spread evenly over its shards.
Dense: server i of N holds [i*n//N, (i+1)*n//N) of a block of n values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsefleet.core.batch import I64, U64

_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT, _HALF = np.uint64(33), np.uint64(32)


PARTITION = "murmur3-high32"
"""The name of `server_of`, in checkpoints."""


def server_of(keys: U64, servers: int) -> npt.NDArray[np.uint64]:
    """For each key the index of its server."""
    mixed = keys ^ (keys >> _SHIFT)
    mixed *= _FIRST
    mixed ^= mixed >> _SHIFT
    mixed *= _SECOND
    mixed ^= mixed >> _SHIFT
    mixed >>= _HALF
    mixed *= np.uint64(servers)
    mixed >>= _HALF
    return mixed


def dense_cut(size: int, server: int, servers: int) -> tuple[int, int]:
    """The range [start, stop) of a block of `size` values that a server holds."""
    return server * size // servers, (server + 1) * size // servers


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several servers holds."""

    index: int
    servers: int

    def mine(self, keys: U64) -> npt.NDArray[np.bool_]:
        return np.asarray(server_of(keys, self.servers) == np.uint64(self.index))


@dataclass(frozen=True, slots=True)
class KeySplit:
    """Where the keys of one call go. With one server nothing is reordered."""

    counts: tuple[int, ...]
    """Keys per server."""
    order: I64 | None
    """Places of the keys, server by server; None where they stay as they are."""

    def places(self, server: int) -> I64 | slice:
        """Where this server's keys stand among the keys of the call."""
        if self.order is None:
            return slice(0, self.counts[0])
        start = sum(self.counts[:server])
        return self.order[start : start + self.counts[server]]


def split_keys(keys: U64, servers: int) -> KeySplit:
    if servers == 1:
        return KeySplit((len(keys),), None)
    owners = server_of(keys, servers).astype(np.uint16)
    counts = np.bincount(owners, minlength=servers)
    return KeySplit(tuple(int(count) for count in counts), np.argsort(owners, kind="stable"))
