"""A bundle's description: manifest.json and network.json. FORMAT.md describes every field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sparsefleet.core.errors import BundleError
from sparsefleet.core.inputs import Inputs
from sparsefleet.core.json_fields import MAX_TEXT, Fields, document, once, path_problem, short

FORMAT, NETWORK_FORMAT = "sparsefleet-bundle", "sparsefleet-network"
VERSION = 3
OLDEST = 1
"""Bundles from here on are read. Version 1 did not say what its inputs are; neither 1 nor 2 had a lineage."""
NETWORK_VERSION = 2
"""Version 1 had neither sequences nor labels; a network without them is written so."""
MAX_BYTES = 16 << 20

MANIFEST, NETWORK, GRAPH, SCHEMA = "manifest.json", "network.json", "model.onnx", "schema.json"
WARM_UP = "warmup.json"
PROFILE = "profile.json"
DTYPES = ("float32", "float16", "int8")
POOLINGS = ("sum", "mean")
SEQUENCE = "sequence"
ZEROS = "zeros"
MAX_DIM = 65536
MAX_LENGTH = 65536
SCORE_BOUNDS = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of the histogram of scores."""

NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
ID = re.compile(r"[0-9a-f]{32}")


class BundleFields(Fields):
    error = BundleError

    def header(self, format_name: str, oldest: int, version: int, what: str) -> int:
        found = self.take("format")
        if found != format_name:
            raise BundleError(f"{self.where}: format is {short(found)}, not {format_name!r}: no {what}")
        number = self.take("version")
        if not isinstance(number, int) or isinstance(number, bool) or not oldest <= number <= version:
            reads = f"version {version}" if oldest == version else f"versions {oldest} to {version}"
            raise BundleError(
                f"{self.where}: version {short(number)} of the {what} format; this release reads {reads}: "
                "export the checkpoint anew, or serve with the release that wrote it"
            )
        return number

    def path(self, name: str) -> str:
        return self.checked(name, lambda path: path_problem(path, "bundle"))


@dataclass(frozen=True, slots=True)
class BundleFile:
    path: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class BundleTable:
    name: str
    dim: int
    dtype: str
    rows: int
    dropped: int
    """Rows of the checkpoint that were left out because training met them too rarely."""
    path: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint that a bundle was made from."""

    name: str
    step: int
    created: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a bundle comes from, beyond its checkpoint: for people, and for gates (`export/gate.py`)."""

    data: str | None = None
    """The samples that `metrics` are of."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Model and optimizers, as the checkpoint describes them."""
    commit: str | None = None
    """Of the source tree that the export ran in, where there is one."""
    scores: tuple[int, ...] = ()
    """How many of the data's samples score up to each of SCORE_BOUNDS: what a server's scores are compared with."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "metrics": dict(self.metrics),
            "settings": dict(self.settings),
            "commit": self.commit,
            "scores": list(self.scores),
        }


@dataclass(frozen=True, slots=True)
class BundleManifest:
    name: str
    """The model's version; every answer names it."""
    id: str
    checkpoint: Origin
    tables: tuple[BundleTable, ...]
    min_seen: int
    files: tuple[BundleFile, ...]
    created: str
    sparsefleet: str
    inputs: Inputs | None = None
    """How the samples were read that the model was trained on, and so what a request has to hold; None: not known."""
    lineage: Lineage = field(default_factory=lambda: Lineage())

    def file(self, path: str) -> BundleFile:
        return next(entry for entry in self.files if entry.path == path)

    def to_json(self) -> bytes:
        inputs = None if self.inputs is None else self.inputs.to_dict()
        return _json(
            {"format": FORMAT, "version": VERSION, **asdict(self), "inputs": inputs, "lineage": self.lineage.to_dict()}
        )


@dataclass(frozen=True, slots=True)
class EmbeddingInput:
    """One input of the network: the pooled rows of one SparseEmbedding, [B, len(slots) * dim]."""

    input: str
    module: str
    table: str
    dim: int
    slots: tuple[str, ...]
    pooling: str
    """sum or mean of a slot's rows; sequence: the rows of one slot's last `length` values, [B, length * (dim + 1)]."""
    missing: str = ZEROS
    """What a slot without values gives."""
    unknown: str = ZEROS
    """What a value gives whose key the table does not hold."""
    length: int | None = None
    """Of a sequence, how many values count: the last ones."""

    @property
    def width(self) -> int:
        """Values a sample has in this input."""
        return len(self.slots) * self.dim if self.length is None else self.length * (self.dim + 1)


@dataclass(frozen=True, slots=True)
class DenseInput:
    input: str
    features: int


@dataclass(frozen=True, slots=True)
class NetworkInfo:
    output: str
    dense: DenseInput | None
    embeddings: tuple[EmbeddingInput, ...]
    parameters: tuple[tuple[str, str], ...]
    """(name in the model, name in the graph) of the tensors that the graph holds unchanged."""
    labels: tuple[tuple[str, str], ...] = ()
    """Of a model for several labels: (label, the graph's output with its probability). The first is `output`."""

    def to_json(self) -> bytes:
        data = asdict(self)
        version = NETWORK_VERSION
        if not self.labels and all(entry.length is None for entry in self.embeddings):
            # As releases that know neither write and read it.
            version = 1
            del data["labels"]
            for entry in data["embeddings"]:
                del entry["length"]
        return _json({"format": NETWORK_FORMAT, "version": version, **data})


def parse_manifest(data: bytes, where: str) -> BundleManifest:
    fields = BundleFields(_document(data, where), where)
    version = fields.header(FORMAT, OLDEST, VERSION, "bundle")
    origin = fields.child("checkpoint")
    manifest = BundleManifest(
        name=fields.text("name", NAME, "1 to 200 characters, no control characters"),
        id=fields.text("id", ID, "32 hexadecimal digits"),
        checkpoint=Origin(origin.text("name"), origin.integer("step"), origin.created("created")),
        tables=fields.items("tables", _table),
        min_seen=fields.integer("min_seen"),
        files=fields.items("files", _file),
        created=fields.created("created"),
        sparsefleet=fields.text("sparsefleet"),
        inputs=_inputs(fields, where) if version > 1 else None,
        lineage=_lineage(fields) if version > 2 else Lineage(),
    )
    origin.end()
    fields.end()
    paths = [entry.path for entry in manifest.files]
    once(paths, "file", where, BundleError)
    once([table.name for table in manifest.tables], "table", where, BundleError)
    once([table.path for table in manifest.tables], "rows file", where, BundleError)
    for needed in (GRAPH, NETWORK, SCHEMA, *(table.path for table in manifest.tables)):
        if needed not in paths:
            raise BundleError(f"{where}: file {short(needed)} is not listed")
    return manifest


def _inputs(fields: BundleFields, where: str) -> Inputs | None:
    value = fields.take("inputs")
    return None if value is None else Inputs.from_dict(value, f"{where}: inputs", BundleError)


def _lineage(fields: BundleFields) -> Lineage:
    part = fields.child("lineage")
    metrics, settings = part.mapping("metrics"), part.mapping("settings")
    for name, value in metrics.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise part.fail("metrics", f"has {short(name)}: {short(value)}; wanted are numbers")
    scores = part.items("scores", _count)
    if len(scores) not in (0, len(SCORE_BOUNDS)):
        raise part.fail("scores", f"has {len(scores)} counts; wanted are none or {len(SCORE_BOUNDS)}")
    found = Lineage(_text_or_none(part, "data"), metrics, settings, _text_or_none(part, "commit"), scores)
    part.end()
    return found


def _count(item: Any, where: str) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 2**62:
        raise BundleError(f"{where}: wanted is a count, got {short(item)}")
    return item


def _text_or_none(fields: BundleFields, name: str) -> str | None:
    return None if fields.take(name) is None else fields.text(name)


def parse_network(data: bytes, where: str) -> NetworkInfo:
    fields = BundleFields(_document(data, where), where)
    version = fields.header(NETWORK_FORMAT, 1, NETWORK_VERSION, "network description")
    network = NetworkInfo(
        output=fields.text("output"),
        dense=_dense(fields),
        embeddings=fields.items("embeddings", _embedding if version > 1 else _pooled_embedding),
        parameters=fields.items("parameters", _parameter),
        labels=fields.items("labels", _label) if version > 1 else (),
    )
    fields.end()
    inputs = [embedding.input for embedding in network.embeddings]
    once(inputs + ([network.dense.input] if network.dense else []), "input", where, BundleError)
    once([label for label, _ in network.labels], "label", where, BundleError)
    if network.labels and network.labels[0][1] != network.output:
        raise BundleError(f"{where}: output {short(network.output)} is not that of the first label")
    return network


def _dense(fields: BundleFields) -> DenseInput | None:
    if fields.take("dense") is None:
        return None
    dense = fields.child("dense")
    result = DenseInput(dense.text("input"), dense.integer("features", 1, 1 << 20))
    dense.end()
    return result


def _pooled_embedding(item: Any, where: str) -> EmbeddingInput:
    fields = BundleFields(item, where)
    embedding = _pooled(fields, POOLINGS)
    fields.end()
    return embedding


def _embedding(item: Any, where: str) -> EmbeddingInput:
    fields = BundleFields(item, where)
    embedding = _pooled(fields, (*POOLINGS, SEQUENCE))
    has_length = fields.take("length") is not None
    if has_length != (embedding.pooling == SEQUENCE):
        raise fields.fail("length", f"is for embeddings of pooling {SEQUENCE}, which must have it, and for no others")
    if has_length:
        embedding = replace(embedding, length=fields.integer("length", 1, MAX_LENGTH))
        if len(embedding.slots) != 1:
            raise fields.fail("slots", "has several; a sequence is of one slot")
    fields.end()
    return embedding


def _pooled(fields: BundleFields, poolings: tuple[str, ...]) -> EmbeddingInput:
    embedding = EmbeddingInput(
        input=fields.text("input"),
        module=fields.text("module"),
        table=fields.text("table"),
        dim=fields.integer("dim", 1, MAX_DIM),
        slots=fields.items("slots", _text),
        pooling=fields.choice("pooling", poolings),
        missing=fields.choice("missing", (ZEROS,)),
        unknown=fields.choice("unknown", (ZEROS,)),
    )
    if not embedding.slots:
        raise fields.fail("slots", "is empty; an embedding has at least one slot")
    return embedding


def _text(item: Any, where: str) -> str:
    if not isinstance(item, str) or len(item) > MAX_TEXT:
        raise BundleError(f"{where}: wanted is text, got {short(item)}")
    return item


def _label(item: Any, where: str) -> tuple[str, str]:
    return _two_names(item, where, "[label, output of the graph]")


def _parameter(item: Any, where: str) -> tuple[str, str]:
    return _two_names(item, where, "[name in the model, name in the graph]")


def _two_names(item: Any, where: str, wanted: str) -> tuple[str, str]:
    if not (isinstance(item, list) and len(item) == 2 and all(isinstance(name, str) for name in item)):
        raise BundleError(f"{where}: wanted is {wanted}, got {short(item)}")
    return item[0], item[1]


def _table(item: Any, where: str) -> BundleTable:
    fields = BundleFields(item, where)
    table = BundleTable(
        name=fields.text("name"),
        dim=fields.integer("dim", 1, MAX_DIM),
        dtype=fields.choice("dtype", DTYPES),
        rows=fields.integer("rows"),
        dropped=fields.integer("dropped"),
        path=fields.path("path"),
    )
    fields.end()
    return table


def _file(item: Any, where: str) -> BundleFile:
    fields = BundleFields(item, where)
    entry = BundleFile(fields.path("path"), fields.integer("bytes"), fields.checksum("checksum"))
    fields.end()
    if entry.path == MANIFEST:
        raise fields.fail("path", "is the manifest, which cannot list itself")
    return entry


def _document(data: bytes, where: str) -> Any:
    if len(data) > MAX_BYTES:
        raise BundleError(f"{where}: {len(data)} bytes; at most {MAX_BYTES} are allowed")
    return document(data, where, BundleError)


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()
