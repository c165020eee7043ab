"""Two versions in one server: a canary that answers a share, a shadow that answers nobody; what metrics tell."""

import json
import re

import numpy as np
import pytest
from bundle_edits import with_schema
from http_server import serving
from waiting import wait_until

from sparsefleet.core.errors import BundleError, ConfigError
from sparsefleet.export import Bundle
from sparsefleet.export.gate import Requirement, require
from sparsefleet.serving import Predictor
from sparsefleet.serving.drift import stability_index


@pytest.fixture(scope="module")
def expected(trained):
    return {path.name: Predictor(path).predict(trained.rows) for path in trained.bundles}


def test_a_canary_answers_its_share_and_the_same_id_the_same_version(trained, expected):
    rows = trained.rows[:3]
    options = ("--canary", str(trained.bundles[1]), "--canary-share", "0.5")
    with serving(trained.bundles[0], *options) as server:

        def ask(request_id=None, path="/v1/predict"):
            body = {"rows": rows} if request_id is None else {"request_id": request_id, "rows": rows}
            answer = server.post(path, body).json()
            want = expected[answer["version"]][:3]
            np.testing.assert_allclose(answer["scores"], want, atol=1e-6)
            return answer["version"]

        versions = [ask() for _ in range(200)]
        assert 50 < versions.count("v2") < 150
        for number in range(20):  # whichever way a request takes
            assert len({ask(f"user-{number}"), ask(f"user-{number}"), ask(f"user-{number}", "/v1/predict?")}) == 1
        model = server.client.get("/v1/model").json()
        assert (model["version"], model["canary"]) == ("v1", {"version": "v2", "share": 0.5})
        text = server.client.get("/metrics").text
        assert 'sparsefleet_answers_total{version="v2"}' in text
        assert server.post("/v1/canary", {"bundle": str(trained.bundles[1]), "share": 0}).status_code == 200
        assert {ask() for _ in range(20)} == {"v1"}
        for body, status in (
            ({"bundle": str(trained.bundles[1]), "share": 2}, 400),
            ({"share": 1}, 400),
            ({"bundle": 3}, 400),
            ({"bundle": str(trained.bundles[0])}, 409),
            ({"bundle": str(trained.run)}, 409),
        ):
            assert server.post("/v1/canary", body).status_code == status
        server.post("/v1/canary", {"bundle": str(trained.bundles[1]), "share": 1})
        assert {ask() for _ in range(20)} == {"v2"}
        # Taken over: it is the version that serves, and no canary any more.
        assert server.post("/v1/reload", {"bundle": str(trained.bundles[1])}).json() == {
            "version": "v2",
            "previous": "v1",
        }
        assert server.post("/v1/canary", {"bundle": None}).json() == {"version": "v2", "previous": "v1"}


@pytest.mark.slow
def test_a_shadow_scores_along_and_answers_nobody(trained, expected):
    far = np.abs(expected["v3"].astype(np.float64) - expected["v1"])
    with serving(trained.bundles[0], "--shadow", str(trained.bundles[2])) as server:
        for start in range(0, 300, 10):
            answer = server.post("/v1/predict", {"rows": trained.rows[start : start + 10]}).json()
            assert answer["version"] == "v1"
            np.testing.assert_allclose(answer["scores"], expected["v1"][start : start + 10], atol=1e-6)

        def told(name):
            found = re.search(rf"^sparsefleet_{name}(?:{{.*}})? (\S+)$", server.client.get("/metrics").text, re.M)
            return float(found[1]) if found else 0.0

        wait_until(lambda: told("shadow_rows_total") + told("shadow_skipped_rows_total") == 300, 30, "the shadow")
        if not told("shadow_skipped_rows_total"):
            assert told("shadow_difference_sum") == pytest.approx(far.sum(), rel=1e-3)
            assert told("shadow_difference_max") == pytest.approx(far.max(), rel=1e-3)
        assert server.client.get("/v1/model").json()["shadow"] == "v3"
        assert server.post("/v1/shadow", {"bundle": None}).json() == {"version": "v1", "previous": None}


def test_a_switch_ends_a_canary_and_a_shadow_that_do_not_fit_any_more(trained, tmp_path):
    v1, v2, v3 = map(str, trained.bundles)
    other = with_schema(trained.bundles[2], tmp_path / "other", lambda schema: schema.update(hash_seed=7))
    changed = json.loads((other / "manifest.json").read_text()) | {"name": "other"}
    (other / "manifest.json").write_text(json.dumps(changed))
    with serving(v1, "--canary", v2, "--canary-share", "1", "--shadow", v3) as server:
        switched = server.post("/v1/reload", {"bundle": v3}).json()  # the shadow is promoted
        assert switched == {"version": "v3", "previous": "v1", "canary": {"version": "v2", "share": 1.0}}
        assert server.post("/v1/canary", {"bundle": v1, "share": 1}).status_code == 200
        assert server.post("/v1/shadow", {"bundle": v2}).status_code == 200
        # Back to the version that is the canary by now.
        assert server.post("/v1/rollback", None).json() == {"version": "v1", "previous": None, "shadow": "v2"}
        assert server.post("/v1/predict", {"rows": trained.rows[:1]}).json()["version"] == "v1"
        # Requests to a model of another schema are not for a canary of this one.
        refused = server.post("/v1/canary", {"bundle": str(other)})
        assert (refused.status_code, "schema differs" in refused.text) == (409, True)
        assert "other_schema" not in refused.text  # a word that only a reload takes
        assert server.post("/v1/canary", {"bundle": v3, "share": 1}).status_code == 200
        switched = server.post("/v1/reload", {"bundle": str(other), "other_schema": True})
        assert switched.json() == {"version": "other", "previous": "v1"}, switched.text
        assert server.terminate() == 0
        log = server.process.stderr.read()
        assert (log.count("no canary any more"), log.count("no shadow any more")) == (2, 2), log


@pytest.mark.slow
def test_a_shadow_scores_along_whichever_way_a_request_comes(trained):
    """A connection that asked for something else before, chunks, a long request. (gRPC: test_kserve.py)"""
    rows = trained.rows[:10]
    with serving(trained.bundles[0], "--shadow", str(trained.bundles[2])) as server:

        def counted(name):
            return sum(map(int, re.findall(rf"^sparsefleet_{name}_total(?:{{.*}})? (\S+)$", metrics(), re.M)))

        def seen():
            return counted("shadow_rows") + counted("shadow_skipped_rows")

        def metrics():
            return server.client.get("/metrics").text  # from here on, uvicorn has this connection

        def chunks():
            yield json.dumps({"rows": rows}).encode()

        want = 0
        assert seen() == want
        for ask, count in (
            (lambda: server.post("/v1/predict", {"rows": rows}), 10),
            (lambda: server.client.post("/v1/predict", content=chunks()), 10),
            (lambda: server.post("/v1/predict", {"rows": (trained.rows * 2)[:500]}), 500),
        ):
            ask()
            want += count
            wait_until(lambda want=want: seen() == want, 20, "the shadow")
            # Of a long request's pieces those are left out that others of its own wait behind.
            assert counted("shadow_rows") >= min(want, 20)


@pytest.mark.slow
def test_scores_unknown_values_and_drift_are_told(trained, cli, tmp_path):
    done = cli(
        "export", trained.checkpoint(3), "--out", tmp_path / "b", "--name", "b", "--test-data", trained.data / "test"
    )
    assert done.exit_code == 0, done.output
    lineage = Bundle.open(tmp_path / "b").manifest.lineage
    assert sum(lineage.scores) == len(trained.rows)
    assert 0.5 < lineage.metrics["auc"] <= 1
    assert lineage.settings["model"]["name"] == "CTRDNN"
    with serving(tmp_path / "b") as server:
        assert server.client.get("/v1/model").json()["lineage"]["metrics"] == lineage.metrics

        def drift():
            found = re.search(r"^sparsefleet_score_drift{.*} (\S+)$", server.client.get("/metrics").text, re.M)
            return found and float(found[1])

        server.post("/v1/predict", {"rows": trained.rows[:100]})
        assert drift() is None  # of so few, chance would be told
        server.post("/v1/predict", {"rows": trained.rows[100:]})
        for _ in range(4):
            server.post("/v1/predict", {"rows": trained.rows})
        assert drift() < 0.01  # the very samples that it was measured with
        strange = [{**row, "C3": "never seen"} for row in trained.rows[:1]] * 100
        for _ in range(20):
            server.post("/v1/predict", {"rows": strange})
        assert drift() > 0.25
        text = server.client.get("/metrics").text
        unknown = {slot: int(n) for slot, n in re.findall(r'slot_unknown_values_total{slot="(\w+)"} (\d+)', text)}
        assert unknown["C3"] >= 100
        assert 'sparsefleet_scores_count{version="b"} 3500' in text


@pytest.mark.slow
def test_the_gate(trained, cli, tmp_path):
    data = ("--test-data", trained.data / "test")
    refused = cli("export", trained.checkpoint(3), "--out", tmp_path / "b", *data, "--require", "auc>=.999")
    assert refused.exit_code == 1
    assert "auc>=0.999 is required, and its auc is 0." in " ".join(refused.output.split())
    assert not (tmp_path / "b").exists()
    assert cli("export", trained.checkpoint(3), "--out", tmp_path / "b", "--require", "auc>=.5").exit_code == 1
    assert cli("export", trained.checkpoint(3), "--out", tmp_path / "b", *data, "--require", "auc>=.5").exit_code == 0
    with serving(tmp_path / "b", "--require", "auc>=.5", "--require", "auc<1.1") as server:
        answer = server.post("/v1/reload", {"bundle": str(trained.bundles[0])})  # it has no metrics
        assert answer.status_code == 409
        assert "export it with --test-data" in answer.json()["error"]
    with pytest.raises(AssertionError, match="is required"), serving(tmp_path / "b", "--require", "auc>.9999"):
        pass


@pytest.mark.parametrize("text", ["auc", "auc>=", "auc==1", ">=1", "auc>=x", "auc>=1 and loss<1", ""])
def test_what_is_no_requirement(text):
    with pytest.raises(ConfigError, match="is no requirement"):
        Requirement.parse(text)


def test_requirements():
    require({"auc": 0.76, "log_loss": 0.4}, ["auc>=.75", " log_loss < 5e-1 "], "b")
    with pytest.raises(BundleError, match=r"b: auc>0\.76 is required, and its auc is 0\.76"):
        require({"auc": 0.76}, ["auc>.76"], "b")
    with pytest.raises(BundleError, match="required"):
        require({"auc": float("nan")}, ["auc<1"], "b")


def test_the_index_of_stability():
    same = np.array([10, 200, 30, 4])
    assert stability_index(same.tolist(), same * 7) < 0.01
    assert stability_index(same.tolist(), same[::-1].copy()) > 1
    assert json.loads(json.dumps(stability_index([0, 1], np.array([1, 0]))))  # finite
