"""What is said of a job that has failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparsefleet.launch.process import RoleProcess
from sparsefleet.launch.view import ENDED_WELL, View, state_of

SHOWN_LINES = 20
"""Lines of the log of the role that failed first."""

_BLAMED = re.compile(r"(?:the job has ended:|lost) worker (\d+) ")
"""As servers tell trainers whose end is theirs too (`server/sessions.py`)."""


def culprit_first(failures: Sequence[RoleProcess]) -> list[RoleProcess]:
    """The processes that failed, in their order; but before all others the one whose failure ended the job.

    Servers tell the others of a worker's error at once, so that they may be gone before it is. Last come servers that
    only tell of others' ends.
    """
    blamed = _BLAMED.search(failures[0].error_line() or "") if failures else None
    culprit = None if blamed is None else f"worker {blamed[1]}"
    return sorted(failures, key=lambda process: (process.incomplete, str(process.role) != culprit))


def tell_failures(view: View, processes: Sequence[RoleProcess], failures: Sequence[RoleProcess]) -> None:
    """failures: the processes that failed by themselves, first one first."""
    first, *others = failures
    others = [process for process in others if not process.incomplete]
    lines = first.last_lines(SHOWN_LINES)
    view.say(
        f"{first.role} failed first: {first.exit} after {first.seconds:.1f} s; "
        + (f"the last lines of {first.log}:" if lines else f"{first.log} is empty")
    )
    view.quote(lines)
    if first.role.is_server:
        _tell_error_of_a_worker(view, [*others, *processes], first.error_line())
    if others:
        view.say("failed too: " + ", ".join(f"{process.role} ({process.exit})" for process in others))
    finished = [process for process in processes if process.role.is_worker and state_of(process) == ENDED_WELL]
    if finished:
        well = f"{', '.join(str(process.role) for process in finished)} ended well"
        lost = ", ".join(str(process.role) for process in failures if process.role.is_worker)
        # Nothing goes on without a server: who has ended well was done with it before.
        went_on = lost and not any(process.role.is_server and not process.incomplete for process in failures)
        view.say(f"the job went on without {lost}: {well}" if went_on else well)


def _tell_error_of_a_worker(view: View, processes: Sequence[RoleProcess], told: str | None) -> None:
    """A server may not know what was wrong: mostly its log only tells who came and went. told: the server's error."""
    for process in processes:
        if process.role.is_worker and (error := process.error_line()) and error != told:
            view.say(f"{process.role} says in {process.log}:")
            view.quote([error])
            return
