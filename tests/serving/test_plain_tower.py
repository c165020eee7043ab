"""Networks that are plain towers are computed by our own kernel, and score as in ONNX Runtime."""

import json

import numpy as np
import onnx
import pytest
from bundle_fixtures import NAMES
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sparsefleet.export.bundle import Bundle
from sparsefleet.export.onnx_session import open_session, run_session
from sparsefleet.kernels import levels
from sparsefleet.serving import Predictor, plain_tower
from sparsefleet.serving.predictor import COUNTED

WIDE = pytest.mark.skipif(
    not levels.chosen.level.startswith(("avx512", "amx")), reason="other processors leave the network to ONNX Runtime"
)


def in_one_call(predictor, body, most):
    return predictor.score_bodies([body], [most])[0]


@WIDE
def test_a_predictor_takes_it_and_scores_as_onnx_runtime_does(trained):
    own, theirs = Predictor(trained.bundles[0]), Predictor(trained.bundles[0], own_tower=False)
    assert (own.runtime, theirs.runtime) == ("own tower", "ONNX Runtime")
    batch = own.parser.samples(trained.rows[:60])
    first = own.score(batch)  # the first is counted by slot, and the long way
    assert first.by_slot is not None
    for _ in range(COUNTED + 1):
        again = own.score(batch)
        np.testing.assert_array_equal(again.probabilities, first.probabilities)
        assert (again.keys, again.unknown) == (first.keys, first.unknown)
    want = theirs.score(batch)
    assert (want.keys, want.unknown) == (first.keys, first.unknown)
    np.testing.assert_allclose(first.probabilities, want.probabilities, rtol=0, atol=1e-6)
    np.testing.assert_allclose(own.predict(trained.rows[:1]), want.probabilities[:1], rtol=0, atol=1e-6)


@WIDE
def test_a_plain_body_is_scored_in_one_call_as_its_samples_are(trained):
    predictor = Predictor(trained.bundles[0])
    rows = trained.rows[:60]
    context = {name: rows[0][name] for name in NAMES[:20]}
    candidates = [{name: row[name] for name in NAMES[20:]} for row in rows]
    assert in_one_call(predictor, json.dumps({"rows": rows}).encode(), 60) is None  # it is to be counted
    for document in ({"rows": rows}, {"context": context, "candidates": candidates}):
        body = json.dumps(document).encode()
        want = predictor.score(predictor.parser.body(body))
        for most in (60, 100):
            found = in_one_call(predictor, body, most)
            np.testing.assert_array_equal(found.probabilities, want.probabilities)
            assert (found.keys, found.unknown) == (want.keys, want.unknown)
        assert in_one_call(predictor, body, 59) is None
    for other in (b'{"rows": []}', b'{"request_id": 1, "rows": []}', b"{", b'{"rows": [{"I1": "x"}]}'):
        assert in_one_call(predictor, other, 10) is None


@WIDE
def test_one_batch_in_so_many_is_counted_whichever_way_it_comes(trained):
    predictor, counted, body = Predictor(trained.bundles[0]), 0, json.dumps({"rows": trained.rows[:2]}).encode()
    for number in range(4 * COUNTED):
        if number % 3 == 0 or in_one_call(predictor, body, 2) is None:
            counted += predictor.score(predictor.parser.body(body)).by_slot is not None
    assert counted == 4


@WIDE
def test_one_that_scores_otherwise_is_not_taken(trained):
    bundle = Bundle.open(trained.bundles[0])
    widths = {entry.input: entry.width for entry in bundle.network.embeddings}
    assert bundle.network.dense is not None
    widths[bundle.network.dense.input] = bundle.network.dense.features
    session = open_session(bundle.graph)

    def run(inputs):
        return run_session(session, bundle.network.output, inputs)

    assert plain_tower.served_tower(bundle.graph, widths, run) is not None
    for other in (lambda inputs: run(inputs) + 1e-3, lambda inputs: run(inputs) * np.nan):
        assert plain_tower.served_tower(bundle.graph, widths, other) is None
    assert plain_tower.served_tower(bundle.graph, {"dense": 13}, run) is None


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_bytes_of_any_kind_are_no_plain_tower_or_one(trained, data):
    graph = bytearray(Bundle.open(trained.bundles[0]).graph)
    head = data.draw(st.integers(0, len(graph)))
    for _ in range(data.draw(st.integers(0, 3))):
        graph[data.draw(st.integers(0, min(2000, len(graph) - 1)))] = data.draw(st.integers(0, 255))
    plain_tower.plain_tower(bytes(graph[:head]) if data.draw(st.booleans()) else bytes(graph))  # raises nothing
    plain_tower.plain_tower(data.draw(st.binary(max_size=200)))


def chain(*kinds: str) -> bytes:
    """A network of these operators, one behind the other; the last layer's bias is large."""
    nodes, tensors, at, layers = [], [], "x", kinds.count("Gemm")
    for number, kind in enumerate(kinds):
        inputs, out = [at], f"v{number}"
        if kind == "Gemm":
            layers -= 1
            width = 4 if layers else 1
            weight, bias = np.ones((4, width), np.float32), np.full(width, 50.0, np.float32)
            tensors += [numpy_helper.from_array(weight, f"w{number}"), numpy_helper.from_array(bias, f"b{number}")]
            inputs += [f"w{number}", f"b{number}"]
        nodes.append(helper.make_node(kind, inputs, [out]))
        at = out
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4]),
        helper.make_tensor_value_info(at, TensorProto.FLOAT, ["b", 1]),
    ]
    model = helper.make_model(helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def test_a_relu_behind_the_last_layer_is_no_plain_tower():
    assert plain_tower.plain_tower(chain("Gemm", "Relu", "Gemm", "Sigmoid")) is not None
    assert plain_tower.plain_tower(chain("Gemm", "Relu", "Gemm", "Relu", "Sigmoid")) is None


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(b"8\x00", id="a number where the graph should be"),
        pytest.param(b":\x08\x0a\x06\x08\x80\x80\x80\x80\x40", id="64 GB where a name should be"),
    ],
)
def test_fields_of_another_kind_are_no_plain_tower(graph):
    assert plain_tower.plain_tower(graph) is None
