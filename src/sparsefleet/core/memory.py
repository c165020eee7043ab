"""Keep freed memory: reading and training each allocate and free the same few megabytes again and again.

glibc gives such blocks back to the system at once and takes them anew, page by page. The page faults cost a third of
the reading speed, and made a server's pull and push of 10,000 rows 1.6 times as slow.

Give it back: what is freed once and for all, such as a model that is served no more, stays in the arenas of the threads
that allocated it, in pieces between what is still used, unless somebody asks for it.
"""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT_BYTES = 256 << 20
_MMAP_BYTES = 32 << 20  # the most that glibc takes


@cache
def keep_freed_memory() -> None:
    """Once per process; does nothing where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)


def give_back_freed_memory() -> None:
    """Whole pages that are free in any arena go back to the system. Takes milliseconds; others may wait for it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim(0)
