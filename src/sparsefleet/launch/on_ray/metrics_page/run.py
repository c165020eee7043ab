"""Serve the page until a signal comes."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from sparsefleet.core.errors import ConfigError
from sparsefleet.launch.on_ray.metrics_page.site import site
from sparsefleet.launch.on_ray.metrics_page.watch import Watch

END_SECONDS = 2.0
"""For answers under way, once a signal has come."""
IDLE_SECONDS = 60.0
"""After which a connection without a request is closed."""


@dataclass(frozen=True, slots=True)
class PageConfig:
    folder: Path
    """Of the head: `ray start --temp-dir`."""
    host: str = "127.0.0.1"
    port: int = 3000
    """Where Ray looks for Grafana; 0: a free one."""
    prometheus_port: int | None = 9090
    """Where Ray looks for Prometheus; 0: a free one; None: one runs there."""

    def __post_init__(self) -> None:
        for name in ("port", "prometheus_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1 << 16:
                raise ConfigError(f"{name}={value} is no port; give one from 0 to 65535")
        if self.port and self.port == self.prometheus_port:
            raise ConfigError(f"port={self.port} is prometheus_port, too: Ray asks at two ports, so give two")


def serve_page(
    config: PageConfig, say: Callable[[str], None], listening: Callable[[int, int | None], None] = lambda *ports: None
) -> None:
    """say: is told of troubles. listening: of the two ports, once both are open."""
    asyncio.run(_serve(config, say, listening))


async def _serve(config: PageConfig, say: Callable[[str], None], listening: Callable[[int, int | None], None]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    watch = Watch(config.folder, say)
    runner = web.AppRunner(site(watch), access_log=None, keepalive_timeout=IDLE_SECONDS, shutdown_timeout=END_SECONDS)
    async with aiohttp.ClientSession() as session:
        if not await _before(stop, watch.begin(session)):
            return
        await runner.setup()
        try:
            port = await _listen(runner, config.host, config.port, GRAFANA_THERE)
            prometheus_port = None
            if config.prometheus_port is not None:
                prometheus_port = await _listen(runner, config.host, config.prometheus_port, PROMETHEUS_THERE)
            listening(port, prometheus_port)
            await _before(stop, watch.go_on(session))
        finally:
            await runner.cleanup()


async def _before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work came to its end before the signal; its errors are raised."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)


GRAFANA_THERE = (
    "probably a Grafana runs there: then Ray shows its panels, this command is not needed, and training figures are "
    "drawn by deploy/grafana/training.json. If it is something else, give another --port, and set "
    "RAY_GRAFANA_HOST=http://localhost:PORT before ray start --head"
)
PROMETHEUS_THERE = (
    "if a Prometheus runs there, give --no-prometheus; if it is something else, give another --prometheus-port, and "
    "set RAY_PROMETHEUS_HOST=http://localhost:PORT before ray start --head"
)


async def _listen(runner: web.AppRunner, host: str, port: int, taken: str) -> int:
    place = web.TCPSite(runner, host, port)
    try:
        await place.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} of {host} is taken; {taken}") from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return int(runner.addresses[-1][1])
