"""Predictor: a bundle in use. It turns raw samples or batches into probabilities, without torch.

A model for several labels has a probability of each, by name; where one is asked for, it is that of the first label.

Legend: B samples, U unique keys, D values a row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsefleet.core.batch import F32, I64, Batch
from sparsefleet.core.errors import BundleError, ConfigError
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.kernels.bundle_rows import Found
from sparsefleet.export.manifest import EmbeddingInput
from sparsefleet.export.onnx_session import open_session, run_outputs
from sparsefleet.kernels.rows import I32, pool_forward, select_slots, unique_keys
from sparsefleet.kernels.sequences import sequence_input
from sparsefleet.serving.drift import InputDrift
from sparsefleet.serving.kernels.tower import MappedNetwork, MappedTable, NetworkPlan, PooledColumns, ServedTower
from sparsefleet.serving.mmap import MappedSource
from sparsefleet.serving.plain_tower import served_tower
from sparsefleet.serving.samples import SampleParser
from sparsefleet.serving.source import BodyScorer, Fetch, SparseSource

COUNTED = 16
"""Of so many batches, one is counted by slot: it costs a few per cent of the batch."""
ONNX_RUNTIME, OWN_TOWER = "ONNX Runtime", "own tower"
CHUNK_SAMPLES = 4096
"""Samples scored at a time. A longer batch is cut, so that memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Scores:
    probabilities: F32
    """[B]; of a model for several labels, those of the first."""
    keys: int
    """Distinct keys looked up."""
    unknown: int
    """Of these, the keys that no table held."""
    by_slot: tuple[I64, I64] | None = None
    """[S] values, and those of them without a row, in the schema's order; of one batch in `COUNTED`."""
    by_label: Mapping[str, F32] = field(default_factory=dict)
    """Of a model for several labels: [B] of each, the first one's too. Empty for a model of one label."""

    def part(self, start: int, stop: int) -> Scores:
        """Those of some of the samples; keys are not counted again."""
        by_label = {name: values[start:stop] for name, values in self.by_label.items()}
        return Scores(self.probabilities[start:stop], 0, 0, by_label=by_label)

    @staticmethod
    def joined(parts: Sequence[Scores]) -> Scores:
        if len(parts) == 1:
            return parts[0]
        return Scores(
            np.concatenate([part.probabilities for part in parts]),
            sum(part.keys for part in parts),
            sum(part.unknown for part in parts),
            by_label={name: np.concatenate([part.by_label[name] for part in parts]) for name in parts[0].by_label},
        )


class Predictor:
    """Threads may share one. Each call runs in the thread that makes it."""

    def __init__(
        self,
        bundle: Bundle | str | os.PathLike[str],
        *,
        source: SparseSource | None = None,
        threads: int = 1,
        max_rows: int | None = None,
        allow_missing: bool = False,
        allow_extra: bool = False,
        optimization: str = "all",
        own_tower: bool = True,
    ) -> None:
        """`source`: where rows come from; by default the bundle's own files. `threads`: of ONNX Runtime, per call.

        `max_rows`: refuse requests of more samples. `allow_missing`: a field that a sample leaves out counts as null.
        `allow_extra`: a field that the model does not have is left out of account. `optimization`: how far ONNX Runtime
        may rewrite the network (`export.onnx_session.OPTIMIZATIONS`). `own_tower`: a plain tower is computed by our own
        kernel, where that is faster; False, or settings of ONNX Runtime's own: never.
        """
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self.source = source or MappedSource(self.bundle)
        self.parser = SampleParser(
            self.bundle.schema,
            max_rows=max_rows or 2**31,
            allow_missing=allow_missing,
            inputs=self.bundle.inputs,
            allow_extra=allow_extra,
        )
        self._session = _open_session(self.bundle, threads, optimization)
        self._slots = self.bundle.schema.slot_names
        self._uncounted = COUNTED - 1
        """Batches since the last one that was counted. Threads may lose one another's: it is about one in `COUNTED`."""
        profile = self.bundle.profile
        self.drift = None if profile is None else InputDrift(profile, self.bundle.schema)
        self._tables = [_Table(table.name, self._slots, self.bundle) for table in self.bundle.manifest.tables]
        self._tower: ServedTower | None = None
        self._mapped: MappedNetwork | None = None
        self._remote: BodyScorer | None = None
        self._columns: dict[str, slice] = {}
        """Where each of the network's inputs stands in that of the tower."""
        if own_tower and threads == 1 and optimization == "all" and not self.bundle.network.labels:
            self._take_own_tower()

    def _take_own_tower(self) -> None:
        network = self.bundle.network
        widths = {entry.input: entry.width for entry in network.embeddings}
        if network.dense is not None:
            widths[network.dense.input] = network.dense.features
        own = served_tower(
            self.bundle.graph, widths, lambda inputs: run_outputs(self._session, [network.output], inputs)[0]
        )
        if own is not None:
            found, self._tower = own
            stops = np.cumsum([widths[name] for name in found.inputs]).tolist()
            self._columns = {
                name: slice(a, b) for name, a, b in zip(found.inputs, [0, *stops[:-1]], stops, strict=True)
            }
            plan = self._plan(self._tower)
            if plan is not None and isinstance(self.source, MappedSource):
                self._mapped = self._mapped_network(plan)
            elif plan is not None:
                self._remote = self.source.body_scorer(plan)

    def _plan(self, tower: ServedTower) -> NetworkPlan | None:
        """What the way to probabilities in one native call needs to know; None where there is no such way."""
        network = self.bundle.network
        if any(entry.length is not None for entry in network.embeddings):
            return None
        dense = network.dense
        features, at = (0, 0) if dense is None else (dense.features, self._columns[dense.input].start)
        if features != len(self.bundle.schema.dense):  # batches have some that the network leaves out
            return None
        tables = [(table.name, *table.pooled(self._columns)) for table in self._tables]
        return NetworkPlan(tower, tables, len(self._slots), features, at)

    def _mapped_network(self, plan: NetworkPlan) -> MappedNetwork:
        """From keys to probabilities with rows from the bundle's own files."""
        files = self.bundle.tables
        tables = [
            MappedTable(files[name].data, files[name].layout, slots, embeddings)
            for name, slots, embeddings in plan.tables
        ]
        return MappedNetwork(plan.tower, tables, *plan[2:])

    @property
    def runtime(self) -> str:
        """What computes the network: ONNX Runtime, or our own kernel for plain towers."""
        return ONNX_RUNTIME if self._tower is None else OWN_TOWER

    @property
    def version(self) -> str:
        return self.bundle.name

    @property
    def labels(self) -> tuple[str, ...]:
        """What the model predicts, by name; the first is what `predict` tells."""
        return self.bundle.labels

    def predict(self, rows: Sequence[Any]) -> F32:
        """Probabilities [B] of raw samples: dicts of field values, or lists of values in the schema's order."""
        return self.predict_batch(self.parser.samples(rows))

    def predict_labels(self, rows: Sequence[Any]) -> dict[str, F32]:
        """The same of every label, by name; for a model of one label that is one entry."""
        scores = self.score(self.parser.samples(rows))
        return dict(scores.by_label) or {self.labels[0]: scores.probabilities}

    def predict_candidates(self, context: dict[str, Any], candidates: Sequence[Any]) -> F32:
        """Probabilities [B] of candidates that share the fields of one context."""
        return self.predict_batch(self.parser.candidates(context, candidates))

    def predict_batch(self, batch: Batch) -> F32:
        return self.score(batch).probabilities

    def score(self, batch: Batch) -> Scores:
        if batch.slots != self._slots or batch.dense.shape[1] != len(self.bundle.schema.dense):
            raise ConfigError(
                f"a batch of slots {', '.join(batch.slots)} and {batch.dense.shape[1]} dense features; the model has "
                f"{', '.join(self._slots)} and {len(self.bundle.schema.dense)}"
            )
        if len(batch) <= CHUNK_SAMPLES:
            return self._score(batch) if len(batch) else self.no_scores()
        parts = [
            self._score(batch.samples(start, min(start + CHUNK_SAMPLES, len(batch))))
            for start in range(0, len(batch), CHUNK_SAMPLES)
        ]
        return Scores.joined(parts)

    @property
    def merges(self) -> bool:
        """Whether `score_bodies` should be given several requests at once, where they wait."""
        return self._remote is not None and self.source.merges

    def score_bodies(self, bodies: Sequence[bytes], most: Sequence[int]) -> list[Scores | None]:
        """Scores of JSON requests in one native call; None: this one has to be parsed and scored by itself.

        `most`: samples of each. That is so for plain requests to plain towers (`MappedNetwork`, `RedisNetwork`), but
        for one in `COUNTED` calls. What they look up together is told of the first alone.
        """
        scores: list[Scores | None] = [None] * len(bodies)
        # The first goes the long way, where it is counted, and the others need not go with it.
        first = int(self._uncounted >= COUNTED - 1)
        plain, bodies, most = self.parser.plain, bodies[first:], most[first:]
        if plain is None or not bodies or max(most) > CHUNK_SAMPLES:
            return scores
        if self._remote is not None:
            found = self._remote(plain, bodies, most)
        elif self._mapped is not None:
            assert isinstance(self.source, MappedSource)
            found = self.source.over(self._mapped.score_bodies, plain, bodies, most)
        else:
            return scores
        if found is None:
            return scores
        keys, unknown = found.keys, found.unknown
        for at, probabilities in enumerate(found.probabilities, first):
            if probabilities is not None:
                scores[at], keys, unknown = Scores(probabilities, keys, unknown), 0, 0
        self._uncounted += any(one is not None for one in scores)
        return scores

    def no_scores(self) -> Scores:
        """Of no samples."""
        none = np.empty(0, np.float32)
        return Scores(none, 0, 0, by_label={name: none for name, _ in self.bundle.network.labels})

    def trouble(self) -> str:
        """Why this version cannot score at the moment; empty where it can.

        The bundle's warm-up is scored with rows from where they are kept, past every cache.
        """
        warm_up = self.bundle.warm_up
        try:
            if warm_up is not None:
                found = self._score(warm_up.batch, self.source.probe)
                return warm_up.problem(found.probabilities, found.by_label)
            names = self.bundle.schema.fields  # a bundle of an older release
            scores = self._score(self.parser.samples([dict.fromkeys(names)]), self.source.probe).probabilities
        except Exception as error:  # whatever it is: requests would meet it, too
            return str(error) or type(error).__name__
        return "" if np.isfinite(scores).all() else f"an empty sample scores {scores.tolist()}, which is not a number"

    def _score(self, batch: Batch, fetch: Fetch | None = None) -> Scores:
        counted = self._uncounted >= COUNTED - 1
        self._uncounted = 0 if counted else self._uncounted + 1
        if self._mapped is not None and fetch is None and not counted:
            assert isinstance(self.source, MappedSource)
            return Scores(*self.source.over(self._mapped.score, batch.keys, batch.offsets, batch.dense))
        network = self.bundle.network
        inputs = _Inputs(len(batch), self._columns)
        if network.dense is not None:
            inputs.put(network.dense.input, batch.dense)
        asked = missed = 0
        bags = [table.bags(batch) for table in self._tables]
        distinct = [unique_keys(keys) for keys, _ in bags]
        asking = [(table.name, unique) for table, (unique, _) in zip(self._tables, distinct, strict=True)]
        fetched = (fetch or self.source.fetch)(asking)
        by_slot = None
        if counted:
            by_slot = np.zeros(len(self._slots), np.int64), np.zeros(len(self._slots), np.int64)
        for table, (_, offsets), (unique, inverse), (rows, found) in zip(
            self._tables, bags, distinct, fetched, strict=True
        ):
            asked, missed = asked + len(unique), missed + len(unique) - int(np.count_nonzero(found))
            if by_slot is not None:
                table.count(offsets, found[inverse], *by_slot)
            for embedding, places in table.embeddings:
                if embedding.length is not None:
                    of, place = len(table.slots), int(places[0])
                    wide = sequence_input(rows, inverse, offsets, of, place, embedding.length)
                    inputs.put(embedding.input, wide)
                    continue
                pooled = inputs.room(embedding.input, embedding.width)
                mean = embedding.pooling == "mean"
                pool_forward(rows, inverse, offsets, len(table.slots), places, mean, pooled)
        if self._tower is not None:
            return Scores(self._tower.probabilities(inputs.joined), asked, missed, by_slot)
        if not network.labels:
            return Scores(run_outputs(self._session, [network.output], inputs.named)[0], asked, missed, by_slot)
        found_L = run_outputs(self._session, [output for _, output in network.labels], inputs.named)
        by_label = {name: values for (name, _), values in zip(network.labels, found_L, strict=True)}
        return Scores(found_L[0], asked, missed, by_slot, by_label)

    def close(self) -> None:
        self.source.close()


class _Inputs:
    """Of one run of the network: each by its name, or side by side for our own tower."""

    def __init__(self, samples: int, columns: Mapping[str, slice]) -> None:
        """`columns`: where each stands; empty: they do not stand side by side."""
        self.named: dict[str, F32] = {}
        self._samples, self._columns = samples, columns
        if columns:
            self.joined: F32 = np.empty((samples, max(place.stop for place in columns.values())), np.float32)

    def room(self, name: str, width: int) -> F32:
        """[B, width] to be written to."""
        if self._columns:
            return self.joined[:, self._columns[name]]
        self.named[name] = room = np.empty((self._samples, width), np.float32)
        return room

    def put(self, name: str, values: F32) -> None:
        if self._columns:
            self.joined[:, self._columns[name]] = values
        else:
            self.named[name] = values


class _Table:
    """One table, the slots of all its embeddings, and where each embedding's slots stand among them."""

    def __init__(self, name: str, all_slots: tuple[str, ...], bundle: Bundle) -> None:
        users = [entry for entry in bundle.network.embeddings if entry.table == name]
        self.name = name
        self.slots = tuple(dict.fromkeys(slot for user in users for slot in user.slots))
        self._place_of = _places(all_slots, self.slots)
        self._chosen: I32 | None = None
        if self.slots != all_slots:
            self._chosen = self._place_of
        self.embeddings: list[tuple[EmbeddingInput, I32]] = [(user, _places(self.slots, user.slots)) for user in users]

    def pooled(self, columns: Mapping[str, slice]) -> tuple[list[int], list[PooledColumns]]:
        """Its slots (none: all, in their order), and its embeddings as columns of the tower's input."""
        chosen = [] if self._chosen is None else self._chosen.tolist()
        embeddings = [
            PooledColumns(places.tolist(), entry.pooling == "mean", columns[entry.input].start)
            for entry, places in self.embeddings
        ]
        return chosen, embeddings

    def count(self, offsets: I64, known: Found, values_S: I64, unknown_S: I64) -> None:
        """Add this table's values by slot, and those without a row."""
        slot_of = np.repeat(np.resize(self._place_of, len(offsets) - 1), np.diff(offsets))
        values_S += np.bincount(slot_of, minlength=len(values_S))
        unknown_S += np.bincount(slot_of[~known], minlength=len(values_S))

    def bags(self, batch: Batch) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], I64]:
        if self._chosen is None:
            return batch.keys, batch.offsets
        return select_slots(batch.keys, batch.offsets, len(batch.slots), self._chosen)


def _places(slots: tuple[str, ...], wanted: tuple[str, ...]) -> I32:
    return np.array([slots.index(name) for name in wanted], np.int32)


def _open_session(bundle: Bundle, threads: int, optimization: str) -> Any:
    """The network in ONNX Runtime, with the inputs and the output that the bundle says it has."""
    where = bundle.path / "model.onnx"
    try:
        session = open_session(bundle.graph, threads, optimization)
    except Exception as error:  # ONNX Runtime raises types of its own
        raise BundleError(f"{where}: ONNX Runtime cannot load it: {str(error).splitlines()[0]}") from error
    network = bundle.network
    wanted = {entry.input: entry.width for entry in network.embeddings}
    if network.dense is not None:
        wanted[network.dense.input] = network.dense.features
    found = {entry.name: (entry.type, entry.shape) for entry in session.get_inputs()}
    fits = set(found) == set(wanted) and all(
        kind == "tensor(float)" and len(shape) == 2 and shape[1] == wanted[name]
        for name, (kind, shape) in found.items()
    )
    if not fits:
        raise BundleError(
            f"{where}: its inputs are {found}; network.json says {wanted} (values a row): files of two bundles?"
        )
    outputs = {entry.name: (entry.type, len(entry.shape)) for entry in session.get_outputs()}
    for output in [output for _, output in network.labels] or [network.output]:
        if outputs.get(output) != ("tensor(float)", 1):
            raise BundleError(f"{where}: its outputs are {outputs}; network.json says {output!r}, float32 [B]")
    return session
