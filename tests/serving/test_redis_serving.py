"""A server whose rows come from Redis: Redis dies, hangs, comes back, comes back empty; versions switch together."""

import functools
import itertools
import json
import re
import signal
import time

import numpy as np
import pytest
from bundle_edits import with_schema
from http_server import serving
from waiting import wait_until

from sparsefleet.export import Bundle
from sparsefleet.kernels import levels
from sparsefleet.serving import Predictor
from sparsefleet.serving.fallback import FallbackSource
from sparsefleet.serving.redis import RedisAddress, RedisSource, publish
from sparsefleet.serving.redis.record import tag
from sparsefleet.serving.source import SourceError, SparseSource

WIDE = pytest.mark.skipif(
    not levels.chosen.level.startswith(("avx512", "amx")), reason="other processors leave the network to ONNX Runtime"
)


def published(store, *bundles):
    for path in bundles:
        publish(Bundle.open(path), RedisAddress.parse(store.url))


def scores_of(answer):
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["scores"], np.float32)


def from_file(bundle, rows):
    return Predictor(bundle).predict(rows)


def timed(call):
    started = time.monotonic()
    return call(), time.monotonic() - started


def test_answers_are_those_of_the_mapped_file(trained, store):
    published(store, trained.bundles[0])
    with serving(trained.bundles[0], "--sparse", store.url) as server:
        got = scores_of(server.post("/v1/predict", {"rows": trained.rows}))
        assert got.tobytes() == from_file(trained.bundles[0], trained.rows).tobytes()
        sparse = server.client.get("/v1/model").json()["sparse"]
        assert (sparse["kind"], sparse["errors"], sparse["reachable"]) == ("redis", 0, True)
        text = server.client.get("/metrics").text
        trips = float(re.search(r"^sparsefleet_source_round_trips (\S+)$", text, re.M)[1])
        assert 2 <= trips <= 4  # one of the warm-up, and one a piece of the request
        assert server.terminate() == 0


def test_redis_killed_and_back(trained, store):
    bundle, known, other = trained.bundles[0], trained.rows[:20], trained.rows[100:200]
    published(store, bundle)
    with serving(bundle, "--sparse", store.url) as server:
        want = scores_of(server.post("/v1/predict", {"rows": known}))
        store.kill()
        # From the cache, where all rows are in it; else a reason, without a wait.
        assert scores_of(server.post("/v1/predict", {"rows": known})).tobytes() == want.tobytes()
        for _ in range(5):
            answer, seconds = timed(lambda: server.post("/v1/predict", {"rows": other}))
            assert answer.status_code == 503
            assert "cannot reach Redis" in answer.json()["error"]
            assert answer.headers["retry-after"] == "1"
            assert seconds < 2
        assert server.client.get("/healthz").status_code == 200
        # Back, but empty: what is not there is no unknown value.
        store.start()
        wait_until(lambda: "no longer in Redis" in server.post("/v1/predict", {"rows": other}).text, 20, "an error")
        assert scores_of(server.post("/v1/predict", {"rows": known})).tobytes() == want.tobytes()
        published(store, bundle)
        got = scores_of(server.post("/v1/predict", {"rows": other}))
        assert got.tobytes() == from_file(bundle, other).tobytes()
        assert server.client.get("/v1/model").json()["sparse"]["reachable"]


def test_redis_restarted_between_requests_is_not_noticed(trained, store):
    """The idle connection is dead, and nobody need know: rows are asked for again on a new one."""
    published(store, trained.bundles[0])
    with serving(trained.bundles[0], "--sparse", f"{store.url}?cache_mb=0") as server:
        server.post("/v1/predict", {"rows": trained.rows[:5]})
        store.restart()
        published(store, trained.bundles[0])
        assert server.post("/v1/predict", {"rows": trained.rows[:5]}).status_code == 200
        assert server.client.get("/v1/model").json()["sparse"]["errors"] == 0


def test_redis_that_hangs_costs_one_time_out(trained, store):
    published(store, trained.bundles[0])
    with serving(trained.bundles[0], "--sparse", f"{store.url}?timeout=0.3") as server:
        known = trained.rows[:20]
        scores_of(server.post("/v1/predict", {"rows": known}))
        store.signal(signal.SIGSTOP)
        try:
            answer, seconds = timed(lambda: server.post("/v1/predict", {"rows": trained.rows[100:200]}))
            assert answer.status_code == 503
            assert "did not answer in time" in answer.json()["error"]
            assert seconds < 3
            assert server.post("/v1/predict", {"rows": known}).status_code == 200
        finally:
            store.signal(signal.SIGCONT)
        wait_until(
            lambda: server.post("/v1/predict", {"rows": trained.rows[100:200]}).status_code == 200, 20, "an answer"
        )


def test_a_version_is_taken_over_once_it_is_published(trained, store):
    v1, v2, v3 = trained.bundles
    published(store, v1)
    rows = trained.rows[:30]
    with serving(v1, "--sparse", store.url) as server:
        refused = server.post("/v1/reload", {"bundle": str(v2)})
        assert refused.status_code == 409
        assert "version v2 cannot be read" in refused.json()["error"]
        assert "sparsefleet publish" in refused.json()["error"]
        assert server.post("/v1/predict", {"rows": rows}).json()["version"] == "v1"
        published(store, v2)
        assert server.post("/v1/reload", {"bundle": str(v2)}).status_code == 200
        answer = server.post("/v1/predict", {"rows": rows})
        assert answer.json()["version"] == "v2"
        assert scores_of(answer).tobytes() == from_file(v2, rows).tobytes()
        server.post("/v1/rollback", {})
        answer = server.post("/v1/predict", {"rows": rows})
        assert answer.json()["version"] == "v1"
        assert scores_of(answer).tobytes() == from_file(v1, rows).tobytes()
        # A version that Redis no longer has is not taken, and Redis away is no reason to fall over.
        published(store, v3)
        assert server.post("/v1/reload", {"bundle": str(v1)}).status_code == 409
        store.kill()
        away = server.post("/v1/reload", {"bundle": str(v3)})
        assert away.status_code == 503
        assert "cannot reach Redis" in away.json()["error"]


def test_nobody_rolls_back_to_a_version_whose_rows_are_gone(trained, store):
    """Later publishes removed them: the version that answers stays, and the way back is open once they are back."""
    v1, v2, v3 = trained.bundles
    published(store, v1, v2)
    rows = trained.rows[:200]  # nobody has asked for most of them: they are in no cache
    with serving(v1, "--sparse", store.url) as server:
        assert server.post("/v1/reload", {"bundle": str(v2)}).status_code == 200
        published(store, v3)
        refused = server.post("/v1/rollback", {})
        assert refused.status_code == 409, refused.text
        assert re.search(r"v1.*cannot score now: .*no longer in Redis.*v2 goes on answering", refused.json()["error"])
        answer = server.post("/v1/predict", {"rows": rows})
        assert scores_of(answer).tobytes() == from_file(v2, rows).tobytes()
        assert answer.json()["version"] == "v2"
        assert 'sparsefleet_switches_total{outcome="refused"} 1\n' in server.client.get("/metrics").text
        published(store, v1)
        assert server.post("/v1/rollback", {}).json() == {"version": "v1", "previous": None}
        assert scores_of(server.post("/v1/predict", {"rows": rows})).tobytes() == from_file(v1, rows).tobytes()


def test_a_followed_pointer_waits_for_the_publish(trained, store, tmp_path):
    for path in trained.bundles[:2]:
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "current").write_text("v1")
    published(store, trained.bundles[0])
    with serving(tmp_path, "--sparse", store.url, "--watch-seconds", "0.1") as server:
        (tmp_path / "current").write_text("v2")
        time.sleep(0.6)  # several looks at the pointer
        assert server.client.get("/healthz").json()["version"] == "v1"
        published(store, trained.bundles[1])
        wait_until(lambda: server.client.get("/healthz").json()["version"] == "v2", 20, "version v2")


def test_a_server_does_not_start_without_its_rows(trained, store):
    with (
        pytest.raises(AssertionError, match=r"(?s)ended with 1.*is not published there"),
        serving(trained.bundles[0], "--sparse", store.url),
    ):
        pass
    store.kill()
    with (
        pytest.raises(AssertionError, match=r"(?s)ended with 1.*cannot reach Redis"),
        serving(trained.bundles[0], "--sparse", store.url),
    ):
        pass


def test_something_else_in_a_bucket_is_503_and_no_score(trained, store):
    published(store, trained.bundles[0])
    bundle = Bundle.open(trained.bundles[0])
    with serving(trained.bundles[0], "--sparse", store.url) as server:
        client = store.client()
        (table,) = client.keys(f"sparsefleet:{tag(bundle.manifest.id)}:0")
        for field, value in client.hgetall(table).items():
            client.hset(table, field, value + b"!")
        answer = server.post("/v1/predict", {"rows": trained.rows[:5]})
        assert answer.status_code == 503
        assert "no bucket of rows" in answer.json()["error"]


# -- from bytes to probabilities in one native call ------------------------------------------------------------------


@pytest.fixture
def one_call(trained, store):
    """A predictor over Redis whose requests are not due to be counted, and its source."""
    published(store, trained.bundles[0])
    opened = []

    def make(fallback=False, **options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        bundle = Bundle.open(trained.bundles[0])
        first = functools.partial(RedisSource, address=RedisAddress.parse(f"{store.url}?{query}"))
        predictor = Predictor(bundle, source=FallbackSource(bundle, first) if fallback else first(bundle))
        opened.append(predictor)
        predictor.predict(trained.rows[:1])  # the first batch is counted
        return predictor

    yield make
    for predictor in opened:
        predictor.close()


def in_one_call(predictor, body):
    predictor._uncounted = 0  # one batch in so many goes the long way
    return predictor.score_bodies([body], [10])[0]


def body_of(rows):
    return json.dumps({"rows": rows}).encode()


@WIDE
@pytest.mark.parametrize("cache_mb", [0, 0.01, 10])
def test_a_body_is_scored_in_one_call_as_over_mapped_files(trained, one_call, cache_mb):
    predictor, mapped = one_call(cache_mb=cache_mb), Predictor(trained.bundles[0])
    mapped.predict(trained.rows[:1])
    for start in range(0, 100, 10):
        body = body_of(trained.rows[start : start + 10])
        before = predictor.source.stats()
        (got,), (want,) = (one.score_bodies([body], [10]) for one in (predictor, mapped))
        assert got is not None
        assert got.probabilities.tobytes() == want.probabilities.tobytes()
        assert (got.keys, got.unknown) == (want.keys, want.unknown)
        after = predictor.source.stats()
        asked = sum(after[name] - before[name] for name in ("cache_hits", "cache_misses"))
        assert asked == got.keys
        assert after["round_trips"] - before["round_trips"] == (after["cache_misses"] > before["cache_misses"])
    assert cache_mb or after["cache_hits"] == 0
    assert predictor.score_bodies([b'{"rows": ['], [10]) == [None]
    assert predictor.source.stats()["errors"] == 0


@WIDE
def test_what_fails_in_one_call_is_told_by_the_long_way(trained, store, one_call):
    predictor, body = one_call(cache_mb=0, timeout=0.3), body_of(trained.rows[:10])
    want = in_one_call(predictor, body).probabilities.tobytes()

    store.client().client_kill_filter(_type="normal", skipme=True)  # a connection that Redis has closed
    assert in_one_call(predictor, body) is None
    assert predictor.predict(trained.rows[:10]).tobytes() == want
    assert in_one_call(predictor, body).probabilities.tobytes() == want
    assert predictor.source.stats()["errors"] == 0

    store.signal(signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(SourceError, match="did not answer in time"):
            in_one_call(predictor, body)
        assert 0.2 < time.monotonic() - started < 3
        assert in_one_call(predictor, body) is None  # at once: the long way says that Redis is away
    finally:
        store.signal(signal.SIGCONT)
    wait_until(lambda: scored(predictor, trained.rows[:10]) == want, 20, "an answer")
    assert in_one_call(predictor, body).probabilities.tobytes() == want

    (table,) = store.client().keys("sparsefleet:*:0")
    fields = store.client().hgetall(table)
    for put, message in (
        (lambda: store.client().hset(table, mapping=dict.fromkeys(fields, b"?")), "no bucket of rows"),
        (lambda: store.client().delete(table), "no longer in Redis"),
        (lambda: store.client().set(table, "x"), "something else under the names"),
    ):
        put()
        assert in_one_call(predictor, body) is None
        with pytest.raises(SourceError, match=message):
            predictor.predict(trained.rows[:10])
    store.client().delete(table)
    store.client().hset(table, mapping=fields)
    assert predictor.predict(trained.rows[:10]).tobytes() == want
    assert in_one_call(predictor, body).probabilities.tobytes() == want


def scored(predictor, rows):
    try:
        return predictor.predict(rows).tobytes()
    except SourceError:
        return None


@WIDE
def test_one_call_with_a_file_to_fall_back_on(trained, store, one_call):
    predictor, body = one_call(fallback=True, cache_mb=0, timeout=0.3), body_of(trained.rows[:10])
    want = in_one_call(predictor, body).probabilities.tobytes()
    assert predictor.source.stats()["fallback_fetches"] == 0
    store.signal(signal.SIGSTOP)
    try:
        assert in_one_call(predictor, body) is None
        assert predictor.source.stats()["fallback"]
        assert predictor.predict(trained.rows[:10]).tobytes() == want
    finally:
        store.signal(signal.SIGCONT)
    wait_until(lambda: scored(predictor, trained.rows[:10]) and not predictor.source.stats()["fallback"], 20, "Redis")
    assert in_one_call(predictor, body).probabilities.tobytes() == want


@WIDE
def test_one_call_once_redis_is_there(trained, store, one_call):
    store.kill()
    predictor, body = one_call(fallback=True, cache_mb=0), body_of(trained.rows[:10])
    want = predictor.predict(trained.rows[:10]).tobytes()
    assert in_one_call(predictor, body) is None
    store.start()
    published(store, trained.bundles[0])

    def back():
        predictor.source.look()
        return scored(predictor, trained.rows[:1]) and not predictor.source.stats()["fallback"]

    wait_until(back, 20, "Redis")
    assert in_one_call(predictor, body).probabilities.tobytes() == want


def test_the_command_line(trained, store, cli, tmp_path):
    first = cli("publish", trained.bundles[0], store.url, "--prefix", "ctr", "--json")
    assert (first.exit_code, '"version": "v1"' in first.output) == (0, True)
    assert cli("publish", trained.bundles[1], store.url, "--prefix", "ctr").exit_code == 0
    back = cli("publish", store.url, "--prefix", "ctr", "--rollback", "--json")
    assert (back.exit_code, '"version": "v1"' in back.output) == (0, True)
    for words, message in (
        ((trained.bundles[0],), "a bundle and where it goes"),
        ((trained.bundles[0], store.url, "--rollback"), "goes with the address alone"),
        ((tmp_path, store.url), "no bundle at"),
        ((trained.bundles[0], "redis://127.0.0.1:1/0"), "cannot reach Redis"),
        ((trained.bundles[0], store.url, "--prefix", "a:b"), "must be 1 to 40"),
    ):
        refused = cli("publish", *words)
        assert refused.exit_code == 1
        assert message in refused.output.replace("\n", " ")


def test_many_requests_while_redis_comes_and_goes(trained, store):
    """Every answer is right or a 503; none hangs, and the server finds Redis again each time."""
    published(store, trained.bundles[0])
    want = from_file(trained.bundles[0], trained.rows)
    starts = itertools.cycle(range(0, 290, 7))
    with serving(trained.bundles[0], "--sparse", f"{store.url}?cache_mb=0.05&timeout=1") as server:

        def ask() -> int:
            start = next(starts)
            body = {"rows": trained.rows[start : start + 10]}
            answer, seconds = timed(functools.partial(server.post, "/v1/predict", body))
            assert seconds < 5
            assert answer.status_code in (200, 503)
            if answer.status_code == 200:
                assert scores_of(answer).tobytes() == want[start : start + 10].tobytes()
            return answer.status_code

        for _ in range(2):
            assert [ask() for _ in range(15)] == [200] * 15
            store.kill()
            assert 503 in [ask() for _ in range(10)]
            store.start()
            published(store, trained.bundles[0])
            # The server leaves a lost Redis alone for a pause of at most LONGEST_PAUSE.
            wait_until(lambda: ask() == 200, 60, "an answer")
        assert [ask() for _ in range(15)] == [200] * 15
        assert server.terminate() == 0


def test_another_schema_under_the_published_version_is_refused(trained, store, tmp_path):
    published(store, trained.bundles[0])
    other = with_schema(trained.bundles[0], tmp_path / "b", lambda schema: schema.update(hash_seed=5))
    with (
        pytest.raises(AssertionError, match=r"published from another schema\.json"),
        serving(other, "--sparse", store.url),
    ):
        pass


def test_a_redis_that_comes_and_goes_is_told_of_once_a_look(trained):
    """Emptied, it fails or not with every request, by what the cache holds."""
    bundle = Bundle.open(trained.bundles[0])
    table, keys = bundle.manifest.tables[0].name, np.array([1], np.uint64)

    class Flaky(SparseSource):
        calls = 0

        def rows(self, table, keys):
            self.calls += 1
            if self.calls % 2:
                raise SourceError("no rows")
            return bundle.tables[table].lookup(keys)

    source = FallbackSource(bundle, lambda opened: Flaky())
    own, again = f"no rows; rows of version {bundle.name} come from its own file", "come from Redis again"
    for fetches, told in ((0, []), (100, [own, again]), (101, [own]), (2, []), (1, [again]), (0, [])):
        for _ in range(fetches):
            source.rows(table, keys)
        news = source.look()
        assert len(news) == len(told)
        assert all(words in line for words, line in zip(told, news, strict=True))
    assert source.stats()["fallback_fetches"] == 102
