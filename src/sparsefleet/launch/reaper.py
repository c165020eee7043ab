"""Find every process of a job and end it, grandchildren included; as a script, do so once the launcher is gone.

The launcher may be killed in a way that leaves it no time for anything. So it starts this file as a process of its own,
tells it over a pipe which roles it has started, and the end of the pipe is the sign that the launcher has ended.

A process belongs to a job when it lives in the session of one of its roles, or was started with the job's id in its
environment (which finds those that made a session of their own). Standard library only, no package imports: this runs
in a bare interpreter that must start at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable

JOB_VARIABLE = "SPARSEFLEET_JOB"
TICK_SECONDS = 0.05
_THREADS = 17
"""Where /proc/PID/stat has the number of threads, counted behind the name."""
KILLED_SECONDS = 10.0
"""How long a process may take to go once it is killed; it takes that long only inside a system call that hangs."""


def members(job: str, sessions: Iterable[int]) -> dict[int, int]:
    """Living processes of the job: pid to session."""
    wanted, mark = set(sessions), job.encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The name, in parentheses, may hold anything; what follows it is fixed: state, ppid, group, session, …
                fields = file.read().rpartition(b")")[2].split()
            state, session, threads = fields[0], fields[3], fields[_THREADS]
            # One whose main thread has ended is a zombie, but not over: its other threads go on.
            if state in (b"Z", b"X") and int(threads) <= 1:
                continue
            if int(session) not in wanted:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if mark not in file.read():
                        continue
        except (OSError, ValueError):  # gone meanwhile, or another user's
            continue
        found[int(entry)] = int(session)
    return found


def end_processes(
    job: str,
    sessions: Iterable[int],
    grace: float,
    *,
    hurry: Callable[[], bool] = lambda: False,
    tick: Callable[[], None] = lambda: None,
) -> list[int]:
    """SIGTERM to the roles, and to what they leave behind; SIGKILL to all after `grace` seconds or when in a hurry.

    A role's children are left to it while it winds up. Returns the processes that are still there: none, but for those
    that even SIGKILL does not move.
    """
    leaders = set(sessions)
    told: set[int] = set()
    killed_at: float | None = None
    deadline = time.monotonic() + grace
    while alive := members(job, leaders):
        now = time.monotonic()
        if now >= deadline or hurry():
            killed_at = now if killed_at is None else killed_at
            if now - killed_at > KILLED_SECONDS:
                return sorted(alive)
            _signal(alive, signal.SIGKILL)
        else:
            winding_up = leaders & alive.keys()
            untold = {pid for pid, session in alive.items() if pid in leaders or session not in winding_up} - told
            _signal(untold, signal.SIGTERM)
            _signal(untold, signal.SIGCONT)  # one that stands stopped hears of nothing before
            told |= untold
        tick()
        time.sleep(TICK_SECONDS)
    return []


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # gone meanwhile, or runs as another user now
            continue


def remove_files(job: str, paths: Iterable[str]) -> None:
    """Remove those that hold the job's id: another job may have put its own in their place."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                ours = job.encode() in file.read()
            if ours:
                os.unlink(path)
        except OSError:  # gone already
            continue


def main() -> None:
    """Arguments: job, grace. Standard input: a line per pid (= session) or file; its end is the launcher's end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    job, grace = sys.argv[1], float(sys.argv[2])
    lines = [line.rstrip("\n") for line in sys.stdin]
    end_processes(job, {int(line) for line in lines if line.isdigit()}, grace)
    remove_files(job, [line for line in lines if line.startswith("/")])


if __name__ == "__main__":
    main()
