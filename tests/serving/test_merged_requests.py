"""Requests whose rows come from Redis and that wait at the same time are merged: one exchange, each scored as alone."""

import asyncio
import contextlib
import json
import signal
import threading
import time

import numpy as np
import pytest
from bundle_fixtures import NAMES

from sparsefleet.export import Bundle
from sparsefleet.kernels import levels
from sparsefleet.serving import Predictor
from sparsefleet.serving.batcher import MERGED_REQUESTS, MERGED_SAMPLES, MicroBatcher
from sparsefleet.serving.config import ServeConfig
from sparsefleet.serving.direct import DirectRequests
from sparsefleet.serving.metrics import Metrics
from sparsefleet.serving.redis import RedisAddress, RedisSource, publish
from sparsefleet.serving.source import SourceError
from sparsefleet.serving.versions import Versions, open_predictor

WIDE = pytest.mark.skipif(
    not levels.chosen.level.startswith(("avx512", "amx")), reason="other processors leave the network to ONNX Runtime"
)
SAMPLES = MERGED_SAMPLES


@pytest.fixture
def bundle(trained, store):
    publish(Bundle.open(trained.bundles[0]), RedisAddress.parse(store.url))
    return trained.bundles[0]


@pytest.fixture
def over_redis(bundle, store):
    """Makes predictors over Redis whose requests are not due to be counted."""
    opened = []

    def make(**options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        source = RedisSource(Bundle.open(bundle), RedisAddress.parse(f"{store.url}?{query}"))
        opened.append(Predictor(Bundle.open(bundle), source=source))
        return opened[-1]

    yield make
    for predictor in opened:
        predictor.close()


def whole(rows):
    return json.dumps({"rows": rows}).encode()


def with_context(rows):
    shared = NAMES[:20]
    candidates = [{name: row[name] for name in NAMES if name not in shared} for row in rows]
    return json.dumps({"context": {name: rows[0][name] for name in shared}, "candidates": candidates}).encode()


def merged(predictor, bodies, most=300):
    predictor._uncounted = 0  # one call in so many is counted: its first body goes the long way
    return predictor.score_bodies(bodies, [most] * len(bodies))


def strange(rows):
    """With values that no training has met."""
    return [{name: "new" if name.startswith("C") else value for name, value in row.items()} for row in rows]


@WIDE
@pytest.mark.parametrize("cache_mb", [0, 0.02, 10])
def test_each_is_scored_as_alone_and_all_in_one_exchange(trained, over_redis, cache_mb):
    predictor, mapped = over_redis(cache_mb=cache_mb), Predictor(trained.bundles[0])
    rows = trained.rows
    bodies = [
        whole(rows[:40]),
        with_context(rows[30:90]),
        b'{"rows": [{"I1": "no number"}]}',
        whole(strange(rows[90:95])),
        whole(rows[200:201]),
        b'{"rows": [',
        whole(rows[:40]),
    ]
    alone = [merged(mapped, [body])[0] for body in bodies]
    before = predictor.source.stats()["round_trips"]
    found = merged(predictor, bodies)
    assert predictor.source.stats()["round_trips"] == before + 1
    assert [one is None for one in found] == [one is None for one in alone] == [at in (2, 5) for at in range(7)]
    for one, want in zip(found, alone, strict=True):
        if one is not None:
            assert one.probabilities.tobytes() == want.probabilities.tobytes()
    # Keys of all of them are told of the first; what several ask for is asked for once.
    batches = [predictor.parser.body(body).keys for body, one in zip(bodies, alone, strict=True) if one is not None]
    assert found[0].keys == len(np.unique(np.concatenate(batches)))
    assert found[0].unknown > 0
    assert [one.keys for one in found[1:] if one is not None] == [0] * 4
    assert merged(predictor, bodies, most=40)[1] is None  # it has more samples than it may have
    assert merged(predictor, [b"", b"{"]) == [None, None]


@WIDE
def test_of_those_due_to_be_counted_one_goes_the_long_way(trained, over_redis):
    predictor = over_redis(cache_mb=0)
    bodies = [whole(trained.rows[at : at + 10]) for at in (0, 10, 20)]
    found = predictor.score_bodies(bodies, [10] * 3)
    assert [one is None for one in found] == [True, False, False]
    assert predictor.score_bodies(bodies[:1], [10]) == [None]
    assert predictor.score(predictor.parser.body(bodies[0])).by_slot is not None
    assert None not in predictor.score_bodies(bodies, [10] * 3)


@WIDE
def test_redis_that_ends_within_an_exchange_scores_none_of_them(trained, store, over_redis):
    predictor = over_redis(cache_mb=0, timeout=20)
    bodies = [whole(trained.rows[at : at + 50]) for at in (0, 50, 100)]
    assert None not in merged(predictor, bodies)
    store.signal(signal.SIGSTOP)
    ending = threading.Timer(0.3, store.kill)
    ending.start()
    started = time.monotonic()
    assert merged(predictor, bodies) == [None] * 3  # the commands were sent, and then the connection broke
    ending.join()
    assert time.monotonic() - started < 10
    with pytest.raises(SourceError, match="cannot reach Redis"):
        predictor.score(predictor.parser.body(bodies[0]))


@WIDE
def test_hot_rows_are_read_together_and_do_without(trained, store, over_redis):
    """Whatever becomes of them in Redis, the buckets hold every row."""
    mapped, body = Predictor(trained.bundles[0]), whole(trained.rows[:200])
    want = merged(mapped, [body])[0].probabilities.tobytes()
    (name,) = store.client().keys("sparsefleet:*:hot")
    fields = store.client().hgetall(name)
    commands = store.client().info("commandstats")["cmdstat_hmget"]["calls"] if merged(over_redis(), [body]) else 0
    first = over_redis(cache_mb=0)
    assert merged(first, [body])[0].probabilities.tobytes() == want
    assert store.client().info("commandstats")["cmdstat_hmget"]["calls"] >= commands + 2  # hot rows, and buckets
    for put in (
        lambda: store.client().delete(name),
        lambda: store.client().hset(name, mapping=dict.fromkeys(fields, b"?")),
        lambda: store.client().set(name, "x"),
    ):
        predictor = over_redis(cache_mb=0)
        assert merged(predictor, [body])[0].probabilities.tobytes() == want
        put()
        assert merged(predictor, [body]) == [None]  # the long way tells why, where there is something to tell
        assert predictor.score(predictor.parser.body(body)).probabilities.tobytes() == want
        assert merged(predictor, [body])[0].probabilities.tobytes() == want
        assert predictor.source.stats()["errors"] == 0
        store.client().delete(name)
        store.client().hset(name, mapping=fields)


# -- who is merged -----------------------------------------------------------------------------------------------------


def test_what_a_thread_takes_together():
    async def run():
        batcher, taken, free, held = MicroBatcher(1, 400, 10_000, Metrics()), [], threading.Event(), threading.Event()

        def hold(items):
            held.set()
            free.wait(30)

        def work(items):
            taken.append(items)

        try:
            deadline = time.monotonic() + 60
            batcher.submit(hold, 0, 1, deadline)
            assert await asyncio.to_thread(held.wait, 30)
            many = [(f"bulk {n}", 100, True) for n in range(MERGED_REQUESTS + 1)]
            small = [("one", 1, True), ("two", 1, True)]
            for name, samples, merges in (*many, *small, ("apart", 100, False), ("last", 100, True)):
                batcher.submit(work, name, samples, deadline, merges)
            free.set()
            while sum(map(len, taken)) < MERGED_REQUESTS + 5:
                await asyncio.sleep(0.005)
        finally:
            free.set()
            batcher.close()
        return taken

    first = [f"bulk {n}" for n in range(MERGED_REQUESTS)]
    # Small ones are taken with one larger one at most, as ever: they would wait for all of a group.
    rest = [[f"bulk {MERGED_REQUESTS}", "one", "two"], ["apart"], ["last"]]
    assert asyncio.run(run()) == [first, *rest]


class Asked:
    """What became of requests that a thread took together."""

    def __init__(self, count):
        self.answers = [None] * count
        self.left = asyncio.Event()

    def at(self, place):
        def answer(answer):
            self.answers[place] = answer
            self.left.set()

        return answer

    async def all_of(self, places):
        async with asyncio.timeout(60):
            while any(self.answers[place] is None for place in places):
                self.left.clear()
                await self.left.wait()


@contextlib.contextmanager
def held_thread(batcher):
    """The one thread is busy meanwhile, so that requests wait together."""
    busy, free = threading.Event(), threading.Event()
    batcher.submit(lambda items: (busy.set(), free.wait(30)), None, 1, time.monotonic() + 60)
    assert busy.wait(30)
    try:
        yield
    finally:
        free.set()


def ask_together(url, bundle, bodies, meanwhile=None, seconds=None):
    """Answers to requests that wait for one thread; `meanwhile(direct, requests, versions)` before it takes them."""

    async def run():
        config, metrics = ServeConfig(bundle=str(bundle), sparse=url), Metrics()
        versions = Versions(config, metrics, open_predictor(config, config.bundle))
        batcher = MicroBatcher(1, 400, 10_000, metrics)
        direct = DirectRequests(versions, batcher, metrics)
        try:
            versions.current.source._fetched = 1000.0  # requests lack many rows
            versions.current._uncounted = 0
            asked = Asked(len(bodies))
            with held_thread(batcher):
                requests = [
                    direct.ask(body, 100, (seconds or {}).get(at, 30.0), asked.at(at)) for at, body in enumerate(bodies)
                ]
                skipped = (await meanwhile(direct, requests, versions) if meanwhile else None) or ()
            await asked.all_of(set(range(len(bodies))) - set(skipped))
            return asked.answers, versions.current.source.stats()
        finally:
            batcher.close()
            versions.close()

    return asyncio.run(run())


def scores_of(answer):
    assert answer[0] == 200, answer
    return np.array(json.loads(answer[1])["scores"], np.float32).tobytes()


@WIDE
def test_a_bad_body_is_told_so_and_touches_no_other(trained, store, bundle):
    rows = trained.rows
    good = [rows[:40], rows[40:80]]
    want = [Predictor(bundle).predict(one).tobytes() for one in good]
    for bodies, bad in (
        ([whole(good[0]), b'{"rows": [{"I1": "no number"}]}'], 1),
        ([b"\x00", whole(good[1])], 0),
    ):
        answers, stats = ask_together(f"{store.url}?cache_mb=0", bundle, bodies)
        assert answers[bad][0] == 400
        assert scores_of(answers[1 - bad]) == want[1 - bad]
        assert stats["errors"] == 0


@WIDE
def test_one_that_is_late_and_one_whose_client_left(trained, store, bundle):
    rows = [trained.rows[at : at + 40] for at in (0, 40, 80, 120)]
    want = [Predictor(bundle).predict(one).tobytes() for one in rows]

    async def meanwhile(direct, requests, versions):
        direct.abandon(requests[2])
        await asyncio.sleep(0.05)
        return (2,)

    answers, _ = ask_together(
        f"{store.url}?cache_mb=0", bundle, [whole(one) for one in rows], meanwhile, seconds={1: 0.001}
    )
    assert answers[1][0] == 503
    assert b"time was up" in answers[1][1]
    assert answers[2] is None
    assert [scores_of(answers[at]) for at in (0, 3)] == [want[0], want[3]]


@WIDE
def test_a_switch_meanwhile_is_of_all_that_wait(trained, store, bundle):
    publish(Bundle.open(trained.bundles[1]), RedisAddress.parse(store.url))
    rows = [trained.rows[at : at + 40] for at in (0, 40)]
    want = [Predictor(trained.bundles[1]).predict(one).tobytes() for one in rows]

    async def meanwhile(direct, requests, versions):
        await versions.load(str(trained.bundles[1]))

    answers, _ = ask_together(f"{store.url}?cache_mb=0", bundle, [whole(one) for one in rows], meanwhile)
    assert [scores_of(answer) for answer in answers] == want
    assert {json.loads(answer[1])["version"] for answer in answers} == {"v2"}


@WIDE
@pytest.mark.parametrize("fallback", [False, True])
def test_redis_that_hangs_fails_all_of_them_or_none(trained, store, bundle, fallback):
    rows = [trained.rows[at : at + 40] for at in (0, 40)]
    want = [Predictor(bundle).predict(one).tobytes() for one in rows]

    async def meanwhile(direct, requests, versions):
        store.signal(signal.SIGSTOP)

    url, bodies = f"{store.url}?cache_mb=0&timeout=0.3", [whole(one) for one in rows]
    try:
        if fallback:
            answers = ask_with_fallback(url, bundle, bodies, meanwhile)
            assert [scores_of(answer) for answer in answers] == want
        else:
            answers, _ = ask_together(url, bundle, bodies, meanwhile)
            assert [answer[0] for answer in answers] == [503, 503]
            assert all(b"did not answer in time" in answer[1] for answer in answers)
    finally:
        store.signal(signal.SIGCONT)


def ask_with_fallback(url, bundle, bodies, meanwhile):
    async def run():
        config, metrics = ServeConfig(bundle=str(bundle), sparse=url, fallback="file"), Metrics()
        versions = Versions(config, metrics, open_predictor(config, config.bundle))
        batcher = MicroBatcher(1, 400, 10_000, metrics)
        direct = DirectRequests(versions, batcher, metrics)
        try:
            versions.current.source._first._fetched = 1000.0
            versions.current._uncounted = 0
            asked = Asked(len(bodies))
            with held_thread(batcher):
                requests = [direct.ask(body, 100, 30.0, asked.at(at)) for at, body in enumerate(bodies)]
                await meanwhile(direct, requests, versions)
            await asked.all_of(range(len(bodies)))
            return asked.answers
        finally:
            batcher.close()
            versions.close()

    return asyncio.run(run())
