"""What a browser and Ray's head are answered: the page, its figures, and what Ray asks before it shows a page of
Grafana's at all.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from sparsefleet.launch.on_ray.metrics_page.history import KEPT_SECONDS
from sparsefleet.launch.on_ray.metrics_page.watch import Watch
from sparsefleet.launch.on_ray.series import SERIES, STALE_SECONDS

SHORTEST_SECONDS = 60.0
_THEME = 'data-theme="light"'


def site(watch: Watch) -> web.Application:
    """Both ports answer all of it."""
    page, panel = _Page("page.html", "page.css", "page.js"), _Page("panel.html", "page.css")
    app = web.Application()

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"database": "ok", "server": "sparsefleet ray-metrics, not a Grafana"})

    async def query(request: web.Request) -> web.Response:
        # Ray looks whether a Prometheus answers by asking for a constant. Whoever asks for more hears the truth.
        if request.query.get("query") == "vector(1)":
            result = [{"metric": {}, "value": [watch.now(), "1"]}]
            return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})
        why = "this is sparsefleet ray-metrics, not a Prometheus: it answers query=vector(1) only"
        return web.json_response({"status": "error", "errorType": "bad_data", "error": why}, status=400)

    async def figures(request: web.Request) -> web.Response:
        return web.json_response(figures_since(watch, request.query.get("seconds", "")))

    app.router.add_get("/api/health", health)
    app.router.add_get("/api/v1/query", query)
    app.router.add_get("/sparsefleet/figures", figures)
    app.router.add_get("/d/{any:.*}", page.answer)
    app.router.add_get("/d-solo/{any:.*}", panel.answer)
    return app


def figures_since(watch: Watch, seconds: str) -> dict[str, Any]:
    """What the page draws, of the last so many seconds."""
    try:
        span = min(max(float(int(seconds)), SHORTEST_SECONDS), KEPT_SECONDS)
    except ValueError:
        span = KEPT_SECONDS
    now = watch.now()
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in SERIES}
    for (name, job, role), points in watch.history.since(now - span, now).items():
        lines[name].append({"job": job, "role": role, "points": points})
    return {
        "now": now,
        "seconds": span,
        "stale_seconds": STALE_SECONDS,
        "troubles": watch.troubles(),
        "charts": [{"name": name, **asdict(one), "lines": lines[name]} for name, one in SERIES.items()],
    }


class _Page:
    """One file to the browser. Nothing of a job stands in it: scripts ask for that, and set it as text."""

    def __init__(self, html: str, css: str, js: str = "") -> None:
        folder = Path(__file__).parent
        style, script = ((folder / name).read_text("utf-8") if name else "" for name in (css, js))
        self._html = (folder / html).read_text("utf-8").replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
        # Should anything slip through, the browser would not run it.
        self._policy = (
            f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
        )

    async def answer(self, request: web.Request) -> web.Response:
        html = self._html
        if request.query.get("theme") == "dark":
            html = html.replace(_THEME, 'data-theme="dark"', 1)
        headers = {"Content-Security-Policy": self._policy, "Cache-Control": "no-store"}
        return web.Response(text=html, content_type="text/html", headers=headers)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
