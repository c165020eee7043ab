"""Cuts a network down to chosen outputs: what only the others need is left out of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparsefleet.core.errors import ConfigError


def chosen_outputs(wanted: Sequence[str], labels: Sequence[str], label: str) -> tuple[int, ...]:
    """The places of the wanted names among the model's labels. `label`: the name of the one output without labels."""
    names = tuple(labels) or (label,)
    if not wanted:
        raise ConfigError(f"outputs is empty; the model has {', '.join(names)}")
    for name in wanted:
        if name not in names:
            raise ConfigError(f"outputs: the model has no output {name!r:.80}; it has {', '.join(names)}")
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"outputs={','.join(wanted)!r:.200} names one twice")
    return tuple(names.index(name) for name in wanted)


def cut_to_outputs(proto: Any) -> None:
    """Remove every operator that no output of the graph needs.

    Models for several labels put the labels' logits side by side and the outputs are columns of that: taken from the
    part that holds it, a column needs none of the others.
    """
    graph = proto.graph
    _columns_from_parts(proto)
    needed = {entry.name for entry in graph.output}
    kept = []
    for node in reversed(graph.node):  # operators stand behind those that they need
        if needed.intersection(node.output):
            needed.update(_names_in(node))
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    described = [entry for entry in graph.value_info if entry.name in needed]
    del graph.value_info[:]
    graph.value_info.extend(described)


def _columns_from_parts(proto: Any) -> None:
    """Let each `Gather` of one column of a `Concat` take it from the part of the `Concat` that has it."""
    import numpy as np
    import onnx.numpy_helper
    import onnx.shape_inference

    graph = proto.graph
    made = {output: node for node in graph.node for output in node.output}
    tensors = {entry.name: entry for entry in graph.initializer}
    widths = _widths(onnx.shape_inference.infer_shapes(proto).graph)
    for node in list(graph.node):
        index = tensors.get(node.input[1]) if node.op_type == "Gather" and _axis(node) == 1 else None
        if index is None or index.dims or node.input[0] not in widths:
            continue
        source, column = node.input[0], int(onnx.numpy_helper.to_array(index))
        column += widths[source] if column < 0 else 0
        while (joined := made.get(source)) is not None and joined.op_type == "Concat" and _axis(joined) in (1, -1):
            if not all(part in widths for part in joined.input):
                break
            for part in joined.input:
                if column < widths[part]:
                    source = part
                    break
                column -= widths[part]
        if source == node.input[0]:
            continue
        name = f"{node.output[0]}_column"
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(column, np.int64), name))
        node.input[0], node.input[1] = source, name


def _widths(graph: Any) -> dict[str, int]:
    """The columns of every matrix whose number of them is known."""
    found = {}
    for entry in (*graph.value_info, *graph.input, *graph.output):
        dims = entry.type.tensor_type.shape.dim
        if len(dims) == 2 and dims[1].HasField("dim_value"):
            found[entry.name] = int(dims[1].dim_value)
    return found


def _axis(node: Any) -> int:
    return next((int(each.i) for each in node.attribute if each.name == "axis"), 0)


def _names_in(node: Any) -> Iterable[str]:
    """What an operator reads, that of its branches included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _names_in(inner)
            yield from (entry.name for entry in graph.output)
