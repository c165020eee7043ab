"""Bundles on S3: export, serve, publish and verify by URI, through a cache that is checked."""

import json
import shutil

import numpy as np
import pytest
from http_server import serving
from s3_server import BUCKET, s3
from waiting import wait_until

from sparsefleet.core.errors import BundleError
from sparsefleet.export import Bundle, export_checkpoint
from sparsefleet.export.remote import KEPT, shown
from sparsefleet.serving import Predictor

__all__ = ["s3"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFLEET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def cached(cache):
    return sorted(path for path in (cache / "bundles").glob("*/*"))


def test_from_export_to_scores_by_uri(trained, s3, cache, store, cli):
    uri = s3.uri("from-export/v9")
    done = cli("export", trained.checkpoint(3), "--out", uri, "--name", "v9", "--json")
    assert done.exit_code == 0, done.output
    assert f"s3://{BUCKET}/from-export/v9" in done.output
    assert "test:test" not in done.output
    again = cli("export", trained.checkpoint(3), "--out", uri)
    assert (again.exit_code, "never replaced" in " ".join(again.output.split())) == (1, True)
    assert not cached(cache)
    want = Predictor(trained.bundles[2]).predict(trained.rows[:40])
    np.testing.assert_array_equal(Predictor(uri).predict(trained.rows[:40]), want)
    assert len(cached(cache)) == 1
    published = cli("publish", uri, store.url, "--thin", s3.uri("from-export/thin"))
    assert published.exit_code == 0, published.output
    checked = cli("verify", "--checkpoint", trained.checkpoint(3), "--bundle", uri, "--data", trained.data / "test")
    assert checked.exit_code == 0, checked.output
    # A thin bundle behind a URI, and its rows in Redis: nothing of the rows comes to this disk.
    with serving(s3.uri("from-export/thin"), "--sparse", store.url) as server:
        answer = server.post("/v1/predict", {"rows": trained.rows[:40]}).json()
        assert answer["version"] == "v9"
        np.testing.assert_array_equal(np.array(answer["scores"], np.float32), want)
        assert server.client.get("/v1/model").json()["bundle"] == f"s3://{BUCKET}/from-export/thin"
    (thin,) = [path for path in cached(cache) if path.name.endswith("-thin")]
    assert not (thin / "sparse").exists()


@pytest.mark.slow
def test_a_folder_on_s3_is_followed_and_reloads_take_uris(trained, s3, cache):
    for path in trained.bundles:
        s3.put_folder(path, f"followed/{path.name}")
    s3.put("followed/current", b"v1\n")
    with serving(s3.uri("followed"), "--watch-seconds", "0.1") as server:
        assert server.client.get("/readyz").json()["version"] == "v1"
        s3.put("followed/current", b"v2\n")
        wait_until(lambda: server.client.get("/healthz").json()["version"] == "v2", 30, "version v2")
        answer = server.post("/v1/reload", {"bundle": s3.uri("followed/v3")})
        assert answer.json() == {"version": "v3", "previous": "v2"}
        missing = server.post("/v1/reload", {"bundle": s3.uri("followed/v4")})
        assert (missing.status_code, "no bundle at s3://clicks/followed/v4" in missing.json()["error"]) == (409, True)
    assert len(cached(cache)) == 3


def test_damage_is_found_and_half_of_a_bundle_is_none(trained, s3, cache, tmp_path):
    path = shutil.copytree(trained.bundles[0], tmp_path / "b")
    rows = path / "sparse/SparseFeatFactors.rows"
    data = bytearray(rows.read_bytes())
    data[-1] ^= 4
    rows.write_bytes(data)
    s3.put_folder(path, "damaged/v1")
    with pytest.raises(BundleError, match="damaged or half uploaded"):
        Bundle.open(s3.uri("damaged/v1"))
    assert not cached(cache)
    s3.put("half/v1/model.onnx", b"x")
    with pytest.raises(BundleError, match="so it is none, or half uploaded"):
        Bundle.open(s3.uri("half/v1"))


@pytest.mark.slow
def test_the_cache_is_used_mended_and_bounded(trained, s3, cache, tmp_path):
    s3.put_folder(trained.bundles[0], "many/v0")
    first = Bundle.open(s3.uri("many/v0"))
    (first.path / "schema.json").unlink()  # somebody tidied up
    assert Bundle.open(s3.uri("many/v0")).path == first.path
    for number in range(1, KEPT + 2):
        export_checkpoint(trained.checkpoint(1), tmp_path / f"v{number}", name=f"v{number}")
        s3.put_folder(tmp_path / f"v{number}", f"many/v{number}")
        assert Bundle.open(s3.uri(f"many/v{number}")).name == f"v{number}"
    assert len(cached(cache)) == KEPT
    assert not first.path.exists()
    assert len(first.tables["SparseFeatFactors"].keys())  # whoever has it open keeps it


def test_keys_are_not_shown():
    assert shown("s3://key:secret@bucket/models/v1?region=eu&endpoint_override=x") == "s3://bucket/models/v1"


def test_nothing_is_published_where_the_thin_bundle_could_not_be_written(trained, store, cli, tmp_path):
    place = f"{store.url}?prefix=thin-first"
    refused = cli("publish", trained.bundles[0], place, "--thin", tmp_path)
    assert (refused.exit_code, "it exists" in " ".join(refused.output.split())) == (1, True)
    assert cli("publish", place, "--rollback").exit_code == 1
    assert "was there" not in cli("publish", trained.bundles[0], place).output


@pytest.mark.slow
def test_a_thin_bundle_is_served_from_redis_only(trained, store, cli, tmp_path):
    assert cli("publish", trained.bundles[0], store.url, "--thin", tmp_path / "thin").exit_code == 0
    assert not (tmp_path / "thin" / "sparse").exists()
    want = Predictor(trained.bundles[0]).predict(trained.rows[:40])
    with serving(tmp_path / "thin", "--sparse", store.url) as server:
        answer = server.post("/v1/predict", {"rows": trained.rows[:40]}).json()
        np.testing.assert_array_equal(np.array(answer["scores"], np.float32), want)
        assert json.loads((tmp_path / "thin" / "manifest.json").read_text())["name"] == answer["version"]
    with pytest.raises(AssertionError, match="or a thin bundle"), serving(tmp_path / "thin"):
        pass
    with pytest.raises(BundleError, match="opened without its rows"):
        Predictor(Bundle.open(tmp_path / "thin", rows=False))
    for again in (tmp_path / "thin",):
        refused = cli("publish", trained.bundles[0], store.url, "--thin", again)
        assert (refused.exit_code, "it exists" in refused.output) == (1, True)
