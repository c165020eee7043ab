"""The gRPC server: its threads parse and answer, the scoring threads score.

Calls wait for a thread in a queue of bounded length. One whose client has gone meanwhile, or whose time is up, is
neither parsed nor scored; one whose request does not come is ended.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

import sparsefleet
from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.serving.answers import HttpError, refusal, told
from sparsefleet.serving.batcher import END_SECONDS, LateError
from sparsefleet.serving.connections import KEEP_ALIVE
from sparsefleet.serving.http import Service
from sparsefleet.serving.kserve.messages import METHODS, SERVICE, messages
from sparsefleet.serving.kserve.tensors import KEYS, NUMBERS, TEXT, outputs_of, ready_fields, rows_of, tensors_of
from sparsefleet.serving.log import tell_failure, tell_seldom

THREADS = 8
CALLS = 512
"""That are under way or wait for a thread; more are refused at once."""
PROBES = frozenset({"ServerLive", "ServerReady", "ModelReady"})
"""Methods that ask for no token."""
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class _Call:
    """A call, from when it comes. gRPC asks for the answer in a thread, unless the client has gone before."""

    def __init__(self, server: KServeServer, name: str) -> None:
        self._server, self.name = server, name
        self.came = time.monotonic()
        self._asked = self._too_slow = False
        self._read_since: float | None = None
        """When a thread began to wait for the request itself, of which only the head has come."""
        self._rpc: Any = None

    def __call__(self, request: bytes, context: Any) -> Any:
        self._asked = True
        return self._server.answer(self, request, context)

    def read(self, rpc: Any, work: Callable[[], Any]) -> Any:
        """In a thread: gRPC's `work` waits for the request, without end. `rpc`: gRPC's own view of the call."""
        self._rpc, self._read_since = rpc, time.monotonic()
        return work()

    def end_if_late(self, seconds: float) -> bool:
        """Cancel it, where a thread has waited for the request for so long; whether it has."""
        if self._asked or self._too_slow or self._read_since is None or self._rpc is None:
            return False
        self._too_slow = time.monotonic() - self._read_since > seconds
        if self._too_slow:
            self._rpc.cancel()
        return self._too_slow

    def waited(self) -> float:
        return time.monotonic() - self.came

    def ended(self, done: Future[Any]) -> None:
        if not self._asked:
            self._server.count(self, 408 if self._too_slow else 499)


class _Threads(ThreadPoolExecutor):
    """gRPC's threads. They tell each call of its end, and know how many have not come to it."""

    def __init__(self, count: int) -> None:
        super().__init__(count, "grpc")
        self._lock, self.calls = threading.Lock(), 0
        self._open: set[_Call] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = next((one for one in args if isinstance(one, _Call)), None)
        # gRPC hands over its event of the call, too, which can cancel it; there is no other way before it is read.
        rpc = next((one.call for one in args if hasattr(one, "call_details")), None)
        with self._lock:
            self.calls += 1
            if call is not None:
                self._open.add(call)
        if call is None:
            found = super().submit(fn, *args, **kwargs)
        else:
            found = super().submit(call.read, rpc, functools.partial(fn, *args, **kwargs))
            found.add_done_callback(call.ended)
        found.add_done_callback(functools.partial(self._ended, call))
        return found

    def end_late(self, seconds: float) -> int:
        """Cancel calls whose request did not come so long after a thread took them; how many there were."""
        with self._lock:
            calls = list(self._open)
        return sum(call.end_if_late(seconds) for call in calls)

    def _ended(self, call: _Call | None, done: Future[Any]) -> None:
        with self._lock:
            self.calls -= 1
            if call is not None:
                self._open.discard(call)


class KServeServer:
    """Made on the event loop. `port` is where it listens."""

    def __init__(self, service: Service) -> None:
        self._service, self._loop = service, asyncio.get_running_loop()
        self._types = messages()
        config = service.config
        # gRPC does not tell of its connections, so it has to end those that hold a file for nothing.
        options = [
            ("grpc.max_receive_message_length", config.max_body),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", round(1000 * config.header_timeout)),
            ("grpc.max_connection_idle_ms", round(1000 * KEEP_ALIVE)),
            # While a call is under way: a client that answers no ping has gone.
            ("grpc.keepalive_time_ms", round(1000 * KEEP_ALIVE)),
            ("grpc.keepalive_timeout_ms", round(1000 * config.answer_timeout)),
        ]
        self._threads = _Threads(THREADS)
        self._server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=CALLS)
        self._server.add_generic_rpc_handlers((self,))
        host = f"[{config.host}]" if ":" in config.host else config.host
        assert config.grpc_port is not None
        place = f"{host}:{config.grpc_port}"
        try:
            if config.tls_cert is None or config.tls_key is None:
                self.port = self._server.add_insecure_port(place)
            else:
                with open(config.tls_key, "rb") as key, open(config.tls_cert, "rb") as certificate:
                    pair = key.read(), certificate.read()
                self.port = self._server.add_secure_port(place, grpc.ssl_server_credentials([pair]))
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"cannot listen on {place} for gRPC: {error}") from error
        self._server.start()
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """From time to time: a call whose request does not come would keep its thread for good."""
        seconds = self._service.config.body_timeout
        while True:
            await asyncio.sleep(min(1.0, seconds))
            if late := self._threads.end_late(seconds):
                tell_seldom("grpc body", f"{late} calls over gRPC ended: no request came within {seconds:g} seconds")

    async def close(self, hurried: Callable[[], bool]) -> None:
        """Calls under way get `drain_timeout`. hurried: asked all the while; once it says so, they are left."""
        self._looking.cancel()
        drain = 0.0 if hurried() else self._service.config.drain_timeout
        stopped, until = self._server.stop(drain), time.monotonic() + drain + END_SECONDS
        while not stopped.is_set() and time.monotonic() < until:
            if drain and hurried():
                drain, until = 0.0, time.monotonic() + END_SECONDS
                self._server.stop(drain)
            await asyncio.sleep(0.02)

    # -- the protocol's methods ----------------------------------------------------------------------------------------

    def ServerLive(self, request: Any, until: float, context: Any) -> Any:
        return self._types["ServerLiveResponse"](live=True)

    def ServerReady(self, request: Any, until: float, context: Any) -> Any:
        return self._types["ServerReadyResponse"](ready=self._ready(until))

    def ModelReady(self, request: Any, until: float, context: Any) -> Any:
        self._check_name(request.name, request.version)
        canary = self._service.versions.is_canary(request.version)
        return self._types["ModelReadyResponse"](ready=self._ready(until, canary))

    def ServerMetadata(self, request: Any, until: float, context: Any) -> Any:
        return self._types["ServerMetadataResponse"](name="sparsefleet", version=sparsefleet.__version__)

    def ModelMetadata(self, request: Any, until: float, context: Any) -> Any:
        self._check_name(request.name, request.version)
        versions, tensor = self._service.versions, self._types["TensorMetadata"]
        with versions.hold(versions.is_canary(request.version)) as predictor:
            bundle = predictor.bundle
        ready, numbers, inputs = ready_fields(bundle), bundle.schema.number_fields, []
        for name in bundle.schema.fields:
            kind = next(iter(NUMBERS if name in numbers else KEYS)) if name in ready | numbers else TEXT
            inputs.append(tensor(name=name, datatype=kind, shape=[-1] if name in numbers else [-1, -1]))
        return self._types["ModelMetadataResponse"](
            name=self._service.config.model_name,
            versions=versions.answering(),
            platform="sparsefleet_bundle",
            inputs=inputs,
            outputs=[tensor(name=name, datatype="FP32", shape=[-1]) for name in outputs_of(bundle)],
        )

    def ModelInfer(self, request: Any, until: float, context: Any) -> Any:
        self._check_name(request.model_name, request.model_version)
        service = self._service
        named = service.versions.is_canary(request.model_version)
        with service.versions.hold(named) as predictor:  # all versions that answer take the same fields
            known = outputs_of(predictor.bundle)
            for output in request.outputs:
                if output.name not in known:
                    has = ", ".join(known)
                    raise HttpError(400, f"the output {output.name!r:.80} is not one of the model's; it has {has}")
            rows = rows_of(request, predictor.bundle, service.config.max_rows, service.config.allow_extra)
        seconds = max(0.0, until - time.monotonic())
        work = asyncio.run_coroutine_threadsafe(
            service.scored_rows(rows, request.id or None, seconds, request.model_version), self._loop
        )
        if not context.add_callback(work.cancel):  # the client has gone, or its time is up
            work.cancel()
        version, scores = work.result(seconds + 5)
        found = tensors_of(scores)
        chosen = list(dict.fromkeys(output.name for output in request.outputs)) or list(found)
        missing = [name for name in chosen if name not in found]  # a canary with other labels answered
        if missing:
            raise HttpError(409, f"version {version}, which answered, has no output {missing[0]!r:.80}")
        tensor = self._types["InferTensor"]
        answer = self._types["ModelInferResponse"](
            model_name=service.config.model_name,
            model_version=version,
            id=request.id,
            outputs=[tensor(name=name, datatype="FP32", shape=[len(found[name])]) for name in chosen],
        )
        answer.raw_output_contents.extend(np.ascontiguousarray(found[name], "<f4").tobytes() for name in chosen)
        return answer

    # -- details -------------------------------------------------------------------------------------------------------

    def _ready(self, until: float, canary: bool = False) -> bool:
        """One that cannot be tried in time is not; a thread is not kept for longer than somebody waits for it."""
        if self._service.draining:
            return False
        trouble = asyncio.run_coroutine_threadsafe(self._service.trouble(canary), self._loop)
        try:
            return not trouble.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return False

    def _check_name(self, name: str, version: str) -> None:
        mine, versions = self._service.config.model_name, self._service.versions.answering()
        if name != mine:
            raise HttpError(404, f"there is no model {name!r:.80}; this server has {mine!r} (--model-name)")
        if version and version not in versions:
            raise HttpError(404, f"version {version!r:.80} does not answer here; these do: {', '.join(versions)}")

    def service(self, details: Any) -> Any:
        """gRPC asks this as soon as a call comes: how is it answered? None: nobody knows its method."""
        name = details.method.removeprefix(f"/{SERVICE}/")
        if name not in METHODS:
            return None
        call = _Call(self, name)
        if self._threads.calls >= CALLS:  # gRPC refuses it, and asks no further
            self.count(call, 429)
            tell_seldom("grpc", f"{CALLS} calls over gRPC are under way, as many as may be; others are refused")
        return grpc.unary_unary_rpc_method_handler(call, None, self._types[METHODS[name][1]].SerializeToString)

    def count(self, call: _Call, status: int) -> None:
        self._service.metrics.answered(f"/{SERVICE}/{call.name}", status, call.waited())

    def answer(self, call: _Call, body: bytes, context: Any) -> Any:
        """In one of gRPC's threads."""
        status = 500
        own = self._service.config.deadline - call.waited()
        left = context.time_remaining()  # until the client's deadline; None where it has none
        seconds = own if left is None else min(left, own)
        try:
            if call.name not in PROBES:
                given = dict(context.invocation_metadata()).get("authorization", "")
                self._service.allow(given.encode() if isinstance(given, str) else given)
            if seconds <= 0:
                raise LateError("the request's time was up before it was read; try again later")
            found = getattr(self, call.name)(self._parsed(call.name, body), time.monotonic() + seconds, context)
            status = 200
            return found
        except (HttpError, SparseFleetError) as error:
            answer = refusal(error, self._service.versions.current.version)
            status = 500 if answer is None else told(answer)[0]
            code = CODES.get(status, grpc.StatusCode.INTERNAL)
            if isinstance(error, LateError) and left is not None and left <= own:  # it was the client's deadline
                code = grpc.StatusCode.DEADLINE_EXCEEDED
            context.abort(code, str(error))
        except Exception as error:
            if context.is_active():
                tell_failure(error)
            else:
                status = 499
            context.abort(grpc.StatusCode.INTERNAL, "the server failed; its log says why")
        finally:
            self.count(call, status)

    def _parsed(self, name: str, body: bytes) -> Any:
        try:
            return self._types[METHODS[name][0]].FromString(body)
        except DecodeError as error:
            raise HttpError(400, f"the request is no {METHODS[name][0]}: {error}") from None
