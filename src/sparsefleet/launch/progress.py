"""How far a job is, for launchers whose output no terminal shows: asked of a server now and then, told in one line."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.fleet.security import Security
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

ASK_SECONDS = 3.0
_OVER = ("dropped", "gone", "lost", "stopped")


class JobProgress:
    """A thread that asks; `line` is what it heard last, once. Nobody waits for a server that does not answer."""

    def __init__(self, endpoints: Sequence[str], environment: Mapping[str, str], every: float) -> None:
        """every: seconds between two questions; 0: never."""
        self._endpoints, self._environment, self._every = tuple(endpoints), environment, every
        self._closing = threading.Event()
        self._line: str | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._every > 0 and self._endpoints:
            self._thread = threading.Thread(target=self._ask, name="job-progress", daemon=True)
            self._thread.start()

    def line(self) -> str | None:
        line, self._line = self._line, None
        return line

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(ASK_SECONDS + 1)

    def _ask(self) -> None:
        link: ServerLink | None = None
        said = ""
        while not self._closing.wait(self._every):
            # Servers that are not up yet, or are gone, have nothing to tell; whatever is wrong, the roles' logs say.
            with contextlib.suppress(SparseFleetError, KeyError, TypeError, ValueError, AttributeError):
                link = link or self._link()
                line = described(link.action("stats", {}, ASK_SECONDS)["workers"])
                if line and line != said:
                    self._line = said = line
        if link is not None:
            link.client.close()

    def _link(self) -> ServerLink:
        security = Security.from_environment(self._environment)
        return ServerLink(RemoteConfig(self._endpoints, token=security.token, tls_root_certs=security.roots), 0)


def described(workers: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What the trainers say of themselves, in one line; None where none has begun to train."""
    at_work = [one for one in workers.values() if one["state"] not in _OVER and one.get("step")]
    if not at_work:
        return None
    steps = sorted({int(one["step"]) for one in at_work})
    parts = [
        f"epoch {int(at_work[0]['epoch']) + 1}" + (f"/{at_work[0]['epochs']}" if at_work[0].get("epochs") else ""),
        f"step {steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else ""),
    ]
    speeds = [one["rows_per_s"] for one in at_work if one.get("rows_per_s") is not None]
    if speeds:  # trainers that have just begun a pass do not know theirs yet
        parts.append(f"{sum(speeds):,.0f} rows/s")
    aucs = [one["auc"] for one in at_work if isinstance(one.get("auc"), float) and math.isfinite(one["auc"])]
    if aucs:
        parts.append(f"auc {sum(aucs) / len(aucs):.5f}")
    left = [one["seconds_left"] for one in at_work if isinstance(one.get("seconds_left"), int | float)]
    if left:
        minutes, seconds = divmod(round(max(left)), 60)
        parts.append(
            f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left" if minutes >= 60 else f"{minutes}:{seconds:02} left"
        )
    doing = sorted({str(one.get("doing")) for one in at_work} - {"training", "None"})
    return ", ".join([*parts, *doing])
