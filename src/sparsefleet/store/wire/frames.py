"""Frames: one message on a DoExchange stream, a JSON header and a body of raw bytes.

A body up to INLINE_BYTES travels behind the header in `app_metadata`; a larger one as the single uint8 column of a
record batch. Measured on loopback, medians: doing without a batch saves 50 to 80 µs a message up to 72 KB; at 80 KB
there is no difference, and a request of 480 KB takes 0.9 ms inline (its extra copy included) against 0.5 ms.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparsefleet.core.errors import CheckpointError, Disagreement, Rejoin, SparseFleetError, StoreError

PROTOCOL = 3
"""Goes up with every change that an older process would misread."""
MAX_HEADER_BYTES = 4 << 20
MAX_BODY_BYTES = 1 << 30
INLINE_BYTES = 64 << 10
FRAME_SCHEMA = pa.schema([pa.field("body", pa.uint8(), nullable=False)])

_PREFIX = struct.Struct("<4sI")  # magic, bytes of JSON; then the JSON, padded with spaces to a multiple of 8
_MAGIC = b"SFW1"

Bytes = npt.NDArray[np.uint8]
EMPTY: Bytes = np.empty(0, np.uint8)


class WireError(StoreError):
    """A message that is not one of ours, or is too large."""


@dataclass(frozen=True, slots=True)
class Frame:
    header: dict[str, Any]
    body: Bytes
    """Aligned to 8 bytes, so that it can be seen as keys and floats."""


@dataclass(frozen=True, slots=True)
class Letter:
    """Bytes from one trainer to another, left with a server."""

    sender: int
    last: bool
    """The sender has no more for this box."""
    body: Bytes


_KINDS: dict[str, type[SparseFleetError]] = {
    "disagreement": Disagreement,
    "checkpoint": CheckpointError,
    "rejoin": Rejoin,
}
"""Errors that are raised as what they were on the other side too; all others are StoreErrors there."""


def refusal(error: Exception) -> dict[str, Any]:
    """An answer that says why not."""
    kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), None)
    return {"error": str(error), "kind": kind}


def refused(answer: Mapping[str, Any], about: str) -> SparseFleetError:
    """The error of such an answer, on the other side."""
    return _KINDS.get(str(answer.get("kind")), StoreError)(f"{about}: {answer['error']}")


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def to_json(data: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(data).encode()


def read_json(data: bytes, what: str, limit: int = MAX_HEADER_BYTES) -> dict[str, Any]:
    """An object from JSON of unknown origin."""
    if len(data) > limit:
        raise WireError(f"{what}: {len(data)} bytes of JSON; at most {limit} are taken")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError(f"{what} must be a JSON object; got {type(value).__name__}")
    return value


def encode(header: Mapping[str, Any], body: Bytes = EMPTY) -> tuple[pa.Buffer, pa.RecordBatch | None]:
    """What to write on a stream: the metadata, and a batch where the body is too large to go inline."""
    if len(body) > MAX_BODY_BYTES:
        raise WireError(f"a message of {len(body)} bytes; at most {MAX_BODY_BYTES} go in one: use smaller batches")
    text = to_json(header)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise WireError(f"a header of {len(text)} bytes; at most {MAX_HEADER_BYTES} go in one")
    head = _PREFIX.pack(_MAGIC, len(text)) + text
    if len(body) <= INLINE_BYTES:
        return pa.py_buffer(head + body.tobytes() if len(body) else head), None
    column = pa.Array.from_buffers(pa.uint8(), len(body), [None, pa.py_buffer(body)])
    return pa.py_buffer(head), pa.RecordBatch.from_arrays([column], schema=FRAME_SCHEMA)


def decode(metadata: pa.Buffer | None, batch: pa.RecordBatch | None) -> Frame:
    """The frame that arrived, or WireError; nothing in it is trusted yet."""
    if metadata is None or metadata.size < _PREFIX.size:
        raise WireError(f"a message needs a header; got {0 if metadata is None else metadata.size} bytes of metadata")
    view = memoryview(metadata)
    magic, length = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise WireError(f"a message begins with {_MAGIC!r}; got {magic!r}: a client of another version, or no client?")
    start = _PREFIX.size + length
    if length > MAX_HEADER_BYTES or start > metadata.size:
        raise WireError(f"the header claims {length} bytes; {metadata.size - _PREFIX.size} came")
    header = read_json(bytes(view[_PREFIX.size : start]), "a message's header")
    if batch is None:
        return Frame(header, _aligned(np.frombuffer(view[start:], np.uint8)))
    if batch.num_columns != 1 or batch.schema.field(0).type != pa.uint8():
        raise WireError(f"a message's body is one column of bytes; got {batch.schema.to_string()!r}")
    if batch.num_rows > MAX_BODY_BYTES:
        raise WireError(f"a message of {batch.num_rows} bytes; at most {MAX_BODY_BYTES} are taken")
    try:
        # Arrow takes the length that a sender claims: until it is held against the buffers, reading may crash.
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise WireError(f"a message's body is not what its batch claims: {error}") from None
    if batch.column(0).null_count:
        raise WireError(f"a message's body has no nulls; got {batch.column(0).null_count}")
    return Frame(header, _aligned(batch.column(0).to_numpy(zero_copy_only=True)))


def address_of(body: Bytes) -> int:
    address: int = body.__array_interface__["data"][0]
    return address


def _aligned(body: Bytes) -> Bytes:
    # gRPC hands out slices that begin anywhere; kernels read whole words.
    return body if not len(body) or address_of(body) % 8 == 0 else body.copy()
