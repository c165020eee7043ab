"""A job's figures as metrics of Ray's, which its dashboard and Prometheus show: asked of a server now and then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ray.util.metrics import Gauge

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.fleet.security import Security
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

EVERY_SECONDS = 3.0
ASK_SECONDS = 3.0
FIGURES = {
    "step": "Steps of a trainer since the run's beginning.",
    "rows_per_s": "Samples a second of a trainer, of its last seconds.",
    "auc": "AUC of a trainer's samples so far in this epoch.",
    "staleness": "Steps that a trainer has done and the servers have not applied.",
    "epoch": "The epoch that a trainer is in, from 0.",
}


class RayMetrics:
    """A thread; nobody waits for a server that does not answer."""

    def __init__(self, endpoints: Sequence[str], environment: Mapping[str, str], job: str) -> None:
        self._endpoints, self._environment, self._job = tuple(endpoints), environment, job
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._ask, name="ray-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(ASK_SECONDS + 1)
            self._thread = None

    def _ask(self) -> None:
        gauges = {
            name: Gauge(f"sparsefleet_{name}", description=text, tag_keys=("job", "trainer"))
            for name, text in FIGURES.items()
        }
        link: ServerLink | None = None
        while not self._closing.wait(EVERY_SECONDS):
            # Servers that are not up yet, or are gone, have nothing to tell; whatever is wrong, the roles' logs say.
            with contextlib.suppress(SparseFleetError, KeyError, TypeError, ValueError, AttributeError):
                link = link or self._link()
                workers: Mapping[str, Mapping[str, Any]] = link.action("stats", {}, ASK_SECONDS)["workers"]
                for index, worker in workers.items():
                    for name, gauge in gauges.items():
                        if isinstance(value := worker.get(name), int | float):
                            gauge.set(float(value), tags={"job": self._job, "trainer": str(index)})
        if link is not None:
            link.client.close()

    def _link(self) -> ServerLink:
        security = Security.from_environment(self._environment)
        return ServerLink(RemoteConfig(self._endpoints, token=security.token, tls_root_certs=security.roots), 0)
