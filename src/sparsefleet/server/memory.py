"""Keep freed memory: a server allocates and frees the same few megabytes for every message.

glibc gives such memory back to the system at once and takes it again, page by page: 330 page faults for a pull and a
push of 10,000 rows, which made them about 1.5 times as slow.
"""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger(__name__)

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT_BYTES = 256 << 20
_MMAP_BYTES = 32 << 20  # the most that glibc takes


def keep_freed_memory() -> None:
    """For a whole process; does nothing where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.debug("no mallopt here; freed memory goes back to the system")
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
