"""A client of the KServe v2 protocol over gRPC, made of the protocol's own fields. Needs grpcio."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
from bundle_fixtures import NAMES

from sparsefleet.serving.kserve.messages import METHODS, SERVICE, messages

Metadata = Sequence[tuple[str, str]]

INFER = f"/{SERVICE}/ModelInfer"
"""As metrics name it."""


class Calls:
    """Calls methods of the service by their names, with the fields of their requests."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.types, self._channel = messages(), channel

    def __call__(
        self, method: str, metadata: Sequence[tuple[str, str]] = (), timeout: float = 20, **fields: Any
    ) -> Any:
        return self.begin(method, metadata, timeout, **fields).result()

    def begin(self, method: str, metadata: Sequence[tuple[str, str]] = (), timeout: float = 20, **fields: Any) -> Any:
        """The same without waiting: a future, which may be cancelled."""
        asked, answered = (self.types[name] for name in METHODS[method])
        ask = self._channel.unary_unary(f"/{SERVICE}/{method}", asked.SerializeToString, answered.FromString)
        return ask.future(asked(**fields), timeout=timeout, metadata=metadata)

    def tensors(self, rows: Sequence[Any], raw: bool = False) -> dict[str, Any]:
        """The fields of a ModelInfer that stand for these rows: one tensor a field."""
        tensor, contents = self.types["InferTensor"], self.types["InferTensorContents"]
        inputs, raws = [], []
        for name in NAMES:
            values = [row[name] for row in rows]
            dense = name.startswith("I")
            if dense:
                numbers = np.array([np.nan if value is None else value for value in values], np.float32)
                held, data = contents(fp32_contents=numbers.tolist()), numbers.tobytes()
            else:
                texts = [str(value).encode() for value in values]
                held = contents(bytes_contents=texts)
                data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
            made = tensor(name=name, datatype="FP32" if dense else "BYTES", shape=[len(rows)])
            if not raw:
                made.contents.CopyFrom(held)
            inputs.append(made)
            raws.append(data)
        return {"inputs": inputs, "raw_input_contents": raws if raw else []}


@contextlib.contextmanager
def calls_of(server: Any, credentials: grpc.ChannelCredentials | None = None) -> Iterator[Calls]:
    """`credentials`: what the server is known by, where it speaks TLS."""
    place = server.about["grpc"]
    made = grpc.insecure_channel(place) if credentials is None else grpc.secure_channel(place, credentials)
    with made as channel:
        yield Calls(channel)
