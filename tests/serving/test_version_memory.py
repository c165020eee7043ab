"""What a server that switches versions all day keeps of those that it has left: nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import weakref
from pathlib import Path

import pytest
from bundle_fixtures import Trained
from http_server import Served, serving
from redis_server import RedisServer

from sparsefleet.export import Bundle
from sparsefleet.serving.answers import Answer
from sparsefleet.serving.batcher import MicroBatcher
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.direct import DirectRequests
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.redis import RedisAddress, publish
from sparsefleet.serving.versions import Versions, open_predictor


@pytest.mark.parametrize("rows", ["mmap", "redis that fails"])
def test_a_version_that_is_left_is_freed_at_once(trained: Trained, store: RedisServer, rows: str) -> None:
    """By its last reference, not by the garbage collector, which may look for it only after hours."""
    paths = [str(path) for path in trained.bundles]
    config = ServeConfig(bundle=paths[0])
    if rows != "mmap":
        config = ServeConfig(bundle=paths[0], sparse=f"{store.url}?cache_mb=0&timeout=1", fallback="file")

    def use(versions: Versions) -> weakref.ref[Predictor]:
        with versions.hold() as predictor:
            predictor.score(predictor.parser.samples(trained.rows[:20]))
            return weakref.ref(predictor)

    def use_without_redis(versions: Versions) -> None:
        with versions.hold() as predictor:
            predictor.score(predictor.parser.samples(trained.rows[:20]))  # from its own file
            told = predictor.source.stats()
        assert told["fallback_fetches"]
        assert not told["reachable"]

    async def switch() -> list[bool]:
        publish(Bundle.open(paths[0]), RedisAddress.parse(store.url))
        versions, seen = Versions(config, Metrics(), open_predictor(config, paths[0])), []
        for path in (*paths[1:], *paths[:2]):
            seen.append(use(versions))
            if rows != "mmap":
                store.kill()
                use_without_redis(versions)
                store.start()
            publish(Bundle.open(path), RedisAddress.parse(store.url))
            await versions.load(path)
        open_still = [one() is not None for one in seen]
        versions.close()
        return open_still

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(switch()) == [False, False, False, True]  # the last one is kept for a roll-back
    finally:
        gc.enable()


def test_a_request_is_freed_with_its_answer_or_its_client(trained: Trained) -> None:
    """Bodies are large: what the garbage collector leaves for later soon adds up."""
    body = json.dumps({"rows": trained.rows[:5]}).encode()
    config = ServeConfig(bundle=str(trained.bundles[0]))

    class Client:
        def __init__(self) -> None:
            self.status = asyncio.get_running_loop().create_future()

        def answer(self, answer: Answer) -> None:
            self.status.set_result(answer[0])

    async def serve() -> None:
        metrics = Metrics()
        versions = Versions(config, metrics, open_predictor(config, config.bundle))
        batcher = MicroBatcher(1, 400, 1000, metrics)
        direct = DirectRequests(versions, batcher, metrics)
        try:
            client = Client()
            gone, status = weakref.ref(client), client.status
            direct.ask(body, 5, 60.0, client.answer)
            del client
            assert await asyncio.wait_for(status, 60) == 200
            async with asyncio.timeout(60):
                while gone() is not None:  # the scoring thread is about to leave the function that answered
                    await asyncio.sleep(0.001)
            # The thread is busy with something else, and a client leaves.
            free = threading.Event()
            batcher.submit(lambda items: assert_set(free), None, 1, time.monotonic() + 60)
            client = Client()
            gone, request = weakref.ref(client), direct.ask(body, 5, 60.0, client.answer)
            del client
            direct.abandon(request)
            del request
            assert gone() is None
            free.set()
        finally:
            batcher.close()
            versions.close()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(serve())
    finally:
        gc.enable()


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


def own_memory(server: Served) -> int:
    """Bytes that the process has allocated, and its stacks; not the pages of files that it maps."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10


@pytest.mark.slow
def test_memory_holds_through_many_switches(trained: Trained, tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell what memory a process has of its own")
    with serving(trained.bundles[0]) as server:

        def switch(times: int) -> int:
            for turn in range(times):
                path = trained.bundles[(turn + 1) % 3]
                assert server.post("/v1/reload", {"bundle": str(path)}).status_code == 200
                assert server.post("/v1/predict", {"rows": trained.rows[:50]}).status_code == 200
            return own_memory(server)

        before = switch(30)
        # A version costs more than 200 KB here: kept, 60 of them would be more than 12 MB.
        after = switch(60)
        assert after < 1.05 * before + (2 << 20), f"{before / 1e6:.1f} MB after 30 switches, {after / 1e6:.1f} after 90"
