"""What this process is in its job. `fleet.init` finds it out; layers below may ask."""

from __future__ import annotations


class ProcessRole:
    part_of_job: str = ""
    """In words, which part of a job of several processes this one plays; empty for a process by itself."""


PROCESS_ROLE = ProcessRole()
