"""The gRPC server: its threads parse and answer, the scoring threads score."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

import sparsefleet
from sparsefleet.core.errors import ConfigError, SparseFleetError
from sparsefleet.serving.answers import HttpError, refusal, told
from sparsefleet.serving.http import Service
from sparsefleet.serving.kserve.messages import METHODS, SERVICE, messages
from sparsefleet.serving.kserve.tensors import KEYS, NUMBERS, TEXT, outputs_of, ready_fields, rows_of, tensors_of
from sparsefleet.serving.log import tell_failure

THREADS = 8
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class KServeServer:
    """Made on the event loop. `port` is where it listens."""

    def __init__(self, service: Service) -> None:
        self._service, self._loop = service, asyncio.get_running_loop()
        self._types = messages()
        config = service.config
        options = [("grpc.max_receive_message_length", config.max_body), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(THREADS, "grpc"), options=options)
        calls = {name: self._method(name, getattr(self, name)) for name in METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, calls),))
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

    async def close(self) -> None:
        stopped = self._server.stop(self._service.config.drain_timeout)
        await asyncio.to_thread(stopped.wait, self._service.config.drain_timeout + 5)

    # -- the protocol's methods ----------------------------------------------------------------------------------------

    def ServerLive(self, request: Any, context: Any) -> Any:
        return self._types["ServerLiveResponse"](live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        return self._types["ServerReadyResponse"](ready=self._ready())

    def ModelReady(self, request: Any, context: Any) -> Any:
        self._check_name(request.name, request.version)
        return self._types["ModelReadyResponse"](ready=self._ready())

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return self._types["ServerMetadataResponse"](name="sparsefleet", version=sparsefleet.__version__)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        self._check_name(request.name, request.version)
        bundle, tensor = self._service.versions.current.bundle, self._types["TensorMetadata"]
        ready, numbers, inputs = ready_fields(bundle), bundle.schema.number_fields, []
        for name in bundle.schema.fields:
            kind = next(iter(NUMBERS if name in numbers else KEYS)) if name in ready | numbers else TEXT
            inputs.append(tensor(name=name, datatype=kind, shape=[-1] if name in numbers else [-1, -1]))
        return self._types["ModelMetadataResponse"](
            name=self._service.config.model_name,
            versions=[bundle.name],
            platform="sparsefleet_bundle",
            inputs=inputs,
            outputs=[tensor(name=name, datatype="FP32", shape=[-1]) for name in outputs_of(bundle)],
        )

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self._check_name(request.model_name, request.model_version)
        service = self._service
        with service.versions.hold() as predictor:  # all versions that answer take the same fields
            known = outputs_of(predictor.bundle)
            for output in request.outputs:
                if output.name not in known:
                    has = ", ".join(known)
                    raise HttpError(400, f"the output {output.name!r:.80} is not one of the model's; it has {has}")
            rows = rows_of(request, predictor.bundle, service.config.max_rows)
        left = context.time_remaining()
        seconds = service.config.deadline if left is None else max(0.0, min(left, service.config.deadline))
        work = asyncio.run_coroutine_threadsafe(service.scored_rows(rows, request.id or None, seconds), self._loop)
        context.add_callback(work.cancel)  # the client has gone, or its time is up
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

    def _ready(self) -> bool:
        if self._service.draining:
            return False
        return not asyncio.run_coroutine_threadsafe(self._service.trouble(), self._loop).result(60)

    def _check_name(self, name: str, version: str) -> None:
        mine, versions = self._service.config.model_name, self._service.versions
        if name != mine:
            raise HttpError(404, f"there is no model {name!r:.80}; this server has {mine!r} (--model-name)")
        if version and version != versions.current.version:
            raise HttpError(404, f"version {version!r:.80} does not answer; {versions.current.version!r} does")

    def _method(self, name: str, function: Callable[[Any, Any], Any]) -> Any:
        asked, answered = (self._types[kind] for kind in METHODS[name])
        probes = name in ("ServerLive", "ServerReady", "ModelReady")

        def call(request: Any, context: Any) -> Any:
            try:
                if not probes:
                    given = dict(context.invocation_metadata()).get("authorization", "")
                    self._service.allow(given.encode() if isinstance(given, str) else given)
                return function(request, context)
            except (HttpError, SparseFleetError) as error:
                answer = refusal(error, self._service.versions.current.version)
                status = 500 if answer is None else told(answer)[0]
                context.abort(CODES.get(status, grpc.StatusCode.INTERNAL), str(error))
            except Exception as error:
                if context.is_active():
                    tell_failure(error)
                context.abort(grpc.StatusCode.INTERNAL, "the server failed; its log says why")

        return grpc.unary_unary_rpc_method_handler(call, asked.FromString, answered.SerializeToString)
