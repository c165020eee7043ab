"""verify: the three questions and the scores, for a checkpoint and every place that serves it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import onnx
from torch import nn

from sparsefleet.checkpoint import AnyPath, Checkpoint, chosen
from sparsefleet.core.errors import BundleError, ConfigError
from sparsefleet.core.inputs import pipe_advice
from sparsefleet.core.schema import Schema
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.exporting import inputs_of, model_of, schema_of
from sparsefleet.verify.graph import check_graph
from sparsefleet.verify.http_place import HttpPlace
from sparsefleet.verify.offline import as_exported, rows_for, torch_scores
from sparsefleet.verify.parsing import check_parsing
from sparsefleet.verify.places import (
    BUNDLE,
    CHECKPOINT,
    HTTP,
    REDIS,
    PredictorPlace,
    RowsPlace,
    ScoringPlace,
    bundle_rows,
)
from sparsefleet.verify.pruned import cut_as_bundle, left_out_tables
from sparsefleet.verify.redis_place import RedisPlace
from sparsefleet.verify.report import Check, Question, Report
from sparsefleet.verify.samples import DataSamples, read_samples
from sparsefleet.verify.scores import check_scores, score_samples
from sparsefleet.verify.settings import (
    bundle_settings,
    check_precision,
    compare_settings,
    offline_settings,
    told_settings,
)
from sparsefleet.verify.table_rows import check_table
from sparsefleet.verify.tensors import check_tensors
from sparsefleet.verify.worst import worst_samples


@dataclass(frozen=True)
class VerifyConfig:
    rows: int = 1000
    """Samples of the data that are scored."""
    tolerance: float = 1e-6
    """How far scores (probabilities) may be apart."""
    sparse_sample: int | None = None
    """About how many rows of each table are compared; None: all."""
    timeout: float = 30.0
    """Seconds for one answer of a server."""
    format: str = "auto"
    pipe_command: str | None = None
    labelled: bool = True
    same_inputs: bool = False
    """The samples are read otherwise than in training, and whoever asks vouches for them."""

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"rows={self.rows} must be 1 or above")
        if not self.tolerance >= 0:
            raise ConfigError(f"tolerance={self.tolerance} must be 0 or above")
        if self.sparse_sample is not None and self.sparse_sample < 1:
            raise ConfigError(f"sparse_sample={self.sparse_sample} must be 1 or above")
        if not self.timeout > 0:
            raise ConfigError(f"timeout={self.timeout} must be above 0")


def verify(
    checkpoint: AnyPath,
    bundle: str | os.PathLike[str],
    data: str,
    *,
    url: str | None = None,
    redis: str | None = None,
    model: nn.Module | None = None,
    config: VerifyConfig | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Report:
    """Compare a checkpoint, or the one of a run's folder that `export` takes, with a bundle and whoever serves it.

    `url`: a running server. `redis`: where the bundle's rows were published. `model`: your own module where the
    checkpoint does not hold one of the project's. What cannot be read at all raises; what differs is in the report.
    """
    config = config or VerifyConfig()
    with ExitStack() as stack:
        progress("opening")
        opened = Checkpoint.open(chosen(checkpoint)[0])
        served = Bundle.open(bundle, full=True)
        network, schema = cut_as_bundle(model_of(opened, model), served), schema_of(opened, None)
        server = HttpPlace(url, config.timeout) if url else None
        if server:
            stack.callback(server.close)
        published = RedisPlace(served, redis, config.timeout) if redis else None
        if published:
            stack.callback(published.close)
        reading: dict[str, Any] = {
            "format_name": config.format,
            "pipe_command": config.pipe_command,
            "labelled": config.labelled,
        }
        reading["served"] = schema if served.inputs is None else served.inputs.served_schema(schema)
        samples = read_samples(data, schema, config.rows, **reading)
        inputs = inputs_of(opened)
        if inputs is not None and not config.same_inputs:
            how = "same_inputs=True, or --same-inputs"
            inputs.require_same(samples.inputs, str(opened.location), how)
        ready = () if served.inputs is None else served.inputs.ready_slots
        hashed = [slot.name for slot in schema.slots if not schema.takes_keys(slot) and slot.name not in ready]
        if hashed and not samples.is_raw:
            raise ConfigError(
                f"{data} holds ready-made keys, and requests to this model hold raw values, which are hashed (slot "
                f"{hashed[0]}, …): verify on raw rows"
            )
        return _Comparison(opened, served, network, schema, samples, server, published, config, progress).report()


class _Comparison:
    def __init__(
        self,
        checkpoint: Checkpoint,
        bundle: Bundle,
        model: nn.Module,
        schema: Schema,
        samples: DataSamples,
        server: HttpPlace | None,
        published: RedisPlace | None,
        config: VerifyConfig,
        progress: Callable[[str], None],
    ) -> None:
        self.checkpoint, self.bundle, self.model, self.schema = checkpoint, bundle, model, schema
        self.samples, self.server, self.published = samples, server, published
        self.config, self.progress = config, progress
        self.graph: Any = _graph_of(bundle)
        self.row_places: dict[str, RowsPlace] = {BUNDLE: bundle_rows(bundle)}
        if published and published.rows:
            self.row_places[REDIS] = published.rows
        self.scoring: dict[str, ScoringPlace] = {
            name: PredictorPlace(bundle, place.source) for name, place in self.row_places.items()
        }
        if server:
            self.scoring[HTTP] = server

    def report(self) -> Report:
        config, bundle, samples = self.config, self.bundle, self.samples
        self.progress("rows of the samples in the checkpoint")
        trained = rows_for(self.checkpoint, samples.batch.keys)
        exported = as_exported(trained, bundle.manifest)
        self.progress("network")
        graph = check_graph(bundle, self.graph, self.model, trained, samples.batch, config.tolerance)
        parameters = self._parameters()
        self.progress("scores")
        offline = torch_scores(self.model, trained, samples.batch), torch_scores(self.model, exported, samples.batch)
        scored = score_samples(self.scoring, samples.raw, *offline)
        return Report(
            places=self._named(),
            rows=len(samples.batch),
            tolerance=config.tolerance,
            graph=graph,
            parameters=parameters,
            settings=self._settings(),
            scores=check_scores(scored, config.tolerance, _options(bundle)),
            worst=worst_samples(samples, scored, bundle, trained, self.row_places),
            notes=_notes(samples, config, bundle),
        )

    def _parameters(self) -> Question:
        checks = check_tensors(self.checkpoint, self.bundle.network, self.graph)
        saved = {info.name: info.dim for info in self.checkpoint.manifest.tables}
        held = {table.name: table for table in self.bundle.manifest.tables}
        unneeded = left_out_tables(self.model, self.bundle)
        for name in dict.fromkeys([*saved, *held]):
            what = f"table {name}"
            if name not in held and name in unneeded:
                checks.append(Check(what, None, "left out: none of the bundle's outputs needs it"))
            elif name not in held:
                checks.append(Check(what, False, "the bundle does not have it"))
            elif name not in saved:
                checks.append(Check(what, False, "the checkpoint does not have it"))
            elif saved[name] != held[name].dim:
                checks.append(Check(what, False, f"{saved[name]} values a row; {held[name].dim} in the bundle"))
            else:
                self.progress(what)
                checks += check_table(
                    self.checkpoint, self.bundle, held[name], self.row_places, self.config.sparse_sample
                )
        if self.published and self.published.refused:
            checks.append(Check(f"rows in {REDIS}", False, self.published.refused))
        return Question("Are parameters online what they are offline?", checks)

    def _settings(self) -> Question:
        """After the scores: only then is it known which versions the server answered with."""
        places = {
            CHECKPOINT: offline_settings(self.checkpoint, self.schema, self.model, self.bundle),
            BUNDLE: bundle_settings(self.bundle),
        }
        if self.server:
            places[HTTP] = told_settings(self.server.model, HTTP)
        if self.published:
            places[REDIS] = self.published.settings()
        checks = [*compare_settings(places), check_precision(self.graph), *check_parsing(self.samples, self.bundle)]
        if self.server:
            checks.append(_answered(self.server, self.bundle))
        return Question("Are the serving settings right?", checks)

    def _named(self) -> dict[str, str]:
        named = {CHECKPOINT: str(self.checkpoint.location), BUNDLE: self.bundle.origin}
        if self.server:
            named[HTTP] = self.server.url
        if self.published:
            address = self.published.address
            named[REDIS] = f"{address.shown}, prefix {address.prefix}"
        return named


def _answered(server: HttpPlace, bundle: Bundle) -> Check:
    found = ", ".join(server.versions) or "none"
    ok = server.versions == [bundle.name] if server.versions else None
    return Check("version that answered", ok, found, bundle.name, {"versions": server.versions})


def _graph_of(bundle: Bundle) -> Any:
    try:
        return onnx.load_model_from_string(bundle.graph).graph
    except Exception as error:  # protobuf raises types of its own
        raise BundleError(f"{bundle.path}/model.onnx: not an ONNX model: {error}") from error


def _options(bundle: Bundle) -> str:
    kinds = dict.fromkeys(table.dtype for table in bundle.manifest.tables if table.dtype != "float32")
    words = [f"rows as {kind}" for kind in kinds]
    dropped = sum(table.dropped for table in bundle.manifest.tables)
    if dropped:
        words.append(f"{dropped:,} rows left out")
    return ", ".join(words)


def _notes(samples: DataSamples, config: VerifyConfig, bundle: Bundle) -> list[str]:
    notes = []
    if bundle.inputs is not None and (takes := pipe_advice(bundle.inputs)):
        notes.append(f"requests to this model hold {takes}: these are not hashed or normalised online")
    elif not samples.is_raw:
        notes.append(
            "the data holds keys and normalised numbers, so hashing and normalisation were not put to the test"
        )
    if len(samples.batch) < config.rows:
        notes.append(f"the data has {len(samples.batch):,} samples; {config.rows:,} were asked for")
    return notes
