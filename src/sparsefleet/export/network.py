"""A model's dense network as an ONNX graph: from pooled embeddings and dense features to click probabilities.

The model runs once on symbolic tensors. Its embeddings, which in training look rows up and pool them, hand out the
graph's inputs instead; so everything from there to the probability is in the graph, and nothing else is: no label, no
loss, no lookup. A model for several labels has an output for each, or for those that are asked for: then what the
others alone need is left out, embeddings and their tables too.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from sparsefleet.core.batch import F32
from sparsefleet.core.errors import BundleError
from sparsefleet.export.manifest import DenseInput, EmbeddingInput, NetworkInfo
from sparsefleet.export.onnx_session import open_session, run_session
from sparsefleet.export.outputs import chosen_outputs, cut_to_outputs
from sparsefleet.kernels.float_mode import flushed
from sparsefleet.nn.embedding import SparseEmbedding
from sparsefleet.nn.objective import label_graph, label_names, probability_graph
from sparsefleet.nn.sequence_embedding import SequenceEmbedding

DENSE, OUTPUT = "dense", "probability"
TOLERANCE = 1e-5
CHECKED_ROWS = (1, 3, 64)


@dataclass(frozen=True, slots=True)
class Network:
    graph: bytes
    info: NetworkInfo
    difference: float
    """The largest difference between torch and ONNX Runtime on random inputs."""


class TracedBatch:
    """What a model gets for its batch while it is traced."""

    def __init__(self, dense: torch.Tensor, slots: tuple[str, ...]) -> None:
        self.dense, self.slots = dense, slots

    def __len__(self) -> int:
        return self.dense.shape[0]

    def __getattr__(self, name: str) -> NoReturn:
        raise BundleError(
            f"the model uses batch.{name} in its forward pass; a bundle's network gets pooled embeddings and "
            "dense_input(batch) only: look values up with SparseEmbedding, and keep labels out of forward"
        )


class _FromPooled(nn.Module):
    """The model as a function of tensors: (dense, pooled…) -> probabilities [B], of each label where it has several."""

    def __init__(
        self,
        model: nn.Module,
        embeddings: Sequence[SparseEmbedding],
        slots: tuple[str, ...],
        places: Sequence[int] | None = None,
    ) -> None:
        """`places`: of the labels whose probabilities are wanted; None: all."""
        super().__init__()
        self.model = model
        self._embeddings, self._slots = tuple(embeddings), slots
        self._places = places

    def forward(self, dense: torch.Tensor, pooled: list[torch.Tensor]) -> list[torch.Tensor]:
        for module, tensor in zip(self._embeddings, pooled, strict=True):
            given = module.from_input(tensor)
            module.forward = lambda batch, given=given: given  # type: ignore[method-assign, misc]
        try:
            output = self.model(TracedBatch(dense, self._slots))
        finally:
            for module in self._embeddings:
                del module.forward
        if label_names(self.model) is not None and not hasattr(self.model, "probabilities"):
            of_labels = label_graph(self.model, output)
            return of_labels if self._places is None else [of_labels[place] for place in self._places]
        return [probability_graph(self.model, output).float()]


def export_network(
    model: nn.Module,
    slots: tuple[str, ...],
    dense_features: int,
    wanted: Sequence[str] | None = None,
    label: str = "label",
) -> Network:
    """Trace the model (in eval mode), and refuse the graph unless ONNX Runtime computes from it what torch does.

    `wanted`: the labels whose probabilities the graph is to give, the first of them as its first output; None: all.
    `label`: what the one output of a model for one label is called.
    """
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, SparseEmbedding)]
    if not named:
        raise BundleError("the model has no SparseEmbedding: there is nothing to look up for a prediction")
    for name, module in named:
        missing = [slot for slot in module.slots if slot not in slots]
        if missing:
            raise BundleError(
                f"embedding {name!r} is over slot {', '.join(map(repr, missing))}, which the schema does not have"
            )
    places = None if wanted is None else chosen_outputs(wanted, _labels(model), label)
    wrapped = _FromPooled(model, [module for _, module in named], slots, places).eval()
    names = [f"pooled_{index}" for index in range(len(named))]
    widths = [module.width for _, module in named]
    labels = _labels(model)
    if places is not None and labels:
        labels = tuple(labels[place] for place in places)
    outputs = [OUTPUT, *(f"{OUTPUT}_{index}" for index in range(1, len(labels)))]
    proto = _traced(wrapped, names, widths, dense_features, outputs)
    if places is not None:
        cut_to_outputs(proto)
    _tidy(proto)
    used = {entry.name for entry in proto.graph.input}
    unused = [name for (name, _), given in zip(named, names, strict=True) if given not in used]
    if unused and places is None:
        raise BundleError(f"embedding {', '.join(map(repr, unused))} has no influence on the prediction; remove it")
    info = NetworkInfo(
        output=OUTPUT,
        dense=DenseInput(DENSE, dense_features) if DENSE in used else None,
        embeddings=tuple(
            EmbeddingInput(given, name, module.table, module.dim, module.slots, module.pooling, length=_length(module))
            for (name, module), given in zip(named, names, strict=True)
            if given in used
        ),
        parameters=_unchanged(model, proto),
        labels=tuple(zip(labels, outputs, strict=True)) if labels else (),
    )
    graph: bytes = proto.SerializeToString(deterministic=True)
    return Network(graph, info, _compare(wrapped, graph, info, dict(zip(names, widths, strict=True)), dense_features))


def _labels(model: nn.Module) -> tuple[str, ...]:
    """Of several; none where a model says itself what its one probability is."""
    return () if hasattr(model, "probabilities") else label_names(model) or ()


def _length(module: SparseEmbedding) -> int | None:
    return module.length if isinstance(module, SequenceEmbedding) else None


def _traced(wrapped: _FromPooled, names: list[str], widths: list[int], dense_features: int, outputs: list[str]) -> Any:
    rows = 3
    batch = torch.export.Dim("batch")
    example = (torch.zeros(rows, dense_features), [torch.zeros(rows, width) for width in widths])
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                wrapped,
                example,
                dynamo=True,
                input_names=[DENSE, *names],
                output_names=outputs,
                dynamic_shapes=({0: batch}, [{0: batch} for _ in widths]),
                verbose=False,
            )
    except BundleError:
        raise
    except Exception as error:  # the exporter raises many types
        cause = _our_error(error)
        if cause is not None:
            raise cause from error
        raise BundleError(f"torch cannot export this model to ONNX: {_reason(error)}") from error
    proto = program.model_proto if program is not None else None
    if proto is None:
        raise BundleError("torch's ONNX exporter gave no model")
    return proto


def _our_error(error: BaseException | None) -> BundleError | None:
    """Find the error that the model's forward raised: the exporter wraps it several times."""
    while error is not None:
        if isinstance(error, BundleError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _reason(error: BaseException) -> str:
    """What it met in the model: the error below all those in which the exporter wraps it, without pages of advice."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    first = text.partition("\n")[0] or "no reason given"
    place = re.search(r'File "(.+)", line (\d+), in', text)
    return f"{type(error).__name__}: {first}" + (f" ({place[1]}, line {place[2]})" if place else "")


def _tidy(proto: Any) -> None:
    """Remove unused inputs and tensors, and the notes on the line of script that each operator came from."""
    graph = proto.graph
    used = {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}
    for entries in (graph.input, graph.initializer):
        kept = [entry for entry in entries if entry.name in used]
        del entries[:]
        entries.extend(kept)
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        for field in ("metadata_props", "doc_string"):
            with contextlib.suppress(ValueError):
                part.ClearField(field)


def _unchanged(model: nn.Module, proto: Any) -> tuple[tuple[str, str], ...]:
    """The model's tensors that the graph holds under their names with equal values."""
    import onnx.numpy_helper

    state = model.state_dict()
    found = []
    for initializer in proto.graph.initializer:
        name = initializer.name.removeprefix("model.")
        if name in state and np.array_equal(onnx.numpy_helper.to_array(initializer), state[name].numpy()):
            found.append((name, str(initializer.name)))
    return tuple(sorted(found))


def _compare(
    wrapped: _FromPooled, graph: bytes, info: NetworkInfo, widths: dict[str, int], dense_features: int
) -> float:
    session = open_session(graph)
    random, worst = np.random.default_rng(0), 0.0
    for rows in CHECKED_ROWS:
        for scale in (0.0, 0.05, 1.0):
            pooled = {
                name: (scale * random.standard_normal((rows, width))).astype(np.float32)
                for name, width in widths.items()
            }
            dense = random.random((rows, dense_features), np.float32)
            inputs = {entry.input: pooled[entry.input] for entry in info.embeddings}
            if info.dense is not None:
                inputs[info.dense.input] = dense
            with torch.no_grad(), flushed():
                computed = wrapped(torch.from_numpy(dense), [torch.from_numpy(array) for array in pooled.values()])
            named = [output for _, output in info.labels] or [info.output]
            for output, tensor in zip(named, computed, strict=True):
                worst = max(worst, _difference(run_session(session, output, inputs), tensor.numpy(), rows))
    return worst


def _difference(got: F32, want: F32, rows: int) -> float:
    """The largest, if it may be."""
    if want.shape != (rows,):
        raise BundleError(f"the model's probabilities have shape {list(want.shape)} for {rows} rows; wanted is [B]")
    if got.shape != want.shape:
        raise BundleError(
            f"the exported graph gives shape {list(got.shape)} for {rows} rows where torch gives "
            f"{list(want.shape)}: the model depends on the number of rows in a way that ONNX cannot say"
        )
    worst = float(np.abs(got - want).max())
    if not worst <= TOLERANCE:
        raise BundleError(
            f"the exported graph does not compute what the model does: probabilities differ by {worst:.3g} "
            f"(allowed is {TOLERANCE:g}) on {rows} random rows"
        )
    return worst


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter tells its developers: warnings, and whole graphs. What matters to users is raised."""
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("torch")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
