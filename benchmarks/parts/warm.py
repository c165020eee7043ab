"""Memory that the host of a virtual machine has taken back costs the first who touches it far more than the work done.

A page that the host must find again took 20 to 46 microseconds where a page at hand took .6 (benchmarks/local.md):
whoever's table grows first pays for all, seconds in a run of five. So a measured process touches what it will need,
gives it back, and begins at once.
"""

from __future__ import annotations

import mmap

HUGE_PAGE = 2 << 20


def warm_memory(megabytes: int = 512) -> None:
    """Has the host give this machine so much memory; it is free again when this returns."""
    with mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, megabytes << 20, HUGE_PAGE):
            pages[at] = 1
