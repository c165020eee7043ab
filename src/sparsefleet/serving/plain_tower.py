"""Recognises networks that are plain towers: inputs side by side, dense layers with relu between them, one probability.

Our own kernel computes those faster than ONNX Runtime (benchmarks/serving.md). The graph is read from its bytes here,
since servers are installed without the package `onnx`: as much of its format as such graphs use. A graph that has
anything else is not a plain tower. ONNX Runtime has read and checked it before; and what this makes of a graph is
compared with ONNX Runtime's scores before it serves (`served_tower`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32
from sparsefleet.kernels import levels
from sparsefleet.serving.kernels.tower import ServedTower

TOLERANCE = 1e-5
"""What two ways to compute a probability may differ by; an export may differ from torch by as much."""
CHECKED_SAMPLES = 9
FLOAT, INT64 = 1, 7
"""Of ONNX's types of values."""
RESHAPES = frozenset({"Squeeze", "Reshape", "Flatten", "Gather"})
"""What may stand around the one logit of a sample: there is only one way to read [B, 1] as [B]."""


@dataclass(frozen=True, slots=True)
class PlainTower:
    inputs: tuple[str, ...]
    """The network's inputs, in the order in which they stand side by side."""
    weights: tuple[F32, ...]
    """[out, in] of each layer."""
    biases: tuple[F32, ...]
    column: int
    """Of a softmax pair: the click's. 0 for a single logit."""


def served_tower(
    graph: bytes, widths: Mapping[str, int], run: Callable[[dict[str, F32]], F32]
) -> tuple[PlainTower, ServedTower] | None:
    """The network by our own kernel, where it is a plain tower, gives the scores that `run` does, and is faster.

    `widths`: of the network's inputs. `run`: scores the network in ONNX Runtime.
    """
    # By the level alone, without a race at each start: servers of one version on equal machines give equal scores.
    if not levels.chosen.level.startswith(("avx512", "amx")):
        return None
    found = plain_tower(graph)
    if found is None or set(found.inputs) != set(widths) or len(found.inputs) != len(widths):
        return None
    if found.weights[0].shape[1] != sum(widths.values()):
        return None
    tower = ServedTower(found.weights, found.biases, found.column)
    draw = np.random.default_rng(0)
    for scale in (0.01, 1.0):
        inputs = {name: scale * draw.standard_normal((CHECKED_SAMPLES, widths[name]), np.float32) for name in widths}
        for shared in (False, True):
            if shared:
                inputs[found.inputs[0]][:] = inputs[found.inputs[0]][0]
            mine = tower.probabilities(np.concatenate([inputs[name] for name in found.inputs], axis=1))
            if not np.allclose(mine, run(inputs), rtol=0, atol=TOLERANCE):  # not a number: not close either
                return None
    return found, tower


def plain_tower(graph: bytes) -> PlainTower | None:
    """What of an ONNX model makes a plain tower; None where it is another network."""
    try:
        return _Graph(graph).tower()
    except (ValueError, TypeError, IndexError, KeyError, UnicodeDecodeError, OverflowError):
        return None  # bytes or operators that are none of ours: ONNX Runtime knows what they mean


@dataclass(slots=True)
class _Node:
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    kind: str = ""
    domain: str = ""
    attributes: dict[str, float | int] = field(default_factory=dict)


class _Graph:
    """A model's operators and tensors. Raises ValueError and its like wherever it is not a plain tower."""

    def __init__(self, model: bytes) -> None:
        (graph,) = [_bytes(value) for number, value in _fields(model) if number == 7]
        self._nodes: list[_Node] = []
        self._tensors: dict[str, Any] = {}
        self._outputs: list[str] = []
        for number, value in _fields(graph):
            if number == 1:
                self._nodes.append(_node(_bytes(value)))
            elif number == 5:
                name, tensor = _tensor(_bytes(value))
                self._tensors[name] = tensor
            elif number == 12:
                self._outputs += [_text(name) for place, name in _fields(_bytes(value)) if place == 1]

    def tower(self) -> PlainTower:
        if any(node.domain or len(node.outputs) != 1 for node in self._nodes) or len(self._outputs) != 1:
            raise ValueError("not a chain of standard operators with one output")
        rest = list(self._nodes)
        inputs, at = self._beginning(rest)
        weights: list[F32] = []
        biases: list[F32] = []
        while rest and rest[0].kind == "Gemm":
            at = self._follow(rest[0], at)
            weight, bias = self._layer(rest.pop(0))
            weights.append(weight)
            biases.append(bias)
            # A relu behind the last layer is none of ours: `_pair` and `_single` refuse it.
            if [node.kind for node in rest[:2]] != ["Relu", "Gemm"]:
                break
            at = self._follow(rest.pop(0), at)
        logits = len(biases[-1])
        column = self._pair(rest, at) if logits == 2 else self._single(rest, at)
        if len(weights) < 2 or logits > 2:
            raise ValueError("no hidden layer, or more than one probability")
        return PlainTower(tuple(inputs), tuple(weights), tuple(biases), column)

    def _beginning(self, rest: list[_Node]) -> tuple[list[str], str]:
        if rest[0].kind != "Concat":
            return [rest[0].inputs[0]], rest[0].inputs[0]
        joined = rest.pop(0)
        if joined.attributes.get("axis") not in (1, -1) or any(name in self._tensors for name in joined.inputs):
            raise ValueError("inputs that do not stand side by side")
        return joined.inputs, joined.outputs[0]

    @staticmethod
    def _follow(node: _Node, at: str) -> str:
        if node.inputs[:1] != [at]:
            raise ValueError("not a chain")
        return node.outputs[0]

    def _layer(self, node: _Node) -> tuple[F32, F32]:
        usual = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
        given = {**usual, **node.attributes}
        weight = self._tensors[node.inputs[1]]
        weight = weight if given.pop("transB") else weight.T
        bias = np.zeros(len(weight), np.float32)  # exporters leave a bias of zeros out
        if len(node.inputs) > 2:
            bias = self._tensors[node.inputs[2]]
        if given != {"alpha": 1.0, "beta": 1.0, "transA": 0}:
            raise ValueError("a product with a factor")
        if weight.dtype != np.float32 or bias.dtype != np.float32 or bias.shape != weight.shape[:1]:
            raise ValueError("weights of another kind")
        return np.ascontiguousarray(weight), bias

    def _pair(self, rest: list[_Node], at: str) -> int:
        softmax, gather = rest
        if (softmax.kind, softmax.attributes) not in (("Softmax", {"axis": 1}), ("Softmax", {"axis": -1})):
            raise ValueError("no softmax over the pair")
        if gather.kind != "Gather" or gather.attributes != {"axis": 1}:
            raise ValueError("no column of the pair")
        if self._follow(gather, self._follow(softmax, at)) != self._outputs[0]:
            raise ValueError("not a chain")
        index = self._tensors[gather.inputs[1]]
        if index.shape != () or not -2 <= index < 2:
            raise ValueError("no column of the pair")
        column = int(index) + (2 if index < 0 else 0)
        return column

    def _single(self, rest: list[_Node], at: str) -> int:
        for node in rest:
            at = self._follow(node, at)
        kinds = [node.kind for node in rest if node.kind not in RESHAPES]
        if kinds != ["Sigmoid"] or at != self._outputs[0]:
            raise ValueError("no probability of one logit")
        return 0


# -- the bytes: https://protobuf.dev/programming-guides/encoding, and the field numbers of onnx.proto ----------------


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number without end")


def _fields(message: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Numbers of fields and what they hold: whole numbers, or bytes."""
    data, at = memoryview(message), 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind, -1)
        if kind == 2:
            length, at = _varint(data, at)
        if length < 0 or at + length > len(data):
            raise ValueError("a field that ends outside")
        yield tag >> 3, data[at : at + length]
        at += length


def _bytes(value: Any) -> memoryview:
    """Of a field that may hold a whole number instead: `bytes` of that would be as many zeros."""
    if not isinstance(value, memoryview):
        raise ValueError("a field of another kind")
    return value


def _text(value: Any) -> str:
    return bytes(_bytes(value)).decode()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _node(message: memoryview) -> _Node:
    found = _Node()
    for number, value in _fields(message):
        if number == 1:
            found.inputs.append(_text(value))
        elif number == 2:
            found.outputs.append(_text(value))
        elif number == 4:
            found.kind = _text(value)
        elif number == 7:
            found.domain = _text(value)
        elif number == 5:
            parts = dict(_fields(_bytes(value)))
            kind = parts.get(20)
            if kind == 1:
                found.attributes[_text(parts[1])] = float(np.frombuffer(_bytes(parts[2]), "<f4")[0])
            elif kind == 2:
                found.attributes[_text(parts[1])] = _signed(parts.get(3, 0))
            else:
                raise ValueError("an attribute of another kind")
    return found


def _tensor(message: memoryview) -> tuple[str, Any]:
    name, dims, kind, raw = "", [], 0, None
    for number, value in _fields(message):
        if number == 1:
            dims += [value] if isinstance(value, int) else list(_packed(value))
        elif number == 2:
            kind = value
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = value
        elif number in (4, 7, 13):  # values that are not raw, or in another file
            raise ValueError("a tensor in another form")
    if raw is None or kind not in (FLOAT, INT64):
        raise ValueError("a tensor in another form")
    # A copy: the bytes may stand at any address, and kernels read floats where floats may stand.
    return name, np.frombuffer(_bytes(raw), "<f4" if kind == FLOAT else "<i8").reshape(dims).copy()


def _packed(value: memoryview) -> Iterator[int]:
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number
