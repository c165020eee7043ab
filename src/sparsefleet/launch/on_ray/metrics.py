"""A job's figures as metrics of Ray's, for Prometheus and Grafana: asked of the servers now and then.

Every series says whose it is: `job_name` (sparsefleet-…, as the driver says it) and `role` (server 0, worker 1), the
two parts of an actor's name in Ray's dashboard. Not `job`: that is Prometheus' own label for what it scrapes, and it
would rename ours to `exported_job`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.fleet.security import Security
from sparsefleet.launch.on_ray.series import LABELS, PREFIX, SERIES
from sparsefleet.store.remote.config import RemoteConfig
from sparsefleet.store.remote.link import ServerLink

EVERY_SECONDS = 3.0
ASK_SECONDS = 3.0
OF_TRAINERS = {
    "samples_per_second": "rows_per_s",
    "loss": "loss",
    "auc": "auc",
    "step": "step",
    "epoch": "epoch",
    "seconds_left": "seconds_left",
    "staleness_steps": "staleness",
}
"""Which figure of a trainer's report (`train/status.py`) each metric is."""
AWAY = ("dropped", "gone", "lost", "stopped")
"""States of trainers that are not in the job any more: what they said last is no figure of now."""

Figure = tuple[str, str, float]
"""A metric's name, the role, the value."""


def figures_of_trainers(stats: Mapping[str, Any]) -> Iterator[Figure]:
    """Of a server's answer."""
    for index, trainer in stats["workers"].items():
        if trainer["state"] in AWAY:
            continue
        for name, key in OF_TRAINERS.items():
            if isinstance(value := trainer.get(key), int | float):
                # Logs and `sparsefleet status` count epochs from 1.
                yield name, f"worker {index}", float(value) + (name == "epoch")


def figures_of_server(stats: Mapping[str, Any]) -> Iterator[Figure]:
    """Of its answer."""
    role, tables = f"server {stats['index']}", stats["tables"].values()
    yield "table_rows", role, float(sum(table["rows"] for table in tables))
    yield "memory_bytes", role, float(sum(held["memory_bytes"] for held in (*tables, *stats["dense"].values())))


class RayMetrics:
    """A thread; nobody waits for a server that does not answer."""

    def __init__(
        self,
        endpoints: Sequence[str],
        environment: Mapping[str, str],
        job: str,
        restarts: Callable[[], Mapping[str, int]],
    ) -> None:
        """restarts: by role, how often each was started again."""
        self._endpoints, self._environment, self._job = tuple(endpoints), environment, job
        self._restarts = restarts
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._tell, name="ray-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(ASK_SECONDS + 1)
            self._thread = None

    def _tell(self) -> None:
        from ray.util.metrics import Gauge  # here: the names above are for those without Ray too

        gauges = {name: Gauge(PREFIX + name, one.text, LABELS) for name, one in SERIES.items()}
        links: dict[int, ServerLink] = {}
        while not self._closing.wait(EVERY_SECONDS):
            figures: list[Figure] = [("restarts", role, float(count)) for role, count in self._restarts().items()]
            for index in range(len(self._endpoints)):
                if not self._closing.is_set():
                    figures += self._ask(links, index)
            for name, role, value in figures:
                gauges[name].set(value, tags={"job_name": self._job, "role": role})
        for link in links.values():
            link.client.close()

    def _ask(self, links: dict[int, ServerLink], index: int) -> list[Figure]:
        # Servers that are not up yet, or are gone, have nothing to tell; whatever is wrong, the roles' logs say.
        with contextlib.suppress(SparseFleetError, KeyError, TypeError, ValueError, AttributeError):
            if index not in links:
                links[index] = self._link(index)
            stats = links[index].action("stats", {}, ASK_SECONDS)
            return [*figures_of_server(stats), *(figures_of_trainers(stats) if index == 0 else ())]
        return []

    def _link(self, index: int) -> ServerLink:
        security = Security.from_environment(self._environment)
        return ServerLink(RemoteConfig(self._endpoints, token=security.token, tls_root_certs=security.roots), index)
