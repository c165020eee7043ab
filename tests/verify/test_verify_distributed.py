"""All four places of a model that two servers and two trainers made: checkpoint, bundle, HTTP and Redis."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from bundle_edits import change_tensor, failed_checks, with_schema
from command_line import SMALL, command_line
from http_server import serving
from redis_server import BINARY, SKIPPED, redis_server

from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.datasets.synth import SynthSpec, synth

ROWS = "SparseFeatFactors"
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("verify distributed")]  # `made` takes long: once is enough


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A trained run, its bundle and its data; every step is a command as a user gives it."""
    folder = tmp_path_factory.mktemp("made")
    synth(folder / "data", SynthSpec(4000, 400, parts=2, seed=7))
    with command_line(folder) as user:
        many = ("--servers", 2, "--workers", 2, "--mode", "sync", "--log-dir", "log")
        done = user.run("train", "--data", "data/train", *many, "--save", "model", *SMALL)
        assert done.returncode == 0, done.stderr
        user.result("export", "model", "--out", "bundle")
    shards = [entry.path for entry in Checkpoint.open(latest(folder / "model")).manifest.files if entry.rows]
    assert len(shards) == 2, "each server wrote its own rows"
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    if not BINARY:
        pytest.skip(SKIPPED)
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def published(made, store, cli):
    """The URL of a Redis that holds the bundle's rows, afresh."""
    store.client().flushall()
    done = cli("publish", made / "bundle", store.url)
    assert done.exit_code == 0, done.output
    return store.url


@pytest.fixture
def verify(made, cli):
    def run(bundle, *more, status=0):
        where = ("--checkpoint", made / "model", "--bundle", bundle, "--data", made / "data" / "test")
        done = cli("verify", *where, "--json", *more)
        assert done.exit_code == status, done.output
        return json.loads(done.stdout)

    return run


def test_all_four_places_are_equal(made, published, verify):
    with (
        serving(made / "bundle") as mapped,
        serving(made / "bundle", "--sparse", published) as from_redis,
    ):
        report = verify(made / "bundle", "--url", mapped.url, "--redis", published)
        again = verify(made / "bundle", "--url", from_redis.url, "--redis", published)
    for one in (report, again):
        assert one["ok"]
        assert list(one["places"]) == ["checkpoint", "bundle", "http", "redis"]
        scored = {check["what"]: check for check in one["scores"]["checks"]}
        assert list(scored) == ["scores of bundle", "scores of redis", "scores of http"]
        assert all(check["max"] < 1e-6 and check["count"] == 400 for check in scored.values())
    tables = [check for check in report["parameters"]["checks"] if check["what"].startswith("table ")]
    assert [check["place"] for check in tables] == ["bundle", "redis"]
    assert tables[0]["compared"] == tables[1]["compared"] > 10_000
    assert set(report["worst"][0]["slots"][0]["rows"]) == {"checkpoint", "bundle", "redis"}


def buckets(client):
    """The table's hash, and the fields of all buckets that hold a row."""
    (table,) = client.scan_iter(match="sparsefleet:*:0", count=10_000)
    return table, [field for field, value in sorted(client.hgetall(table).items()) if value]


def test_one_weight_changed_in_redis(made, store, published, verify):
    client = store.client()
    table_name, (name, *_) = buckets(client)
    value = client.hget(table_name, name)
    rows = len(value) // (8 + 16)  # a key, and four floats
    key = int(np.frombuffer(value[:8], "<u8")[0])
    weight = np.frombuffer(value[8 * rows : 8 * rows + 4], "<f4")[0] + np.float32(0.5)
    client.hset(table_name, name, value[: 8 * rows] + weight.tobytes() + value[8 * rows + 4 :])
    wrong = failed_checks(report := verify(made / "bundle", "--redis", published, status=1))
    table = wrong[f"table {ROWS}, redis"]
    assert (table["differing"], table["missing"], table["surplus"]) == (1, 0, 0)
    assert table["examples"][0]["key"] == key
    assert f"key {key}, value 0" in table["figure"]
    assert f"table {ROWS}, bundle" not in wrong
    assert report["graph"]["ok"]
    assert report["settings"]["ok"]


@pytest.mark.slow
def test_a_weight_that_scores_depend_on(made, store, published, verify):
    """Every weight of a much met value: the worst rows name slot, value, key and row."""
    clean = verify(made / "bundle", "--redis", published)
    slot = next(slot for slot in clean["worst"][0]["slots"] if any(slot["rows"]["checkpoint"][0]))  # known in training
    (key,) = slot["keys"]["checkpoint"]
    client = store.client()
    table_name, names = buckets(client)
    for name in names:
        value = client.hget(table_name, name)
        rows = len(value) // 24
        keys = np.frombuffer(value[: 8 * rows], "<u8")
        if key in keys:
            weights = np.frombuffer(value[8 * rows :], "<f4").reshape(rows, 4).copy()
            weights[keys == key] += 0.5
            client.hset(table_name, name, value[: 8 * rows] + weights.tobytes())
    wrong = failed_checks(report := verify(made / "bundle", "--redis", published, status=1))
    assert {"scores of redis", f"table {ROWS}, redis"} == set(wrong)
    parting = [entry for row in report["worst"] for entry in row["slots"] if entry["parts_at"]]
    assert parting
    for entry in parting:
        assert entry["parts_at"] == ["rows in redis"]
        assert entry["keys"]["checkpoint"] == [key]
        offline, online = entry["rows"]["checkpoint"][0], entry["rows"]["redis"][0]
        np.testing.assert_allclose(np.subtract(online, offline), 0.5, atol=1e-5)


def test_rows_missing_and_surplus_in_redis(made, store, published, verify):
    client = store.client()
    table_name, (first, second, *_) = buckets(client)
    lost = client.hget(table_name, first)
    client.hset(table_name, first, b"")
    kept = client.hget(table_name, second)
    rows = len(kept) // 24
    # A key that belongs to no bucket of its kind is never found, but it is there.
    client.hset(table_name, second, kept[: 8 * rows] + np.uint64(5).tobytes() + kept[8 * rows :] + bytes(16))
    wrong = failed_checks(verify(made / "bundle", "--redis", published, status=1))
    table = wrong[f"table {ROWS}, redis"]
    count = len(lost) // 24
    assert (table["missing"], table["surplus"]) == (count, 1)
    assert len(table["missing_keys"]) == min(count, 5)
    assert set(table["missing_keys"]) <= set(np.frombuffer(lost[: 8 * count], "<u8").tolist())


def test_an_evicted_bucket_and_a_version_that_is_not_there(made, store, published, verify, cli, tmp_path):
    client = store.client()
    table_name, (name, *_) = buckets(client)
    client.hdel(table_name, name)
    wrong = failed_checks(verify(made / "bundle", "--redis", published, status=1))
    assert "no longer in Redis" in wrong[f"table {ROWS}, redis"]["failure"]
    client.flushall()
    wrong = failed_checks(verify(made / "bundle", "--redis", published, status=1))
    assert "it is not published there" in wrong["rows in redis"]["figure"]
    assert wrong["version"]["differences"]["version"]["redis"] is None


def test_redis_has_another_version_for_current(made, store, published, verify, cli, tmp_path):
    done = cli("export", made / "model", "--out", tmp_path / "other", "--name", "other")
    assert done.exit_code == 0
    assert cli("publish", tmp_path / "other", published).exit_code == 0
    wrong = failed_checks(report := verify(made / "bundle", "--redis", published, status=1))
    assert set(wrong) == {"version"}, "the files are the same but for the id in their headers"
    assert wrong["version"]["differences"]["version"]["redis"] == "other"
    assert report["parameters"]["ok"], "the bundle's own rows are still there"


def test_a_changed_slot_and_a_changed_tensor(made, verify, tmp_path):
    def reseed(schema):
        schema["slots"][4]["hash_prefix"] = "99"

    wrong = failed_checks(verify(with_schema(made / "bundle", tmp_path / "schema", reseed), status=1))
    assert list(wrong["hash prefixes"]["differences"]) == ["C5"]
    assert list(wrong["keys of the rows"]["differences"]) == ["C5"]
    changed = change_tensor(made / "bundle", tmp_path / "tensor", "tower.layers.1.weight")
    wrong = failed_checks(verify(changed, status=1))
    assert [what for what in wrong if what.startswith("tensor")] == ["tensor tower.layers.1.weight"]
    shutil.rmtree(changed)


def test_a_redis_that_is_not_there(made, cli):
    where = ("--checkpoint", made / "model", "--bundle", made / "bundle", "--data", made / "data" / "test")
    done = cli("verify", *where, "--redis", "redis://127.0.0.1:1/0")
    assert done.exit_code == 2
    assert "127.0.0.1:1" in done.stderr
