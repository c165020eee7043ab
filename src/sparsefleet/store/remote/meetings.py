"""Meetings of trainers (barrier, reduce) at server 0."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefleet.core.errors import StoreError
from sparsefleet.store.remote.link import ServerLink
from sparsefleet.store.remote.long_wait import LongWait


class Meetings:
    """Trainers meet by name; the nth call of a name meets the others' nth call of it."""

    def __init__(
        self, link: ServerLink, identity: Mapping[str, Any], check: Callable[[], None], hear: Callable[[Any], None]
    ) -> None:
        """`check` raises when there is no sense in waiting any longer. `hear` is told who is first of those left."""
        self._link, self._identity, self._check, self._hear = link, dict(identity), check, hear
        self._count: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def go_on_from(self, turns: Sequence[Sequence[Any]]) -> None:
        """The others have had these meetings: kind, name and last turn of each."""
        with self._lock:
            for kind, name, turn in turns:
                self._count[kind, name] = int(turn)

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
        limit, wait = self._link.config.timeout, LongWait()
        while True:
            left = limit if deadline is None else max(0.05, deadline - time.monotonic())
            patience = min(1.0, left, limit / 4)
            answer = self._link.action("meet", {**request, "patience": patience}, limit)
            if "all" in answer:
                self._hear(answer.get("first"))
                return list(answer["all"])
            self._check()
            wait.tell(f"{kind} {name!r}", f"without {', '.join(map(str, answer.get('missing', [])))}")
            if deadline is not None and time.monotonic() >= deadline:
                missing = ", ".join(map(str, answer.get("missing", [])))
                raise StoreError(
                    f"{kind} {name!r}: after {seconds:g} s still without {missing}. Did it end, or not call {kind}?"
                )
