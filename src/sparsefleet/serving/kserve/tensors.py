"""How tensors of the v2 protocol stand for samples: one tensor a field, its first axis the samples.

- a dense feature is FP32 or FP64, [B] or [B, 1]; NaN is a missing number;
- a slot is BYTES, [B] or [B, k]: k values of each sample, in UTF-8. A model that was trained on ready keys takes
  UINT64 or INT64 there, and no BYTES;
- the answer is a tensor `scores`, FP32 [B]; of a model for several labels that is the first one's, and there is a
  tensor `scores_NAME` for each label.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.data.formats.record_plan import beside_features
from sparsefleet.export.bundle import Bundle
from sparsefleet.serving.predictor import Scores
from sparsefleet.serving.samples import RequestError

OUTPUT = "scores"
NUMBERS = {"FP32": ("<f4", "fp32_contents"), "FP64": ("<f8", "fp64_contents")}
KEYS = {"UINT64": ("<u8", "uint64_contents"), "INT64": ("<i8", "int64_contents")}
TEXT = "BYTES"


def rows_of(request: Any, bundle: Bundle, max_rows: int, allow_extra: bool = False) -> list[dict[str, Any]]:
    """The samples of a ModelInferRequest, as a JSON request would have them.

    `allow_extra`: an input that the model does not have is left out of account.
    """
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise RequestError(f"{len(request.inputs)} inputs with {len(raw)} raw contents; there must be one for each")
    names = [tensor.name for tensor in request.inputs]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"the input {name!r:.80} stands twice in the request", name)
    fields, beside = bundle.schema.fields, beside_features(bundle.schema)
    columns: dict[str, list[Any]] = {}
    count: int | None = None
    for index, tensor in enumerate(request.inputs):
        shape = tuple(tensor.shape)
        if len(shape) not in (1, 2) or any(size < 0 for size in shape) or math.prod(shape) > 1 << 28:
            raise _bad(tensor, f"shape {list(shape)}; wanted is [rows] or [rows, values]")
        if shape[0] > max_rows:
            raise _bad(tensor, f"{shape[0]} rows; at most {max_rows} are allowed")
        if count is not None and shape[0] != count:
            raise _bad(tensor, f"{shape[0]} rows; the inputs before it have {count}")
        count = shape[0]
        if tensor.name in fields:
            columns[tensor.name] = _column(tensor, shape, raw[index] if raw else None, bundle)
        elif tensor.name not in beside and not allow_extra:
            raise _bad(tensor, f"the model has no such field; it has {', '.join(fields)}")
    if count is None:
        raise RequestError("the request has no inputs")
    if not columns:
        return [{} for _ in range(count)]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def ready_fields(bundle: Bundle) -> frozenset[str]:
    """Fields that hold ready-made keys."""
    trained = () if bundle.inputs is None else bundle.inputs.ready_slots
    return frozenset(slot.source for slot in bundle.schema.slots if slot.keys or slot.name in trained)


def outputs_of(bundle: Bundle) -> tuple[str, ...]:
    """The names of the tensors that answers have."""
    return (OUTPUT, *(f"{OUTPUT}_{label}" for label, _ in bundle.network.labels))


def tensors_of(scores: Scores) -> dict[str, F32]:
    return {OUTPUT: scores.probabilities, **{f"{OUTPUT}_{label}": of for label, of in scores.by_label.items()}}


def _column(tensor: Any, shape: tuple[int, ...], raw: bytes | None, bundle: Bundle) -> list[Any]:
    dense, kind = tensor.name in bundle.schema.number_fields, tensor.datatype
    ready = tensor.name in ready_fields(bundle)
    allowed = tuple(NUMBERS) if dense else tuple(KEYS) if ready else (TEXT,)
    if kind not in allowed:
        raise _bad(tensor, f"datatype {kind!r:.40}; it takes {' or '.join(allowed)}")
    total = math.prod(shape)
    values: list[Any]
    if kind == TEXT:
        found = _texts(tensor, raw) if raw is not None else list(tensor.contents.bytes_contents)
        try:
            values = [value.decode() for value in found]
        except UnicodeDecodeError:
            values = [*found]  # not text: hashed by its bytes, as a file's would be
    else:
        dtype, field = {**NUMBERS, **KEYS}[kind]
        if raw is None:
            values = list(getattr(tensor.contents, field))
        elif len(raw) != total * np.dtype(dtype).itemsize:
            raise _bad(tensor, f"{len(raw)} bytes of raw contents; {total} values of {kind} have another size")
        else:
            values = np.frombuffer(raw, dtype).tolist()
    if len(values) != total:
        raise _bad(tensor, f"{len(values)} values; its shape {list(shape)} has {total}")
    if dense:
        if len(shape) == 2 and shape[1] != 1:
            raise _bad(tensor, f"shape {list(shape)}; a number has one value a row")
        numbers: list[Any] = values
        return [None if math.isnan(number) else number for number in numbers]
    if len(shape) == 1:
        return values
    return [values[start : start + shape[1]] for start in range(0, total, shape[1])] if shape[1] else [[]] * shape[0]


def _texts(tensor: Any, raw: bytes) -> list[bytes]:
    """Each value after its length, a little-endian uint32."""
    found, at = [], 0
    while at < len(raw):
        if at + 4 > len(raw):
            raise _bad(tensor, "its raw contents end within a length")
        (size,) = struct.unpack_from("<I", raw, at)
        if at + 4 + size > len(raw):
            raise _bad(tensor, "its raw contents end within a value")
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def _bad(tensor: Any, reason: str) -> RequestError:
    return RequestError(f"input {tensor.name!r:.80}: {reason}", tensor.name)
