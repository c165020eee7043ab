"""Versions: which model answers now, which one answered before, and how one takes over from the other.

A request holds the version it began with until it is answered, so every answer is of one version, and a version is
closed when its last request is done. Rows, network and schema are parts of one object: they switch together.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sparsefleet.core.errors import BundleError
from sparsefleet.core.schema import Schema
from sparsefleet.export.bundle import Bundle
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.source import SourceError, source_opener


class _Version:
    """A predictor, and how many hold it: the requests under way, and `Versions` itself."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._holders = 1
        self._lock = threading.Lock()

    def hold(self) -> bool:
        """False where it is closed already."""
        with self._lock:
            self._holders += bool(self._holders)
            return self._holders > 0

    def let_go(self) -> None:
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self.predictor.close()


class Versions:
    """Lives on the server's event loop; bundles are opened in a thread of their own. Any thread may `hold`."""

    def __init__(self, config: ServeConfig, metrics: Metrics, first: Predictor) -> None:
        self._config, self._metrics = config, metrics
        self._current = _Version(first)
        self._previous: _Version | None = None
        self._switching = asyncio.Lock()

    @property
    def current(self) -> Predictor:
        return self._current.predictor

    @property
    def previous(self) -> Predictor | None:
        return self._previous.predictor if self._previous else None

    @contextmanager
    def hold(self) -> Iterator[Predictor]:
        """The version that answers now, kept open as long as it is needed."""
        while not (version := self._current).hold():
            pass  # another thread looked, and it was switched away twice in between
        try:
            yield version.predictor
        finally:
            version.let_go()

    async def load(self, path: str, *, other_schema: bool = False) -> Predictor:
        """Take over a bundle. One that is refused (`BundleError`) or without rows (`SourceError`) changes nothing."""
        async with self._switching:
            try:
                opened = await asyncio.to_thread(open_predictor, self._config, path)
                try:
                    self._check_follows(opened.bundle, other_schema)
                except BundleError:
                    opened.close()
                    raise
            except (BundleError, SourceError):
                self._metrics.switched("refused")
                raise
            if opened.bundle.manifest.id == self.current.bundle.manifest.id:
                opened.close()  # it serves already
                return self.current
            retired, self._previous, self._current = self._previous, self._current, _Version(opened)
            self._metrics.switched("loaded")
            if retired is not None:
                retired.let_go()
            return opened

    async def roll_back(self) -> Predictor:
        """The version before answers again; rolling back once more returns to this one."""
        async with self._switching:
            if self._previous is None:
                raise BundleError("there is no earlier version to roll back to: this server has had one only")
            self._previous, self._current = self._current, self._previous
            self._metrics.switched("rolled_back")
            return self.current

    def _check_follows(self, bundle: Bundle, other_schema: bool) -> None:
        current = self.current.bundle
        if bundle.name == current.name and bundle.manifest.id != current.manifest.id:
            raise BundleError(
                f"{bundle.path}: another model under the name {bundle.name!r} of the one that serves: answers "
                "could not be told apart; export it with another --name"
            )
        difference = schema_difference(current.schema, bundle.schema)
        if difference and not other_schema:
            raise BundleError(
                f"{bundle.path}: its schema differs from the one that serves: {difference}; clients would be cut off "
                'or their values read otherwise. {"other_schema": true} takes it all the same'
            )


def open_predictor(config: ServeConfig, path: str) -> Predictor:
    """Open and check a bundle, and have it score a row: what fails here would fail every request."""
    bundle = Bundle.open(path, full=config.check == "full")
    source = source_opener(config.sparse)(bundle)
    try:
        predictor = Predictor(bundle, source=source, max_rows=config.max_rows, allow_missing=config.allow_missing)
    except BaseException:
        source.close()
        raise
    names = (*bundle.schema.dense_names, *bundle.schema.slot_names)
    try:
        (score,) = predictor.predict([dict.fromkeys(names)])
    except Exception as error:
        predictor.close()
        raise BundleError(f"{bundle.path}: it cannot score a row: {error}") from error
    if not (np.isfinite(score) and 0 <= score <= 1):
        predictor.close()
        raise BundleError(f"{bundle.path}: it scores a row without values {score}, which is no probability")
    return predictor


def schema_difference(old: Schema, new: Schema) -> str:
    """What differs, for people; empty where nothing does."""
    found = []
    for what, mine, theirs in (
        ("slots", old.slot_names, new.slot_names),
        ("dense features", old.dense_names, new.dense_names),
    ):
        gone, come = [n for n in mine if n not in theirs], [n for n in theirs if n not in mine]
        if gone or come:
            found.append(f"{what}: without {', '.join(gone) or 'none'}, with {', '.join(come) or 'none'} more")
        elif mine != theirs:
            found.append(f"{what} in another order")
    for slot in old.slots:
        for other in new.slots:
            if slot.name == other.name and slot.prefix != other.prefix:
                found.append(f"hash prefix of slot {slot.name}: {slot.prefix!r}, now {other.prefix!r}")
    for feature in old.dense:
        for twin in new.dense:
            if feature.name == twin.name and feature != twin:
                found.append(
                    f"normalisation of {feature.name}: (x - {feature.minimum:g}) / {feature.diff:g}, now "
                    f"(x - {twin.minimum:g}) / {twin.diff:g}"
                )
    for field in ("sparse_feature_dim", "hash_seed", "label"):
        if getattr(old, field) != getattr(new, field):
            found.append(f"{field}: {getattr(old, field)}, now {getattr(new, field)}")
    return "; ".join(found)
