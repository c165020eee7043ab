"""Tell the servers of a job which processes have ended badly; their answers say what becomes of the job.

Peers notice a death by silence, after a time-out; the launcher sees it at once. And whether the others go on is the
servers' to say: they know the strategy of the script, and whether the worker failed by an error of its own.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sparsefleet.core.errors import SparseFleetError, StoreError
from sparsefleet.fleet.security import Security
from sparsefleet.launch.process import Exit
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import NOT_UP, ServerLink

TRY_SECONDS = 2.0
"""How long one server may take over one answer."""
AGAIN_SECONDS = 0.2
ASK_SECONDS = 0.5
"""How long the launcher itself stands still for an answer of a server of its own host."""

Answer = Literal["pending", "goes on", "ends", "none"]


class Notice:
    """A process's bad end, and what each server said to it."""

    def __init__(self, action: str, request: Mapping[str, Any], deadline: float, servers: int) -> None:
        self.action, self.request, self.deadline = action, request, deadline
        self.answers: list[Answer] = ["pending"] * servers


class Notices:
    """A thread for each server, from the first notice on: nobody waits here, and one that hangs delays no other."""

    def __init__(self, endpoints: Sequence[str], environment: Mapping[str, str], seconds: float) -> None:
        """seconds: how long servers that do not answer, such as those that still start, are asked again."""
        self._endpoints, self._environment, self._seconds = tuple(endpoints), environment, seconds
        self._notices: dict[int, Notice] = {}
        """By worker."""
        self._of_servers: list[Notice] = []
        self._over: set[int] = set()
        self._queues: list[queue.SimpleQueue[Notice | None]] = []
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()

    def worker_ended(self, worker: int, exit: Exit) -> None:
        """Have every server told."""
        request = {"worker": worker, "how": str(exit), "failed": exit.signal_name is None}
        self._notices[worker] = self._notice("ended", request)

    def server_failed(self, index: int, exit: Exit) -> None:
        """Have every other server told: where the job has not begun, nobody is to wait for that one. One that was
        killed while it started could not tell them itself."""
        self._of_servers.append(self._notice("server_failed", {"index": index, "reason": str(exit)}))

    def _notice(self, action: str, request: Mapping[str, Any]) -> Notice:
        notice = Notice(action, request, time.monotonic() + self._seconds, len(self._endpoints))
        if not self._threads:
            self._start()
        for waiting in self._queues:
            waiting.put(notice)
        return notice

    def server_ended(self, index: int) -> None:
        """That server's process is over: nothing to tell it, nothing to hear from it."""
        self._over.add(index)

    def goes_on(self, worker: int) -> bool | None:
        """Whether the others go on without that worker, which has ended badly; None: not known yet.

        One server that says no is enough. Where none can be reached they do not; where all have ended, they need none.
        """
        answers = [
            answer
            for index, answer in enumerate(self._notices[worker].answers)
            if answer != "pending" or index not in self._over
        ]
        if "ends" in answers:
            return False
        if "pending" in answers:
            return None
        return "goes on" in answers or len(self._over) == len(self._endpoints)

    def untold(self) -> list[str]:
        """The servers that have not heard of every bad end yet, and may still."""
        return [
            f"server {index} ({endpoint})"
            for index, endpoint in enumerate(self._endpoints)
            if index not in self._over
            and any(n.answers[index] == "pending" for n in (*self._notices.values(), *self._of_servers))
        ]

    def someone_left(self, server: int, workers: int) -> bool:
        """Whether any of so many workers, here or elsewhere, may still want something of that server."""
        link = None
        try:
            link = self._link(server)
            known = link.action("stats", {}, ASK_SECONDS)["workers"].values()
            return len(known) < workers or any(worker["state"] in ("present", "resting") for worker in known)
        except (SparseFleetError, KeyError, TypeError, AttributeError):  # it does not say, so there may be
            return True
        finally:
            if link is not None:
                link.client.close()

    def close(self) -> None:
        self._closing.set()
        for waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join(TRY_SECONDS + 1)

    def _start(self) -> None:
        for index in range(len(self._endpoints)):
            self._queues.append(queue.SimpleQueue())
            name = f"notices-server-{index}"
            self._threads.append(threading.Thread(target=self._serve, args=(index,), name=name, daemon=True))
            self._threads[-1].start()

    def _serve(self, index: int) -> None:
        link: ServerLink | None = None
        with contextlib.suppress(SparseFleetError):  # its servers and workers say the same of it, in their logs
            link = self._link(index)
        while (notice := self._queues[index].get()) is not None:
            notice.answers[index] = "none" if link is None else self._ask(link, notice)
        if link is not None:
            link.client.close()

    def _link(self, index: int) -> ServerLink:
        security = Security.from_environment(self._environment)
        return ServerLink(RemoteConfig(self._endpoints, token=security.token, tls_root_certs=security.roots), index)

    def _ask(self, link: ServerLink, notice: Notice) -> Answer:
        while not self._closing.is_set() and link.index not in self._over:
            left = notice.deadline - time.monotonic()
            try:
                answer = link.action(notice.action, notice.request, min(TRY_SECONDS, left))
                return "goes on" if answer.get("goes_on") is True else "ends"
            except StoreError as error:
                if not isinstance(error.__cause__, NOT_UP):
                    return "ends"
                if left <= AGAIN_SECONDS:
                    break
            self._closing.wait(AGAIN_SECONDS)
        return "none"
