"""A version whose network gives no numbers: nobody gets its scores, and everybody is told."""

import itertools
import json
import re
import shutil
from datetime import datetime

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from bundle_edits import rewrite
from http_server import serving
from onnx import helper
from waiting import wait_until

from sparsefleet.export import Bundle
from sparsefleet.serving import Predictor
from sparsefleet.serving.redis import RedisAddress, publish

FAR = 10**9
"""Of I1: so large that `with_a_root` has no root of it."""


def with_a_root(bundle, copy, least):
    """A copy that adds 0 * sqrt(least - I1) to every score: no number where I1, normalised, is larger than `least`."""
    shutil.copytree(bundle, copy)
    model = onnx.load_model_from_string((copy / "model.onnx").read_bytes())
    for name, value in (("first", np.int64(0)), ("least", np.float32(least)), ("nothing", np.float32(0))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    (output,) = model.graph.output
    (last,) = [node for node in model.graph.node if output.name in node.output]
    last.output[0] = "before"
    model.graph.node.extend(
        [
            helper.make_node("Gather", ["dense", "first"], ["I1"], axis=1),
            helper.make_node("Sub", ["least", "I1"], ["rest"]),
            helper.make_node("Sqrt", ["rest"], ["root"]),
            helper.make_node("Mul", ["root", "nothing"], ["none"]),
            helper.make_node("Add", ["before", "none"], [output.name]),
        ]
    )
    rewrite(copy, "model.onnx", model.SerializeToString())
    return copy


def refused(server, rows):
    """Both ways that a request may go, and the reason of each."""
    for path in ("/v1/predict", "/v1/predict?"):
        answer = server.post(path, {"rows": rows})
        assert answer.status_code == 503, answer.text
        assert answer.json() == {"error": "version v1 gave a score that is not a number", "version": "v1"}
        assert answer.headers["retry-after"] == "1"


def log_of(server):
    """Ends the server, and returns all that it said."""
    server.process.terminate()
    return server.process.communicate(timeout=40)[1]


def times_of(said, line):
    """When a line was written; never more than once a second, but for how late a busy machine writes it."""
    told = re.findall(rf"^(\S+)Z {line}", said, re.M)
    times = [datetime.fromisoformat(text).timestamp() for text in told]
    assert all(later - earlier > 0.5 for earlier, later in itertools.pairwise(times))
    return times


def test_some_requests_get_no_number_and_others_go_on(trained, tmp_path):
    bundle = with_a_root(trained.bundles[0], tmp_path / "some", 2)
    never = with_a_root(trained.bundles[1], tmp_path / "never", -1)
    rows = trained.rows[:5]
    want = Predictor(trained.bundles[0]).predict(rows)
    with serving(bundle) as server:
        for _ in range(10):
            refused(server, [*rows, {**rows[0], "I1": FAR}])
            np.testing.assert_allclose(server.post("/v1/predict", {"rows": rows}).json()["scores"], want, atol=1e-6)
        assert server.client.get("/healthz").status_code == 200
        assert server.client.get("/readyz").status_code == 200
        metrics = server.client.get("/metrics").text
        assert 'sparsefleet_requests_total{path="/v1/predict",status="503"} 20\n' in metrics
        # One that never gives a number does not come to answer.
        answer = server.post("/v1/reload", {"bundle": str(never)})
        assert answer.status_code == 409
        assert re.search("the warm-up's samples score .*nan.*, which are not all numbers", answer.json()["error"])
        assert server.client.get("/healthz").json()["version"] == "v1"
        assert times_of(log_of(server), "answered 503: .*version v1 gave a score that is not a number")


def test_over_grpc_neither(trained, tmp_path):
    grpc = pytest.importorskip("grpc", reason="no grpcio: pip install 'sparsefleet[grpc]'")
    from kserve_client import calls_of

    rows = trained.rows[:5]
    with (
        serving(with_a_root(trained.bundles[0], tmp_path / "some", 2), "--grpc-port", "0") as server,
        calls_of(server) as call,
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call("ModelInfer", model_name="model", **call.tensors([*rows, {**rows[0], "I1": FAR}]))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == "version v1 gave a score that is not a number"
        assert len(call("ModelInfer", model_name="model", **call.tensors(rows)).outputs) == 1


def test_a_server_that_has_lost_its_numbers_says_so(trained, store):
    """Rows that are no numbers make a network that gives none, while the server runs."""
    bundle = trained.bundles[0]
    publish(Bundle.open(bundle), RedisAddress.parse(store.url))
    with serving(bundle, "--sparse", f"{store.url}?cache_mb=0") as server:
        assert server.post("/v1/predict", {"rows": trained.rows[:5]}).status_code == 200
        assert server.client.get("/readyz").status_code == 200
        spoil(store)

        def not_ready():
            answer = server.client.get("/readyz")
            return answer.json()["error"] if answer.status_code == 503 else ""

        reason = wait_until(not_ready, 20, "the server to notice that it gives no numbers")
        assert re.search("the warm-up's samples score .*nan.*, which are not all numbers", reason)
        for _ in range(5):
            refused(server, trained.rows[:5])
            assert not_ready() == reason
        assert server.client.get("/healthz").status_code == 200
        assert "sparsefleet_ready 0\n" in server.client.get("/metrics").text
        said = log_of(server)
    assert times_of(said, "answered 503: .*version v1 gave a score that is not a number")
    assert times_of(said, "version v1 is not ready: the warm-up's samples score .*nan")


def spoil(store):
    """Every number of every row that Redis holds becomes none; see redis/FORMAT.md."""
    client = store.client()
    (record,) = [name for name in client.keys("sparsefleet:*") if re.fullmatch(rb"sparsefleet:[0-9a-f]{12}", name)]
    (table,) = json.loads(client.get(record))["tables"]
    name = record + b":0"
    for bucket, value in client.hgetall(name).items():
        count = len(value) // (8 + table["stride"])
        client.hset(name, bucket, value[: 8 * count] + b"\xff" * (len(value) - 8 * count))
