"""The HTTP face of a server: routes, bodies, errors."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sparsefleet.serving import arrow_body
from sparsefleet.serving.answers import HttpError, answer_bytes, refusal
from sparsefleet.serving.batcher import MicroBatcher
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.describe import described
from sparsefleet.serving.direct import DirectRequests
from sparsefleet.serving.log import tell
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.pointer import follow
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.request_log import RequestLog
from sparsefleet.serving.samples import parse_json
from sparsefleet.serving.versions import Versions

T = TypeVar("T")

MAX_ADMIN_BODY = 1 << 16
ARROW = arrow_body.CONTENT_TYPE.encode()
LARGE_BODY = 256 << 10
"""A longer body is parsed in a thread, so that other requests need not wait for it."""


class Service:
    """What the routes use. Made on the event loop, at start-up."""

    def __init__(self, config: ServeConfig, first: Predictor, pointer: Any = None) -> None:
        self.config, self.metrics = config, Metrics()
        self.versions = Versions(config, self.metrics, first)
        self.batcher = MicroBatcher(config.threads, config.batch_rows, config.max_waiting_rows, self.metrics)
        self._log = (
            RequestLog(config.log_requests, config.log_max_bytes, self.metrics, tell) if config.log_requests else None
        )
        self.direct = DirectRequests(self.versions, self.batcher, self.metrics, self._log)
        self._follow = (
            asyncio.create_task(follow(pointer, self.versions, config.watch_seconds, tell)) if pointer else None
        )

    async def close(self) -> None:
        if self._follow is not None:
            self._follow.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follow
        self.batcher.close()
        if self._log is not None:
            self._log.close()

    # -- predictions -------------------------------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        return Response(await self.scores(request.scope, request.receive), media_type="application/json")

    async def scores(self, scope: Scope, receive: Receive) -> bytes:
        """The answer's body. This speaks ASGI itself: `Request` and `Response` would cost a tenth of a prediction."""
        body = await self._body(scope, receive, self.config.max_body)
        with self.versions.hold() as predictor:
            arrow = _header(scope, b"content-type").partition(b";")[0].strip() == ARROW
            if arrow:
                batch = await asyncio.to_thread(
                    arrow_body.batch_of_stream, body, predictor.bundle.schema, predictor.bundle.inputs
                )
            elif len(body) > LARGE_BODY:
                batch = await asyncio.to_thread(predictor.parser.body, body)
            else:
                batch = predictor.parser.body(body)
            scores = await self.batcher.score(predictor, batch)
            self.metrics.predicted(predictor.version)
            answer = answer_bytes(predictor.version, scores)
        if self._log is not None and not arrow:
            self._log.add(answer, body)
        return answer

    # -- what it is and how it does ----------------------------------------------------------------------------------

    async def model(self, request: Request) -> Response:
        return JSONResponse(self.describe())

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": self.versions.current.version})

    async def show_metrics(self, request: Request) -> Response:
        current = self.versions.current
        text = self.metrics.text(current.version, self.batcher.waiting, current.source.stats())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def describe(self) -> dict[str, Any]:
        current, previous = self.versions.current, self.versions.previous
        bundle, config = current.bundle, self.config
        return {
            **described(bundle),
            "bundle": str(bundle.path),
            "previous": previous.version if previous else None,
            "sparse": {"kind": config.sparse.partition(":")[0], **current.source.stats()},
            "limits": {"body_bytes": config.max_body, "rows": config.max_rows},
        }

    # -- versions ----------------------------------------------------------------------------------------------------

    async def reload(self, request: Request) -> Response:
        self._allow_admin(request)
        document = parse_json(await self._body(request.scope, request.receive, MAX_ADMIN_BODY))
        allowed = {"bundle", "other_schema"}
        if not isinstance(document, dict) or not isinstance(document.get("bundle"), str) or document.keys() - allowed:
            raise HttpError(400, 'the body must be {"bundle": path}, with "other_schema": true where that is meant')
        if not isinstance(document.get("other_schema", False), bool):
            raise HttpError(400, '"other_schema" must be true or false', field="other_schema")
        taken = await self.versions.load(document["bundle"], other_schema=document.get("other_schema", False))
        tell(f"now serving {taken.version} from {taken.bundle.path}")
        return JSONResponse(self._switched())

    async def roll_back(self, request: Request) -> Response:
        self._allow_admin(request)
        await self._body(request.scope, request.receive, MAX_ADMIN_BODY)
        taken = await self.versions.roll_back()
        tell(f"rolled back to {taken.version} from {taken.bundle.path}")
        return JSONResponse(self._switched())

    def _switched(self) -> dict[str, Any]:
        previous = self.versions.previous
        return {"version": self.versions.current.version, "previous": previous.version if previous else None}

    def _allow_admin(self, request: Request) -> None:
        if self.config.token:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.config.token.encode()):
                raise HttpError(403, "switching versions needs the header Authorization: Bearer <SPARSEFLEET_TOKEN>")
        # A web page in a browser on this machine could send such a request; the browser adds its origin.
        elif not _is_loopback(request.client.host if request.client else "") or "origin" in request.headers:
            raise HttpError(
                403,
                "versions are switched from this machine only, unless the server was started with SPARSEFLEET_TOKEN",
            )

    async def _body(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        """Read the body; raise if it is longer than allowed or does not come in time."""
        declared = _header(scope, b"content-length").decode("latin-1")
        if declared.isdecimal() and int(declared) > limit:
            raise HttpError(413, f"the body has {declared} bytes; at most {limit} are allowed")
        chunks, size, more = [], 0, True
        try:
            async with asyncio.timeout(self.config.body_timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    size += len(chunk)
                    if size > limit:
                        raise HttpError(413, f"the body has more than {limit} bytes, which is the most allowed")
                    chunks.append(chunk)
        except TimeoutError:
            raise HttpError(408, f"the body did not come within {self.config.body_timeout:g} seconds") from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def application(config: ServeConfig, first: Predictor, pointer: Any = None) -> ASGIApp:
    """The ASGI application; its threads start and end with it."""
    services: list[Service] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        services.append(Service(config, first, pointer))
        try:
            yield {"service": services[-1]}  # for `protocol.PredictionConnection`
        finally:
            await services.pop().close()

    def route(path: str, method: str, handler: Callable[[Service, Request], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            service = services[-1]
            started, status = time.perf_counter(), 500
            try:
                response = await _answer(service, handler(service, request))
                status = response.status_code
                return response
            finally:
                service.metrics.answered(path, status, time.perf_counter() - started)

        return Route(path, endpoint, methods=[method])

    routed = Starlette(
        routes=[
            route("/v1/predict", "POST", Service.predict),
            route("/v1/model", "GET", Service.model),
            route("/v1/reload", "POST", Service.reload),
            route("/v1/rollback", "POST", Service.roll_back),
            route("/healthz", "GET", Service.health),
            route("/metrics", "GET", Service.show_metrics),
        ],
        lifespan=lifespan,
    )

    async def predict(scope: Scope, receive: Receive, send: Send) -> None:
        service = services[-1]
        started, status = time.perf_counter(), 500
        try:
            found = await _answer(service, service.scores(scope, receive))
            if isinstance(found, Response):
                status = found.status_code
                await found(scope, receive, send)
                return
            status = 200
            length = b"%d" % len(found)
            headers = [(b"content-length", length), (b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": found})
        finally:
            service.metrics.answered("/v1/predict", status, time.perf_counter() - started)

    async def directly(scope: Scope, receive: Receive, send: Send) -> None:
        # Routing and middleware take a tenth of a millisecond, which is much compared with one prediction.
        if scope["type"] == "http" and scope["path"] == "/v1/predict" and scope["method"] == "POST":
            await predict(scope, receive, send)
        else:
            await routed(scope, receive, send)

    return directly


async def _answer(service: Service, work: Awaitable[T]) -> T | Response:
    """The result of the work, or the answer for its error."""
    try:
        return await work
    except Exception as error:
        answer = refusal(error, service.versions.current.version)
        if answer is None:
            raise
        status, body, headers = answer
        return Response(body, status, headers)


def _header(scope: Scope, name: bytes) -> bytes:
    """A header's value, empty if there is none. ASGI gives names in lower case."""
    return next((value for found, value in scope["headers"] if found == name), b"")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
