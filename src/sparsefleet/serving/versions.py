"""Versions: which model answers now, which one answered before, and how the server switches between them.

A request holds one version until it is answered, so every answer is of one version; a version is closed when its last
request is done. Rows, network and schema are parts of one object, so they switch together.

Bundles are opened in one thread, always the same: glibc keeps what a thread has freed for that thread, so a bundle that
any of several threads may open would in time cost its memory once for each of them. What a version that is closed
leaves behind is given back to the system a moment later.
"""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass

from sparsefleet.core.errors import BundleError
from sparsefleet.core.memory import give_back_freed_memory
from sparsefleet.core.schema import Schema
from sparsefleet.export.bundle import Bundle
from sparsefleet.export.gate import require
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.log import tell
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.source import SourceError, needs_files, source_opener

SWITCH_SECONDS = 60.0
"""How long a switch waits for another one."""
TIDY_SECONDS = 1.0
"""So long after a switch, requests of the version that was left are done, and its memory is given back."""


class _Version:
    """A predictor, and the number of its holders: requests under way, and `Versions` itself."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._holders = 1
        self._lock = threading.Lock()

    def hold(self) -> bool:
        """False if it is closed already."""
        with self._lock:
            self._holders += bool(self._holders)
            return self._holders > 0

    def let_go(self) -> None:
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self.predictor.close()


@dataclass(frozen=True, slots=True)
class _Canary:
    version: _Version
    share: float


class Versions:
    """Lives on the server's event loop, and opens bundles in another thread. Any thread may `hold`."""

    def __init__(self, config: ServeConfig, metrics: Metrics, first: Predictor) -> None:
        self._config, self._metrics = config, metrics
        self._current = _Version(first)
        self._previous: _Version | None = None
        self._canary: _Canary | None = None
        self._shadow: _Version | None = None
        self._switching = asyncio.Lock()
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="open")
        self._tidying: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """No more switches. A bundle that is being opened is not waited for."""
        if self._tidying is not None:
            self._tidying.cancel()
        self._opener.shutdown(wait=False, cancel_futures=True)

    @property
    def current(self) -> Predictor:
        return self._current.predictor

    @property
    def previous(self) -> Predictor | None:
        return self._previous.predictor if self._previous else None

    @property
    def canary(self) -> tuple[Predictor, float] | None:
        """The version that answers a share of the requests, and the share."""
        canary = self._canary
        return (canary.version.predictor, canary.share) if canary else None

    @property
    def shadow(self) -> Predictor | None:
        shadow = self._shadow  # scoring threads look, and the event loop may end it meanwhile
        return shadow.predictor if shadow else None

    def chooses_canary(self, request_id: str | int | None) -> bool:
        """Whether this request is the canary's. Requests with the same id are of the same version."""
        canary = self._canary
        if canary is None:
            return False
        if request_id is None:
            return random.random() < canary.share
        return zlib.crc32(str(request_id).encode(errors="replace")) < canary.share * 2**32

    @contextmanager
    def hold(self, canary: bool = False) -> Iterator[Predictor]:
        """The version that answers now; it stays open within the `with` block. `canary`: that one, if there is one."""
        while True:
            side = self._canary if canary else None
            version = side.version if side else self._current
            if version.hold():
                break  # else: between the two looks of this thread, the server switched and closed that version
        try:
            yield version.predictor
        finally:
            version.let_go()

    def answering(self) -> list[str]:
        """Names of the versions that answer: the current one, and a canary."""
        canary = self.canary
        return [self.current.version, *([canary[0].version] if canary else [])]

    def is_canary(self, name: str) -> bool:
        """Whether the canary has this name, and not the version that answers the other requests."""
        canary = self.canary
        return canary is not None and canary[0].version == name != self.current.version

    def hold_shadow(self) -> AbstractContextManager[Predictor | None]:
        """None where there is no shadow."""
        version = self._shadow
        return nullcontext() if version is None else self._held(version)

    def held(self) -> list[AbstractContextManager[Predictor | None]]:
        """All versions that are open, each held within its `with` block; None for one that is closed meanwhile."""
        canary = self._canary.version if self._canary else None
        known = (self._current, self._previous, canary, self._shadow)
        return [self._held(version) for version in known if version is not None]

    @staticmethod
    @contextmanager
    def _held(version: _Version) -> Iterator[Predictor | None]:
        if not version.hold():
            yield None
            return
        try:
            yield version.predictor
        finally:
            version.let_go()

    async def set_canary(self, path: str | None, share: float = 0.0) -> Predictor | None:
        """Give a share of the requests to a bundle; None: to no other one."""
        async with self._switched_alone():
            opened = None if path is None else await self._open_beside(path)
            left, self._canary = self._canary, None if opened is None else _Canary(_Version(opened), share)
            self._let_go(left.version if left else None)
            return opened

    async def set_shadow(self, path: str | None) -> Predictor | None:
        """Let a bundle score along; None: nobody does."""
        async with self._switched_alone():
            opened = None if path is None else await self._open_beside(path)
            left, self._shadow = self._shadow, None if opened is None else _Version(opened)
            self._let_go(left)
            return opened

    async def _open_beside(self, path: str) -> Predictor:
        try:
            opened = await self._opened(path)
            try:
                self._check_beside(opened.bundle)
            except BundleError:
                opened.close()
                raise
        except (BundleError, SourceError):
            self._metrics.switched("refused")
            raise
        return opened

    async def load(self, path: str, *, other_schema: bool = False) -> Predictor:
        """Switch to a bundle. One that is refused (`BundleError`) or without rows (`SourceError`) changes nothing."""
        async with self._switched_alone():
            try:
                opened = await self._opened(path)
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
            self._let_go(retired)
            self._end_misfits()
            return opened

    async def roll_back(self) -> Predictor:
        """The version before answers again, if it still can (else `BundleError`).

        The one that is left is forgotten: nobody returns to it by mistake.
        """
        async with self._switched_alone():
            if self._previous is None:
                raise BundleError(
                    "there is no earlier version to roll back to: a server keeps one, and only until it has rolled "
                    "back to it; POST /v1/reload takes any bundle"
                )
            # It was good when it was opened; meanwhile its rows may have gone from Redis, or its file been damaged.
            asked = self._previous.predictor.trouble
            if trouble := await asyncio.get_running_loop().run_in_executor(self._opener, asked):
                self._metrics.switched("refused")
                raise BundleError(
                    f"{self._previous.predictor.bundle.origin}: it cannot score now: {trouble}. "
                    f"Version {self.current.version} goes on answering"
                )
            left, self._current, self._previous = self._current, self._previous, None
            self._metrics.switched("rolled_back")
            self._let_go(left)
            self._end_misfits()
            return self.current

    def _end_misfits(self) -> None:
        """After a switch: no canary and no shadow that could not be had beside the version that answers now."""
        if (canary := self._canary) is not None and (why := self._misfit(canary.version)):
            self._canary = None
            self._let_go(canary.version)
            tell(f"no canary any more: {why}")
        if (shadow := self._shadow) is not None and (why := self._misfit(shadow)):
            self._shadow = None
            self._let_go(shadow)
            tell(f"no shadow any more: {why}")

    def _misfit(self, version: _Version) -> str:
        if version.predictor.bundle.manifest.id == self.current.bundle.manifest.id:
            return f"{version.predictor.version} is the version that answers now"
        try:
            self._check_beside(version.predictor.bundle)
        except BundleError as error:
            return str(error)
        return ""

    def _let_go(self, version: _Version | None) -> None:
        """Of a version that answers no more, and its memory soon after."""
        if version is None:
            return
        version.let_go()
        if self._tidying is not None:
            self._tidying.cancel()
        tidy = functools.partial(self._opener.submit, give_back_freed_memory)
        self._tidying = asyncio.get_running_loop().call_later(TIDY_SECONDS, tidy)

    async def _opened(self, path: str) -> Predictor:
        return await asyncio.get_running_loop().run_in_executor(self._opener, open_predictor, self._config, path)

    @asynccontextmanager
    async def _switched_alone(self) -> AsyncIterator[None]:
        """One switch at a time. Opening a bundle takes as long as its disk does, so others wait for a bounded time."""
        try:
            async with asyncio.timeout(SWITCH_SECONDS):
                await self._switching.acquire()
        except TimeoutError:
            raise SourceError(
                f"another bundle has been opened for {SWITCH_SECONDS:g} seconds and still is; try again later"
            ) from None
        try:
            yield
        finally:
            self._switching.release()

    def _check_follows(self, bundle: Bundle, other_schema: bool) -> None:
        difference = self._difference(bundle)
        if difference and not other_schema:
            raise BundleError(f'{difference}. {{"other_schema": true}} switches all the same')

    def _check_beside(self, bundle: Bundle) -> None:
        if bundle.manifest.id == self.current.bundle.manifest.id:
            raise BundleError(f"{bundle.origin}: it is the one that serves: there is nothing to compare")
        if difference := self._difference(bundle):
            raise BundleError(difference)

    def _difference(self, bundle: Bundle) -> str:
        """Why requests to the version that answers are not for this one, in words."""
        current = self.current.bundle
        if bundle.name == current.name and bundle.manifest.id != current.manifest.id:
            raise BundleError(
                f"{bundle.origin}: this is another model, but it has the name {bundle.name!r} of the one that serves: "
                "answers could not be told apart; export it with another --name"
            )
        difference = (
            schema_difference(current.schema, bundle.schema)
            or inputs_difference(current, bundle)
            or labels_difference(current.labels, bundle.labels)
        )
        if not difference:
            return ""
        return (
            f"{bundle.origin}: its schema differs from the one that serves: {difference}; requests would be refused, "
            "or their values read differently"
        )


def open_predictor(config: ServeConfig, path: str) -> Predictor:
    """Open and check a bundle, and let it score a sample: what fails here would fail for every request."""
    bundle = Bundle.open(path, full=config.check == "full", rows=needs_files(config.sparse, config.fallback))
    require(bundle.manifest.lineage.metrics, config.require, bundle.origin)
    source = source_opener(config.sparse, config.fallback)(bundle)
    try:
        predictor = Predictor(
            bundle,
            source=source,
            max_rows=config.max_rows,
            allow_missing=config.allow_missing,
            allow_extra=config.allow_extra,
        )
    except BaseException:
        source.close()
        raise
    if trouble := predictor.trouble():
        predictor.close()
        raise BundleError(f"{bundle.origin}: it cannot score: {trouble}")
    return predictor


def inputs_difference(old: Bundle, new: Bundle) -> str:
    """What of a request the new bundle would read otherwise, in words."""
    if old.inputs is None or new.inputs is None:
        return ""
    return "; ".join(old.inputs.differences(new.inputs, ("now", "then")))


def labels_difference(old: tuple[str, ...], new: tuple[str, ...]) -> str:
    """What of an answer would mean something else, in words: bundles of one schema may have outputs of their own."""
    lost = [label for label in old if label not in new]
    if lost:
        return f"its answers have no scores for {', '.join(lost)}; there are {', '.join(new)}"
    return "" if old[0] == new[0] else f"plain scores are of {old[0]}, now of {new[0]}"


def schema_difference(old: Schema, new: Schema) -> str:
    """What differs, in words; empty if nothing does."""
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
            elif slot.name == other.name and slot.made_by() != other.made_by():
                found.append(f"slot {slot.name}: {slot.made_by()}, now {other.made_by()}")
    for feature in old.dense:
        for twin in new.dense:
            if feature.name == twin.name and feature != twin:
                found.append(
                    f"normalisation of {feature.name}: (x - {feature.minimum:g}) / {feature.diff:g}, now "
                    f"(x - {twin.minimum:g}) / {twin.diff:g}"
                )
    for field in ("sparse_feature_dim", "hash_seed", "labels"):
        if getattr(old, field) != getattr(new, field):
            found.append(f"{field}: {getattr(old, field)}, now {getattr(new, field)}")
    return "; ".join(found)
