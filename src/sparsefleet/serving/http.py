"""The HTTP face of a server: routes, bodies, errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import ipaddress
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparsefleet.core.errors import SparseFleetError
from sparsefleet.serving import arrow_body
from sparsefleet.serving.answers import HttpError, answer_bytes, no_number, refusal, told
from sparsefleet.serving.batcher import MicroBatcher
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.connections import Connections
from sparsefleet.serving.describe import described, fields_of
from sparsefleet.serving.direct import DirectRequests, most_samples
from sparsefleet.serving.log import tell, tell_failure, tell_seldom
from sparsefleet.serving.metrics import Metrics, drift_text
from sparsefleet.serving.openapi import openapi
from sparsefleet.serving.pointer import Pointer, follow
from sparsefleet.serving.predictor import Predictor, Scores
from sparsefleet.serving.request_log import UNLOGGED, RequestLog
from sparsefleet.serving.samples import parse_json, split_request_id
from sparsefleet.serving.shadow import Shadow
from sparsefleet.serving.versions import Versions

T = TypeVar("T")

MAX_ADMIN_BODY = 1 << 16
ARROW = arrow_body.CONTENT_TYPE.encode()
LARGE_BODY = 256 << 10
"""A longer body is parsed by a scoring thread, so that other requests need not wait for it."""
ARROW_SAMPLE_BYTES = 64
"""A sample of an Arrow stream takes about so many bytes, or more."""
READY_SECONDS = 0.5
"""An answer of /readyz holds for so long: probes of many load balancers cost one warm-up."""
MILLISECONDS = re.compile(rb"[1-9][0-9]{0,7}")
OPEN = frozenset({"/healthz", "/readyz"})
"""Routes that ask for no token: probes seldom have one."""


class Service:
    """What the routes use. Made on the event loop, at start-up."""

    def __init__(self, config: ServeConfig, first: Predictor, pointer: Pointer | None = None, serves: str = "") -> None:
        """`pointer`: followed. `serves`: what it names now."""
        self.config, self.metrics = config, Metrics()
        self._log = (
            RequestLog(config.log_requests, config.log_max_bytes, self.metrics, tell) if config.log_requests else None
        )
        self.versions = Versions(config, self.metrics, first)
        self.batcher = MicroBatcher(config.scoring_threads, config.batch_rows, config.queue_rows, self.metrics)
        self.batcher.follow = Shadow(self.versions, self.batcher, self.metrics).follow
        self.connections = Connections(config.max_connections, config.client_connections)
        self.draining = False
        """The server was told to end: it still answers, and every answer closes its connection."""
        self._readiness = asyncio.Lock()
        self._tried = {first.version: (time.monotonic(), "")}
        """When each version that answers was last tried, and why it could not score."""
        self.direct = DirectRequests(self.versions, self.batcher, self.metrics, self._log)
        self._tasks = [asyncio.create_task(self._look())]
        if pointer is not None:
            following = follow(pointer, self.versions, serves, config.watch_seconds, tell)
            self._tasks.append(asyncio.create_task(following))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.versions.close()
        self.batcher.close()
        if self._log is not None:
            self._log.close()

    # -- predictions -------------------------------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        return Response(await self.scores(request.scope, request.receive), media_type="application/json")

    async def scores(self, scope: Scope, receive: Receive) -> bytes:
        """The answer's body. This speaks ASGI itself: `Request` and `Response` would cost a tenth of a prediction."""
        deadline = time.monotonic() + seconds_of(_header(scope, b"x-timeout-ms"), self.config.deadline)
        body = await self._body(scope, receive, self.config.max_body)
        arrow = _header(scope, b"content-type").lower().partition(b";")[0].strip() == ARROW
        # Before it is parsed: whoever will not be served should cost nothing.
        samples = len(body) // ARROW_SAMPLE_BYTES if arrow else most_samples(body)
        self.batcher.check_room(samples, deadline)
        work = asyncio.ensure_future(self._scored(body, samples, arrow, deadline))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            answer = work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            # An error's traceback holds this frame: without these two, the frame does not hold the error in turn.
            del work, gone, task
        if self._log is not None and not arrow and _header(scope, b"x-log").lower() != UNLOGGED:
            self._log.add(answer, body)
        return answer

    async def scored_rows(
        self, rows: list[dict[str, Any]], request_id: str | None, seconds: float, version: str = ""
    ) -> tuple[str, Scores]:
        """Version and scores of samples that are no JSON text: another protocol's.

        `version`: the one that is to answer, and no other.
        """
        deadline = time.monotonic() + seconds
        self.batcher.check_room(len(rows), deadline)
        canary = self.versions.is_canary(version) if version else self.versions.chooses_canary(request_id)
        with self.versions.hold(canary) as predictor:
            if version and predictor.version != version:  # the server has switched since it was looked for
                raise HttpError(404, f"version {version!r:.80} answers no more; {predictor.version!r} does")
            batch = await self.batcher.call(predictor.parser.samples, rows, samples=len(rows), deadline=deadline)
            scores = await self.batcher.score(predictor, batch, deadline)
            if not all(np.isfinite(of).all() for of in (scores.probabilities, *scores.by_label.values())):
                raise no_number(predictor.version)
            self.metrics.predicted(predictor.version)
            return predictor.version, scores

    async def _scored(self, body: bytes, samples: int, arrow: bool, deadline: float) -> bytes:
        request_id, text = (None, body) if arrow else split_request_id(body)
        with self.versions.hold(self.versions.chooses_canary(request_id)) as predictor:
            bundle = predictor.bundle
            call = functools.partial(self.batcher.call, samples=samples, deadline=deadline)
            if arrow:
                read = functools.partial(
                    arrow_body.batch_of_stream,
                    allow_missing=self.config.allow_missing,
                    allow_extra=self.config.allow_extra,
                )
                batch = await call(read, body, bundle.schema, bundle.inputs)
            elif len(body) > LARGE_BODY:
                batch = await call(predictor.parser.body, text)
            else:
                batch = predictor.parser.body(text)
            scores = await self.batcher.score(predictor, batch, deadline)
            answer = answer_bytes(predictor.version, scores, request_id)
            self.metrics.predicted(predictor.version)
            return answer

    # -- what it is and how it does ----------------------------------------------------------------------------------

    async def model(self, request: Request) -> Response:
        return JSONResponse(self.describe())

    async def health(self, request: Request) -> Response:
        """Alive: the event loop answers. Whether it can score says `ready`."""
        return JSONResponse({"status": "ok", "version": self.versions.current.version})

    async def ready(self, request: Request) -> Response:
        version = self.versions.current.version
        reason = "the server was told to end" if self.draining else await self.trouble()
        if reason:
            document = {"status": "not ready", "version": version, "error": reason}
            return JSONResponse(document, 503, {"retry-after": "1"})
        return JSONResponse({"status": "ready", "version": version})

    async def trouble(self, canary: bool = False) -> str:
        """Why the version that answers (or the canary) cannot score; empty where it can.

        One that can is tried once in READY_SECONDS at most.
        """
        async with self._readiness:
            with self.versions.hold(canary) as predictor:
                name = predictor.version
                tried_at, trouble = self._tried.get(name, (-math.inf, ""))
                if time.monotonic() - tried_at >= READY_SECONDS or trouble:
                    trouble = await asyncio.to_thread(predictor.trouble)
                    answering = self.versions.answering()
                    found = {**self._tried, name: (time.monotonic(), trouble)}
                    self._tried = {version: one for version, one in found.items() if version in answering}
                    if not canary:
                        self.metrics.ready(not trouble)
                    if trouble:
                        tell_seldom("not ready", f"version {name} is not ready: {trouble}")
            return trouble

    async def _look(self) -> None:
        """From time to time: are the rows of both versions what they were?"""
        while True:
            await asyncio.sleep(self.config.watch_seconds)
            try:
                await self.look()
            except Exception as error:
                tell_failure(error)

    async def look(self) -> None:
        for version in self.versions.held():
            with version as predictor:
                for news in await asyncio.to_thread(predictor.source.look) if predictor is not None else ():
                    tell(news)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi(self.versions.current.bundle, self.config))

    async def show_metrics(self, request: Request) -> Response:
        current = self.versions.current
        reference = current.bundle.manifest.lineage.scores
        text = self.metrics.text(current.version, self.batcher.waiting, current.source.stats(), reference)
        text += drift_text(current.version, current.drift) if current.drift is not None else ""
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def not_taken(self, peer: str) -> None:
        """A client has not taken its answer in time: its connection is ended."""
        self.metrics.not_taken()
        seconds = self.config.answer_timeout
        tell_seldom("not taken", f"{peer} did not take an answer within {seconds:g} seconds; its connection is ended")

    def describe(self) -> dict[str, Any]:
        current, previous = self.versions.current, self.versions.previous
        bundle, config = current.bundle, self.config
        return {
            **described(bundle),
            "bundle": bundle.origin,
            "fields": fields_of(bundle, self.config.allow_missing),
            "extra_fields": "ignored" if config.allow_extra else "refused",
            "previous": previous.version if previous else None,
            **self._sides(),
            "runtime": current.runtime,
            "sparse": {"kind": config.sparse.partition(":")[0], **current.source.stats()},
            "limits": {
                "body_bytes": config.max_body,
                "rows": config.max_rows,
                "queue_rows": config.queue_rows,
                "seconds": config.deadline,
            },
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
        tell(f"now serving {taken.version} from {taken.bundle.origin}")
        return JSONResponse(self._switched())

    async def roll_back(self, request: Request) -> Response:
        self._allow_admin(request)
        await self._body(request.scope, request.receive, MAX_ADMIN_BODY)
        taken = await self.versions.roll_back()
        tell(f"rolled back to {taken.version} from {taken.bundle.origin}")
        return JSONResponse(self._switched())

    async def set_canary(self, request: Request) -> Response:
        self._allow_admin(request)
        path, document = await self._beside(request, {"bundle", "share"})
        share = document.get("share", self.config.canary_share)
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
            raise HttpError(400, '"share" must be a number from 0 to 1', field="share")
        taken = await self.versions.set_canary(path, share)
        tell(f"version {taken.version} answers {share:.1%} of the requests" if taken else "no canary any more")
        return JSONResponse(self._switched())

    async def set_shadow(self, request: Request) -> Response:
        self._allow_admin(request)
        path, _ = await self._beside(request, {"bundle"})
        taken = await self.versions.set_shadow(path)
        tell(f"version {taken.version} scores along, and answers nobody" if taken else "no shadow any more")
        return JSONResponse(self._switched())

    async def _beside(self, request: Request, allowed: set[str]) -> tuple[str | None, dict[str, Any]]:
        document = parse_json(await self._body(request.scope, request.receive, MAX_ADMIN_BODY))
        fits = isinstance(document, dict) and "bundle" in document and not document.keys() - allowed
        if not fits or not isinstance(document["bundle"], str | None):
            words = ", ".join(f'"{name}"' for name in sorted(allowed))
            raise HttpError(400, f"the body must be an object with {words}; a bundle is a path, a URI or null")
        return document["bundle"], document

    def _switched(self) -> dict[str, Any]:
        previous = self.versions.previous
        told = {"version": self.versions.current.version, "previous": previous.version if previous else None}
        return {**told, **self._sides()}

    def _sides(self) -> dict[str, Any]:
        canary, shadow = self.versions.canary, self.versions.shadow
        told: dict[str, Any] = {"canary": {"version": canary[0].version, "share": canary[1]}} if canary else {}
        return {**told, **({"shadow": shadow.version} if shadow else {})}

    def allow(self, authorization: bytes) -> None:
        """HttpError where a client does not show the token that predictions need. The other token is as good."""
        wanted = self.config.predict_token
        if wanted is None:
            return
        kind, _, given = authorization.partition(b" ")
        known = [token.encode() for token in (wanted, self.config.token) if token]
        # Compare with all of them, whichever fits: the time that it takes tells nothing.
        fits = [hmac.compare_digest(given.strip(), token) for token in known]
        if kind.lower() != b"bearer" or not any(fits):
            raise HttpError(401, "this server asks for a token: send the header Authorization: Bearer <token>")

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


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def seconds_of(header: bytes, default: float) -> float:
    """How long a request may take: what its header x-timeout-ms says, and the server's own limit at most."""
    if not header:
        return default
    if not MILLISECONDS.fullmatch(header):
        raise HttpError(400, "the header x-timeout-ms must be a whole number of milliseconds, 1 to 99999999")
    return min(int(header) / 1000, default)


def application(config: ServeConfig, first: Predictor, pointer: Pointer | None = None, serves: str = "") -> ASGIApp:
    """The ASGI application; its threads start and end with it."""
    services: list[Service] = []
    # Only `Versions` holds on to it: it is to go, with its network and its mapped rows, when it answers no more.
    opened = [first]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        refused = None
        try:
            services.append(Service(config, opened.pop(), pointer, serves))
            if config.canary is not None:
                await services[-1].versions.set_canary(config.canary, config.canary_share)
            if config.shadow is not None:
                await services[-1].versions.set_shadow(config.shadow)
        except SparseFleetError as error:  # raised here, uvicorn would print a traceback
            refused = error
        try:
            # For `protocol.PredictionConnection`; and for `server`, which ends where a bundle was refused.
            yield {"service": services[-1] if services else None, "refused": refused}
        finally:
            while services:
                await services.pop().close()

    def route(path: str, method: str, handler: Callable[[Service, Request], Awaitable[Response]]) -> Route:
        async def asked(service: Service, request: Request) -> Response:
            if path not in OPEN:
                service.allow(_header(request.scope, b"authorization"))
            return await handler(service, request)

        async def endpoint(request: Request) -> Response:
            service = services[-1]
            started, status = time.perf_counter(), 500
            try:
                response = await _answer(service, asked(service, request))
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
            route("/v1/canary", "POST", Service.set_canary),
            route("/v1/shadow", "POST", Service.set_shadow),
            route("/healthz", "GET", Service.health),
            route("/readyz", "GET", Service.ready),
            route("/openapi.json", "GET", Service.openapi),
            route("/metrics", "GET", Service.show_metrics),
        ],
        lifespan=lifespan,
    )

    async def predict(scope: Scope, receive: Receive, send: Send) -> None:
        service = services[-1]
        started, status = time.perf_counter(), 500
        try:
            found = await _answer(service, _allowed(service, scope, receive))
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
        if scope["type"] == "http":
            send = _with_headers(services[-1], scope, send)
        if scope["type"] == "http" and scope["path"] == "/v1/predict" and scope["method"] == "POST":
            await predict(scope, receive, send)
        else:
            await routed(scope, receive, send)

    return directly


async def _allowed(service: Service, scope: Scope, receive: Receive) -> bytes:
    service.allow(_header(scope, b"authorization"))
    return await service.scores(scope, receive)


def _with_headers(service: Service, scope: Scope, send: Send) -> Send:
    request_id = _header(scope, b"x-request-id")
    if not request_id and not service.draining:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            added = [(b"x-request-id", request_id)] if request_id else []
            added += [(b"connection", b"close")] if service.draining else []
            message["headers"] = [*message.get("headers", []), *added]
        await send(message)

    return sending


async def _answer(service: Service, work: Awaitable[T]) -> T | Response:
    """The result of the work, or the answer for its error."""
    try:
        return await work
    except Exception as error:
        answer = refusal(error, service.versions.current.version)
        if answer is None:
            raise
        status, body, headers = told(answer)
        return Response(body, status, headers)


def _header(scope: Scope, name: bytes) -> bytes:
    """A header's first value, without blanks around it; empty if there is none. ASGI gives names in lower case."""
    return next((value.strip() for found, value in scope["headers"] if found == name), b"")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
