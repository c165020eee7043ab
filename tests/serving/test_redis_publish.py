"""Rows in Redis are the bundle's, bit for bit; publishing is whole or nothing; what else lies there gets a reason."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from bundle_fixtures import SCHEMA
from redis_server import redis_server
from torch import nn

from sparsefleet.core.batch import Batch
from sparsefleet.core.errors import BundleError, ConfigError
from sparsefleet.core.schema import Schema, Slot
from sparsefleet.data import PyReader
from sparsefleet.export import Bundle, export_checkpoint, export_model
from sparsefleet.nn import SparseEmbedding
from sparsefleet.optim import Adam
from sparsefleet.serving import Predictor
from sparsefleet.serving.kernels.redis_rows import bucket_numbers
from sparsefleet.serving.redis import RedisAddress, RedisError, RedisSource, publish, roll_back
from sparsefleet.serving.redis.catalog import Catalog
from sparsefleet.serving.redis.connection import Connection
from sparsefleet.serving.redis.lock import PublishLock, PublishLockError
from sparsefleet.serving.redis.record import HASHES, HOT, STRINGS, VersionRecord, tag
from sparsefleet.serving.redis.tables import TableBuckets
from sparsefleet.serving.source import NotPublishedError, source_opener
from sparsefleet.train import Trainer

TABLE = "SparseFeatFactors"


def opened(path):
    return Bundle.open(path, full=True)


def address(store, **options):
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return RedisAddress.parse(f"{store.url}?{query}" if query else store.url)


def row_names(store, bundle):
    return store.client().keys(f"sparsefleet:{tag(bundle.manifest.id)}:*")


# -- what is read is what was exported ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.slow), "int8"])
@pytest.mark.parametrize("cache_mb", [0, 0.02, pytest.param(10, marks=pytest.mark.slow)])
def test_rows_and_scores_are_those_of_the_mapped_file(trained, store, tmp_path, dtype, cache_mb):
    export_checkpoint(trained.checkpoint(3), tmp_path / "b", rows=dtype)
    bundle = opened(tmp_path / "b")
    publish(bundle, address(store))
    source = RedisSource(bundle, address(store, cache_mb=cache_mb))
    file = bundle.tables[TABLE]
    keys = np.concatenate([file.keys(), np.arange(500, dtype=np.uint64)])  # and some that are unknown
    for asked in (keys, keys[::-1].copy(), keys[:0]):
        got, want = source.rows(TABLE, asked), file.lookup(asked)
        np.testing.assert_array_equal(got[1], want[1])
        assert got[0].tobytes() == want[0].tobytes()
    mapped, redis = Predictor(bundle), Predictor(bundle, source=source)
    assert redis.predict(trained.rows).tobytes() == mapped.predict(trained.rows).tobytes()
    redis.close()


class TwoTables(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.things = SparseEmbedding("users", 3, ["user"]), SparseEmbedding("things", 70, ["item", "word"])
        self.out = nn.Linear(143, 1)

    def forward(self, batch):
        return self.out(torch.cat([self.users(batch), self.things(batch)], 1))


def test_several_tables_take_one_round_trip(store, tmp_path):
    schema = Schema(dense=(), slots=(Slot("user"), Slot("item"), Slot("word")), sparse_feature_dim=0)

    def batch(seed):
        random = np.random.default_rng(seed)
        slots = {name: (random.integers(0, 300, 64).astype(np.uint64), np.arange(65)) for name in schema.slot_names}
        labels = (random.random(64) < 0.4).astype(np.float32)
        return Batch.from_slots(slots, dense=np.empty((64, 0), np.float32), labels=labels)

    model, trainer = TwoTables(), Trainer(Adam(0.05), threads=1)
    trainer.fit(model, PyReader(schema, lambda: (batch(seed) for seed in range(5))))
    export_model(model, trainer.store, tmp_path / "b", schema=schema, step=5)
    bundle = opened(tmp_path / "b")
    publish(bundle, address(store))
    source = RedisSource(bundle, address(store, cache_mb=0))
    before = store.client().info("commandstats")["cmdstat_hmget"]["calls"]  # of the pointer
    scores = Predictor(bundle, source=source).predict_batch(batch(99))
    assert scores.tobytes() == Predictor(bundle).predict_batch(batch(99)).tobytes()
    assert source.stats()["round_trips"] == 1
    assert store.client().info("commandstats")["cmdstat_hmget"]["calls"] - before == 2  # one per table, in one pipeline


def test_hot_rows_are_asked_for_once(trained, store):
    bundle = opened(trained.bundles[0])
    publish(bundle, address(store))
    predictor = Predictor(bundle, source=RedisSource(bundle, address(store)))
    first = predictor.predict(trained.rows[:50])
    assert predictor.predict(trained.rows[:50]).tobytes() == first.tobytes()
    stats = predictor.source.stats()
    assert (stats["round_trips"], stats["errors"]) == (1, 0)
    assert stats["cache_hits"] == stats["cache_misses"] == stats["cache_rows"] > 0


def test_threads_share_a_source(trained, store):
    bundle = opened(trained.bundles[0])
    publish(bundle, address(store))
    source = RedisSource(bundle, address(store, cache_mb=0.01))
    keys, wrong = bundle.tables[TABLE].keys(), []

    def ask(seed):
        random = np.random.default_rng(seed)
        for _ in range(50):
            asked = random.choice(keys, 300, replace=False)
            if source.rows(TABLE, asked)[0].tobytes() != bundle.tables[TABLE].lookup(asked)[0].tobytes():
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong


def test_all_rows_can_be_read_back(trained, store):
    bundle = opened(trained.bundles[0])
    publish(bundle, address(store))
    connection = Connection(address(store))
    record = Catalog(connection).record(tag(bundle.manifest.id))
    keys, rows = zip(*TableBuckets(connection, record, 0).read(), strict=True)
    file = bundle.tables[TABLE]
    assert np.concatenate(keys).tobytes() == file.keys().tobytes()
    assert np.concatenate(rows).tobytes() == file.data[file.header.layout.values :].tobytes()
    connection.close()


# -- publishing --------------------------------------------------------------------------------------------------------


def test_the_previous_version_stays_and_older_ones_go(trained, store):
    v1, v2, v3 = map(opened, trained.bundles)
    first = publish(v1, address(store))
    assert (first.version, first.previous, first.removed, first.written) == ("v1", None, (), True)
    publish(v2, address(store))
    third = publish(v3, address(store))
    assert (third.version, third.previous, third.removed) == ("v3", "v2", (tag(v1.manifest.id),))
    assert row_names(store, v2)
    assert not row_names(store, v1)
    # A version that is there already is not written again, whether it is current or the one before.
    again = publish(v3, address(store))
    assert (again.written, again.bytes, again.previous) == (False, 0, "v2")
    back = publish(v2, address(store))
    assert (back.version, back.previous, back.written) == ("v2", "v3", False)
    rolled = roll_back(address(store))
    assert (rolled.version, rolled.previous) == ("v3", "v2")
    assert store.client().hgetall("sparsefleet:pointer")[b"current"].decode() == tag(v3.manifest.id)
    # Everything there is has the prefix, and nothing else is left.
    assert {name.partition(b":")[0] for name in store.client().keys("*")} == {b"sparsefleet"}
    assert store.client().exists("sparsefleet:lock") == 0


def test_models_live_beside_each_other(trained, store):
    v1, v2 = opened(trained.bundles[0]), opened(trained.bundles[1])
    publish(v1, address(store, prefix="a"))
    publish(v2, address(store, prefix="b"))
    store.client().set("other", "thing")
    publish(v2, address(store, prefix="a"))
    publish(opened(trained.bundles[2]), address(store, prefix="a"))
    RedisSource(v2, address(store, prefix="b")).close()
    with pytest.raises(NotPublishedError, match="not published there"):
        RedisSource(v1, address(store, prefix="a"))
    assert store.client().get("other") == b"thing"


def test_roll_back_needs_something_to_go_back_to(trained, store):
    with pytest.raises(BundleError, match="no previous version"):
        roll_back(address(store))
    publish(opened(trained.bundles[0]), address(store))
    with pytest.raises(BundleError, match="no previous version"):
        roll_back(address(store))


class Interrupted(Exception):
    pass


def stop_at_once(done, total):
    raise Interrupted


def test_an_interrupted_publish_changes_nothing_and_is_cleared_by_the_next(trained, store):
    v1, v2, v3 = map(opened, trained.bundles)
    publish(v1, address(store))
    with pytest.raises(Interrupted):
        publish(v2, address(store), progress=stop_at_once)
    assert row_names(store, v2)
    assert store.client().hgetall("sparsefleet:pointer")[b"current"].decode() == tag(v1.manifest.id)
    with pytest.raises(NotPublishedError, match="not completely published"):
        RedisSource(v2, address(store))
    done = publish(v3, address(store))
    assert (done.previous, done.removed) == ("v1", (tag(v2.manifest.id),))
    assert not row_names(store, v2)


def test_an_interrupted_publish_is_ended_by_the_same_again(trained, store):
    bundle = opened(trained.bundles[0])
    with pytest.raises(Interrupted):
        publish(bundle, address(store), progress=stop_at_once)
    store.client().hdel(row_names(store, bundle)[0], b"\0\0\0\0")
    done = publish(bundle, address(store))
    assert (done.written, done.removed) == (True, ())
    rows, found = RedisSource(bundle, address(store)).rows(TABLE, bundle.tables[TABLE].keys().copy())
    assert found.all()
    assert rows.tobytes() == bundle.tables[TABLE].lookup(bundle.tables[TABLE].keys())[0].tobytes()


@pytest.mark.parametrize("layout", [STRINGS, HASHES, HOT])
@pytest.mark.parametrize("whole", [False, True])
def test_a_lost_bucket_is_found_when_the_version_is_published_again(trained, store, release, layout, whole):
    bundle, client = opened(trained.bundles[0]), store.client()
    release(layout)
    publish(bundle, address(store))
    source = RedisSource(bundle, address(store, cache_mb=0))
    keys, table = bundle.tables[TABLE].keys().copy(), source.record.tables[0]
    number = int(bucket_numbers(keys[:1], table.seed, table.bits)[0]).to_bytes(4, "little")
    name = f"sparsefleet:{tag(bundle.manifest.id)}:0".encode()
    if whole:
        client.delete(*row_names(store, bundle))
    elif layout != STRINGS:
        assert client.hdel(name, number)
    else:
        assert client.delete(name + b":" + number)
    with pytest.raises(RedisError, match="no longer in Redis"):
        source.rows(TABLE, keys)
    release(HOT)  # whichever release heals it, servers find it where they look
    assert publish(bundle, address(store)).written
    assert not publish(bundle, address(store)).written
    assert source.rows(TABLE, keys)[1].all()


def test_lost_hot_rows_are_written_again(trained, store):
    bundle = opened(trained.bundles[0])
    publish(bundle, address(store))
    (name,) = [name for name in row_names(store, bundle) if name.endswith(b":hot")]
    values = store.client().hgetall(name)
    record = VersionRecord.of(bundle, "2026-01-01T00:00:00Z").tables[0]
    rows = b"".join(values[number.to_bytes(4, "little")] for number in range(len(values)))
    assert rows == bundle.tables[TABLE].packed(bundle.hot[TABLE][: record.hot]).tobytes()
    assert not publish(bundle, address(store)).written
    store.client().delete(name)
    assert publish(bundle, address(store)).written
    assert store.client().hgetall(name) == values


# -- releases ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def release(monkeypatch):
    """Publish as the release of a layout did."""
    usual = VersionRecord.of

    def use(layout):
        def of(*given):
            record = usual(*given)
            tables = record.tables if layout >= HOT else tuple(replace(table, hot=0) for table in record.tables)
            return replace(record, layout=layout, tables=tables)

        monkeypatch.setattr(VersionRecord, "of", staticmethod(of))

    return use


def test_what_an_earlier_release_published_is_read_kept_and_removed(trained, store, release):
    v1, v2, v3 = map(opened, trained.bundles)
    release(STRINGS)
    publish(v1, address(store))
    publish(v2, address(store))
    assert json.loads(store.client().get(f"sparsefleet:{tag(v2.manifest.id)}"))["version"] == 1
    assert len(row_names(store, v2)) > 1
    release(HOT)
    source = RedisSource(v2, address(store, cache_mb=0))
    keys = v2.tables[TABLE].keys().copy()
    rows, found = source.rows(TABLE, keys)
    assert found.all()
    assert rows.tobytes() == v2.tables[TABLE].lookup(keys)[0].tobytes()
    assert not publish(v2, address(store)).written  # it is complete
    done = publish(v3, address(store))
    assert (done.previous, done.removed) == ("v2", (tag(v1.manifest.id),))
    assert not row_names(store, v1)
    assert json.loads(store.client().get(f"sparsefleet:{tag(v3.manifest.id)}"))["version"] == 3
    name = f"sparsefleet:{tag(v3.manifest.id)}:0".encode()
    assert sorted(row_names(store, v3)) == [name, name + b":hot"]
    assert source.rows(TABLE, keys)[1].all()
    assert roll_back(address(store)).version == "v2"


def test_what_an_earlier_release_left_unfinished_is_removed(trained, store, release):
    bundle = opened(trained.bundles[0])
    release(STRINGS)
    with pytest.raises(Interrupted):
        publish(bundle, address(store), progress=stop_at_once)
    assert row_names(store, bundle)
    release(HOT)
    assert publish(bundle, address(store)).written
    assert len(row_names(store, bundle)) == 2
    assert RedisSource(bundle, address(store)).rows(TABLE, bundle.tables[TABLE].keys().copy())[1].all()


def test_what_a_later_release_published_is_refused(trained, store, release):
    release(4)
    publish(opened(trained.bundles[0]), address(store))
    with pytest.raises(BundleError, match=r"version 4 of the record of rows in Redis format.*reads versions 1 to 3"):
        RedisSource(opened(trained.bundles[0]), address(store))


def test_one_publisher_at_a_time(trained, store):
    connection = Connection(address(store))
    lock = PublishLock(connection)
    with pytest.raises(PublishLockError, match=r"process \d+ publishes under the prefix 'sparsefleet'"):
        publish(opened(trained.bundles[0]), address(store))
    publish(opened(trained.bundles[0]), address(store, prefix="another"))
    lock.release()
    publish(opened(trained.bundles[0]), address(store))
    connection.close()


def test_a_lost_lock_switches_nothing(trained, store):
    def take_lock(done, total):
        store.client().set("sparsefleet:lock", "somebody, process 1 token")

    with pytest.raises(PublishLockError, match="lost to somebody"):
        publish(opened(trained.bundles[0]), address(store), progress=take_lock)
    assert b"current" not in store.client().hgetall("sparsefleet:pointer")
    assert store.client().get("sparsefleet:lock").startswith(b"somebody")  # it is not ours to release


def test_out_of_memory_leaves_the_current_version_and_takes_the_rest_away(trained, tmp_path):
    with redis_server(tmp_path) as store:
        v1, v2 = opened(trained.bundles[0]), opened(trained.bundles[1])
        publish(v1, address(store))
        client = store.client()
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 400_000)
        with pytest.raises(RedisError, match="out of memory") as refused:
            publish(v2, address(store))
        assert refused.value.code == "OOM"
        assert not row_names(store, v2)
        assert client.hget("sparsefleet:pointer", "current").decode() == tag(v1.manifest.id)
        RedisSource(v1, address(store)).close()
        client.config_set("maxmemory", 0)
        assert publish(v2, address(store)).previous == "v1"


def test_a_policy_that_evicts_is_warned_of(trained, tmp_path):
    with redis_server(tmp_path, "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru") as store:
        assert "allkeys-lru" in publish(opened(trained.bundles[0]), address(store)).warning


def test_a_replica_takes_no_rows(trained, store, tmp_path):
    (tmp_path / "replica").mkdir()
    with (
        redis_server(tmp_path / "replica", "--replicaof", f"127.0.0.1 {store.port}") as replica,
        pytest.raises(RedisError, match="replica"),
    ):
        publish(opened(trained.bundles[0]), address(replica))


def test_passwords(trained, tmp_path, monkeypatch):
    bundle = opened(trained.bundles[0])
    with redis_server(tmp_path, "--requirepass", "open sesame") as store:
        with pytest.raises(RedisError, match="wants a password"):
            publish(bundle, address(store))
        with pytest.raises(RedisError, match="does not take this user and password") as refused:
            publish(bundle, RedisAddress.parse(store.url.replace("redis://", "redis://:closed@")))
        assert "closed" not in str(refused.value)
        publish(bundle, RedisAddress.parse(store.url.replace("redis://", "redis://:open%20sesame@")))
        monkeypatch.setenv("SPARSEFLEET_REDIS_PASSWORD", "open sesame")
        assert not publish(bundle, address(store)).written


def test_redis_that_is_not_there_is_told_quickly(trained, store):
    store.kill()
    started = time.monotonic()
    with pytest.raises(RedisError, match=r"cannot reach Redis at redis://127\.0\.0\.1"):
        publish(opened(trained.bundles[0]), address(store))
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("name", "put"),
    [
        ("sparsefleet:pointer", lambda client, name: client.set(name, "x")),
        ("sparsefleet:pointer", lambda client, name: client.hset(name, "a", "b")),
        ("sparsefleet:pointer", lambda client, name: client.hset(name, mapping={"format": "other 1", "current": "x"})),
        ("sparsefleet:versions", lambda client, name: client.set(name, "x")),
        ("sparsefleet:versions", lambda client, name: client.sadd(name, "x")),
    ],
)
def test_a_prefix_that_holds_something_else_is_refused(trained, store, name, put):
    put(store.client(), name)
    before = {key: store.client().dump(key) for key in store.client().keys("*")}
    with pytest.raises(BundleError, match=f"{name} is not of ours.*choose another"):
        publish(opened(trained.bundles[0]), address(store))
    assert {key: store.client().dump(key) for key in store.client().keys("*")} == before


# -- what Redis may hold -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"", b"short", b"\0" * 1000, b"x" * 100_000])
def test_a_hostile_bucket_is_no_score(trained, store, value):
    bundle = opened(trained.bundles[0])
    publish(bundle, address(store))
    client = store.client()
    table = min(row_names(store, bundle))
    for field in client.hkeys(table):
        client.hset(table, field, value)
    source = RedisSource(bundle, address(store, timeout=30))
    keys = bundle.tables[TABLE].keys()[:10].copy()
    if len(value) % 24:
        with pytest.raises(RedisError, match="no bucket of rows of table 'SparseFeatFactors'"):
            source.rows(TABLE, keys)
        assert source.stats()["errors"] == 1
        with pytest.raises(RedisError, match="something else wrote it"):
            list(TableBuckets(Connection(address(store, timeout=30)), source.record, 0).read())
    else:
        assert not source.rows(TABLE, keys)[1].any()
    publish_again = RedisSource(bundle, address(store, cache_mb=0))
    client.delete(*row_names(store, bundle))
    publish(bundle, address(store))  # what is there again is read again
    assert publish_again.rows(TABLE, keys)[1].all()


def test_something_else_in_a_tables_place_is_told(trained, store):
    bundle = opened(trained.bundles[0])
    publish(bundle, address(store))
    source, table = RedisSource(bundle, address(store)), min(row_names(store, bundle))
    store.client().set(table, "x")
    for _ in range(2):
        with pytest.raises(RedisError, match=r"something else under the names.*choose another prefix"):
            source.rows(TABLE, np.array([1], np.uint64))
    with pytest.raises(RedisError, match="choose another prefix"):
        publish(bundle, address(store))


def test_a_removed_version_is_no_unknown_value(trained, store):
    bundles = [opened(path) for path in trained.bundles]
    publish(bundles[0], address(store))
    source = RedisSource(bundles[0], address(store))
    for bundle in bundles[1:]:
        publish(bundle, address(store))
    with pytest.raises(RedisError, match=r"version v1 are no longer in Redis.*publish it again, or switch"):
        source.rows(TABLE, np.array([1], np.uint64))


@pytest.mark.parametrize("record", [b"", b"[]", b'{"format": "x"}', b"\xff" * 100, b"{" * 10000])
def test_a_hostile_record_is_refused(trained, store, record):
    bundle = opened(trained.bundles[0])
    publish(bundle, address(store))
    store.client().set(f"sparsefleet:{tag(bundle.manifest.id)}", record)
    with pytest.raises(BundleError):
        RedisSource(bundle, address(store))
    with pytest.raises(BundleError):
        publish(bundle, address(store))


def test_a_bundle_changed_after_publishing_is_refused(trained, store, tmp_path):
    from bundle_edits import with_schema

    publish(opened(trained.bundles[0]), address(store))
    other = opened(with_schema(trained.bundles[0], tmp_path / "b", lambda schema: schema.update(hash_seed=5)))
    with pytest.raises(NotPublishedError, match=r"published from another schema\.json"):
        RedisSource(other, address(store))
    with pytest.raises(BundleError, match=r"is published already, and it was published from another schema\.json"):
        publish(other, address(store))
    assert other.schema != SCHEMA


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1", "no Redis address"),
        ("redis://", "no Redis address"),
        ("redis://host:99999/0", "no Redis address"),
        ("redis://host/db", "no Redis address"),
        ("redis://host/0?prefix=a b", "must be 1 to 40"),
        ("redis://host/0?prefix=a*", "must be 1 to 40"),
        ("redis://host/0?cache=5", "'cache' is not an option"),
        ("redis://host/0?timeout=soon", "not a number"),
        ("redis://host/0?timeout=0", "above 0"),
        ("redis://host/0?cache_mb=-1", "cache_mb"),
    ],
)
def test_addresses_that_are_none(url, message):
    with pytest.raises(ConfigError, match=message):
        RedisAddress.parse(url)


def test_addresses_never_tell_the_password():
    parsed = RedisAddress.parse("rediss://me:s%2Fcret@[::1]:7000/3?prefix=ctr&timeout=2&cache_mb=1.5")
    assert (parsed.user, parsed.password, parsed.tls, parsed.db, parsed.prefix) == ("me", "s/cret", True, 3, "ctr")
    assert "cret" not in parsed.shown + repr(parsed)
    assert parsed.shown == "rediss://[::1]:7000/3"
    with pytest.raises(ConfigError) as refused:
        RedisAddress.parse("reddis://me:secret@host")
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="choose mmap or redis://"):
        source_opener("memcached://host")
