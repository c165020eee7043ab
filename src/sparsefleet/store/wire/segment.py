"""Segment: memory that a trainer and a server of one host share, so that large bodies need not go through gRPC.

A trainer makes one for each stream and offers it in the stream's opening: its process, its descriptor, its size and a
secret that stands at its beginning. A server that can open it through /proc and finds the secret there is on the same
host and runs as the same user; from then on bodies are named by their place in the segment. Whatever is in the way
(another host or user, a container, no Linux), the server declines and bodies travel in the messages.

It is a memfd: it has no name in any folder, and is gone with the last process that has it. It is sealed against
shrinking, so that a peer that misbehaves cannot make an access to it fail. What is in it the peer can change at any
time: whoever relies on bytes staying the same (a table, on its keys) copies them first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
from collections import deque
from typing import Any

import numpy as np

from sparsefleet.store.wire.frames import Bytes, WireError, address_of

try:
    import fcntl

    SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    AVAILABLE = hasattr(os, "memfd_create")
except (ImportError, AttributeError):  # not Linux
    AVAILABLE = False

SEGMENT_BYTES = 256 << 20
"""Address space; only what is used takes memory."""
SHARED_BYTES = 4 << 10
"""Smaller bodies go in the message: the journey costs the same."""

_NAME = "sparsefleet"
_SECRET_BYTES = 32
_ALIGNMENT = 64


class Segment:
    """What both sides do: see a range of it as bytes."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._bytes: Bytes = np.frombuffer(memory, np.uint8)

    def view(self, place: object) -> Bytes:
        """The bytes at `[offset, length]`, as a message's header says it."""
        if (
            not isinstance(place, list)
            or len(place) != 2
            or not all(type(number) is int and number >= 0 for number in place)
            or place[0] % 8
            or place[0] < _ALIGNMENT
            or sum(place) > len(self._bytes)
        ):
            raise WireError(f"no place in a segment of {len(self._bytes)} bytes: {place!r}")
        return self._bytes[place[0] : sum(place)]


class OwnSegment(Segment):
    """The trainer's side: makes the segment, and gives out room in it."""

    def __init__(self, size: int = SEGMENT_BYTES) -> None:
        """OSError where the system has none to give."""
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, size)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, SEALS)
            super().__init__(mmap.mmap(self._descriptor, size))
        except BaseException:
            self.withdraw()  # once: by the time of __del__ the number may be another thread's file
            raise
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._bytes[:_SECRET_BYTES] = np.frombuffer(self._secret, np.uint8)
        self._start = address_of(self._bytes)
        self._free: list[tuple[int, int]] = [(_ALIGNMENT, size)]
        self._taken: dict[int, int] = {}
        # What is given back lands here, from any thread and from the collector; `take` sorts it in.
        self._returned: deque[int] = deque()

    def offer(self) -> dict[str, Any]:
        return {
            "process": os.getpid(),
            "descriptor": self._descriptor,
            "bytes": len(self._bytes),
            "secret": self._secret.hex(),
        }

    def withdraw(self) -> None:
        """Whoever should open it has done so, or will not: nobody else may."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1

    def take(self, size: int) -> Bytes | None:
        """Room for so many bytes (1 or more) until given back, or None where too little is left.

        From one thread at a time.
        """
        while self._returned:
            self._sort_in(self._returned.popleft())
        wanted = -(-size // _ALIGNMENT) * _ALIGNMENT
        for index, (start, stop) in enumerate(self._free):
            if stop - start >= wanted:
                self._free[index : index + 1] = [(start + wanted, stop)] if stop - start > wanted else []
                self._taken[start] = start + wanted
                return self._bytes[start : start + size]
        return None

    def give_back(self, room: Bytes) -> None:
        place = self.place(room)
        if place is not None:
            self._returned.append(place[0])

    def place(self, room: Bytes) -> list[int] | None:
        """Where in the segment these bytes are; None where they are elsewhere."""
        offset = address_of(room) - self._start
        return [offset, len(room)] if _ALIGNMENT <= offset < len(self._bytes) else None

    def _sort_in(self, start: int) -> None:
        stop = self._taken.pop(start, None)
        if stop is None:
            return  # given back twice
        merged: list[tuple[int, int]] = []
        for one in sorted([*self._free, (start, stop)]):
            if merged and merged[-1][1] == one[0]:
                merged[-1] = (merged[-1][0], one[1])
            else:
                merged.append(one)
        self._free = merged

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.withdraw()


def accepted(offer: object) -> Segment | None:
    """The server's side: the segment that is offered, or None where it is none that we share."""
    if offer is None or not AVAILABLE:
        return None
    if not isinstance(offer, dict):
        raise WireError(f"a segment's offer is an object; got {type(offer).__name__}")
    process, descriptor, size = (offer.get(name) for name in ("process", "descriptor", "bytes"))
    secret = offer.get("secret")
    if (
        not all(type(number) is int and number >= 0 for number in (process, descriptor, size))
        or not isinstance(secret, str)
        or len(secret) != 2 * _SECRET_BYTES
    ):
        raise WireError("a segment's offer needs process, descriptor, bytes and secret")
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        # Looked at before it is opened: opening somebody's terminal or pipe is not without effect.
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return None
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size or not _ALIGNMENT < size <= SEGMENT_BYTES:
            return None
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return None
        memory = mmap.mmap(file, size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    if not secrets.compare_digest(memory[:_SECRET_BYTES].hex(), secret):
        return None
    return Segment(memory)
