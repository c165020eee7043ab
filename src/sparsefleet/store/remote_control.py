"""Signs of life, and meetings of trainers (barrier, reduce) at server 0."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.store.patient import Patient
from sparsefleet.store.remote_link import ServerLink

log = logging.getLogger(__name__)


class Heartbeats:
    """One thread per server, so that a stopped server does not make us look dead to the others."""

    def __init__(self, links: Sequence[ServerLink], identity: Mapping[str, Any], seconds: float) -> None:
        self.status: dict[str, Any] = {}
        self.first = 0
        """The lowest of the trainers that are left, as server 0 said last."""
        self._identity, self._seconds = dict(identity), seconds
        self._stop = threading.Event()
        self._links, self._answered = links, {link.index: time.monotonic() for link in links}
        self._threads = [
            threading.Thread(target=self._beat, args=(link,), name=f"sparsefleet-heartbeat-{link.index}", daemon=True)
            for link in links
        ]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise if a server has been silent for the time-out: whoever waits for others may wait because of it."""
        for link in self._links:
            limit = link.config.timeout
            if time.monotonic() - self._answered[link.index] > limit and not self._stop.is_set():
                raise link.silent("signs of life", limit)

    def silence(self) -> None:
        """No more signs of life from now on; `stop` then waits for those that are under way."""
        self._stop.set()

    def stop(self) -> None:
        self.silence()
        for thread in self._threads:
            thread.join(timeout=2 * self._seconds + 1)

    def _beat(self, link: ServerLink) -> None:
        while not self._stop.wait(self._seconds):
            try:
                answer = link.action("heartbeat", {**self._identity, "status": self.status}, 2 * self._seconds)
                self._answered[link.index] = time.monotonic()
                link.heard_of(answer)
                if link.index == 0 and answer.get("first") is not None:
                    self.first = int(answer["first"])
            except StoreError as error:
                # Whoever next needs that server gets the error; here it is only for the log.
                log.debug("heartbeat: %s", error)


class Meetings:
    """Trainers meet by name; the nth call of a name meets the others' nth call of it."""

    def __init__(self, link: ServerLink, identity: Mapping[str, Any], check: Callable[[], None]) -> None:
        """`check` raises when there is no sense in waiting any longer."""
        self._link, self._identity, self._check = link, dict(identity), check
        self._count: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def meet(self, kind: str, name: str, payload: Any, seconds: float | None) -> list[Any]:
        """Everyone's payload, once all trainers have come. Without `seconds` the wait ends only when one is lost."""
        with self._lock:
            self._count[kind, name] += 1
            request = {
                **self._identity,
                "kind": kind,
                "name": name,
                "turn": self._count[kind, name],
                "payload": payload,
                # A trainer that waits in another thread may still come elsewhere.
                "bounded": seconds is not None or threading.current_thread() is not threading.main_thread(),
            }
        deadline = None if seconds is None else time.monotonic() + seconds
        limit, patient = self._link.config.timeout, Patient()
        while True:
            left = limit if deadline is None else max(0.05, deadline - time.monotonic())
            patience = min(1.0, left, limit / 4)
            answer = self._link.action("meet", {**request, "patience": patience}, limit)
            if "all" in answer:
                return list(answer["all"])
            self._check()
            patient.waits_for(f"{kind} {name!r}", f"without {', '.join(map(str, answer.get('missing', [])))}")
            if deadline is not None and time.monotonic() >= deadline:
                missing = ", ".join(map(str, answer.get("missing", [])))
                raise StoreError(
                    f"{kind} {name!r}: after {seconds:g} s still without {missing}. Did it end, or not call {kind}?"
                )
