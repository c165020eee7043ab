"""gRPC with the KServe v2 protocol: a client of the protocol's own fields, and Triton's where it is installed."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from bundle_fixtures import NAMES
from certificates import certificate_and_key
from http_server import serving
from waiting import wait_until

from sparsefleet.serving import Predictor

grpc = pytest.importorskip("grpc", reason="no grpcio: pip install 'sparsefleet[grpc]'")
from kserve_client import calls_of  # noqa: E402  (needs grpcio)

README_ROWS = Path(__file__).parents[2] / "examples" / "rows.json"


@pytest.fixture(scope="module")
def server(trained):
    with serving(trained.bundles[0], "--grpc-port", "0", "--model-name", "ctr") as running:
        yield running


@pytest.fixture(scope="module")
def stub(server):
    with calls_of(server) as call:
        yield call


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("count", [1, 300])
def test_scores_are_those_of_the_bundle(trained, stub, raw, count):
    rows = trained.rows[:count]
    answer = stub("ModelInfer", model_name="ctr", id="r-1", **stub.tensors(rows, raw))
    (output,) = answer.outputs
    assert (answer.model_version, answer.id, output.name, list(output.shape)) == ("v1", "r-1", "scores", [count])
    scores = np.frombuffer(answer.raw_output_contents[0], "<f4")
    np.testing.assert_allclose(scores, Predictor(trained.bundles[0]).predict(rows), atol=1e-6)


@pytest.mark.parametrize("raw", [False, True])
def test_a_slot_has_as_many_values_in_each_row_of_a_call(trained, server, stub, raw):
    """None at all is a tensor [rows, 0]. Empty text is a value: it pads nothing."""
    row, other = trained.rows[:2]
    place = NAMES.index("C3")
    for values in ([], [row["C3"], other["C3"]], [""], [row["C3"], ""]):
        fields = stub.tensors([row], raw)
        texts = [str(value).encode() for value in values]
        tensor = fields["inputs"][place]
        del tensor.shape[:]
        tensor.shape.extend([1, len(values)])
        if raw:
            fields["raw_input_contents"][place] = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        else:
            tensor.contents.CopyFrom(stub.types["InferTensorContents"](bytes_contents=texts))
        scores = np.frombuffer(stub("ModelInfer", model_name="ctr", **fields).raw_output_contents[0], "<f4")
        want = server.post("/v1/predict", {"rows": [{**row, "C3": values}]}).json()["scores"]
        np.testing.assert_allclose(scores, want, atol=1e-6)
    parser = Predictor(trained.bundles[0]).parser
    held = {text: len(parser.samples([{**row, "C3": text}]).slot("C3")[0]) for text in (None, "", "x")}
    assert held == {None: 0, "": 1, "x": 1}


def test_what_it_tells_of_itself(stub):
    assert stub("ServerLive").live
    assert stub("ServerReady").ready
    assert stub("ModelReady", name="ctr").ready
    assert stub("ServerMetadata").name == "sparsefleet"
    model = stub("ModelMetadata", name="ctr")
    assert [tensor.name for tensor in model.inputs] == list(NAMES)
    assert {tensor.datatype for tensor in model.inputs} == {"FP32", "BYTES"}


def test_what_does_not_fit_is_refused(trained, stub):
    rows = trained.rows[:2]

    def change(**edits):
        fields = stub.tensors(rows)
        for name, value in edits.items():
            tensor = fields["inputs"][NAMES.index(name)]
            if isinstance(value, dict):
                for field, to in value.items():
                    if field == "shape":
                        del tensor.shape[:]
                        tensor.shape.extend(to)
                    else:
                        setattr(tensor, field, to)
        return fields

    code = grpc.StatusCode
    for fields, name, status, words in (
        (change(), "other", code.NOT_FOUND, "no model 'other'"),
        (change(C3={"datatype": "INT64"}), "ctr", code.INVALID_ARGUMENT, "takes BYTES"),
        (change(I3={"datatype": "BYTES"}), "ctr", code.INVALID_ARGUMENT, "takes FP32 or FP64"),
        (change(C3={"shape": [3]}), "ctr", code.INVALID_ARGUMENT, "the inputs before it have 2"),
        (change(C3={"shape": [2, 5]}), "ctr", code.INVALID_ARGUMENT, "2 values; its shape"),
        (change(C3={"shape": [2, 1, 1]}), "ctr", code.INVALID_ARGUMENT, "wanted is [rows]"),
        (change(C3={"name": "C4"}), "ctr", code.INVALID_ARGUMENT, "stands twice"),
        (change(C3={"name": "Z"}), "ctr", code.INVALID_ARGUMENT, "no such field"),
        ({**change(), "inputs": change()["inputs"][1:]}, "ctr", code.INVALID_ARGUMENT, "'I1': it is missing"),
        ({**change(), "raw_input_contents": [b"x"]}, "ctr", code.INVALID_ARGUMENT, "one for each"),
        ({"inputs": []}, "ctr", code.INVALID_ARGUMENT, "no inputs"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            stub("ModelInfer", model_name=name, **fields)
        assert (refused.value.code(), words in refused.value.details()) == (status, True), refused.value.details()
    assert len(stub("ModelInfer", model_name="ctr", **stub.tensors(rows)).outputs) == 1


def test_allow_extra_and_allow_missing_hold_as_for_json(trained):
    """An input of any type that the model does not have; fields of the model that are not there."""
    rows = trained.rows[:5]
    options = ("--grpc-port", "0", "--allow-extra", "--allow-missing")
    with serving(trained.bundles[0], *options) as server, calls_of(server) as call:
        tensor, contents = call.types["InferTensor"], call.types["InferTensorContents"]
        more = [
            tensor(name="n", datatype="FP32", shape=[5], contents=contents(fp32_contents=[0.5] * 5)),
            tensor(name="k", datatype="INT64", shape=[5, 2], contents=contents(int64_contents=range(10))),
            tensor(name="b", datatype="BOOL", shape=[5], contents=contents(bool_contents=[True] * 5)),
            tensor(name="t", datatype="BYTES", shape=[5], contents=contents(bytes_contents=[b"x"] * 5)),
        ]
        given = call.tensors(rows)["inputs"]
        few = [one for one in given if one.name not in ("I1", "C3")]
        for inputs, alike in (
            ([more[0], *given, *more[1:]], rows),
            ([*few, *more], [{name: row[name] for name in NAMES if name not in ("I1", "C3")} for row in rows]),
            (more, [{}] * 5),
        ):
            answer = call("ModelInfer", model_name="model", inputs=inputs)
            want = server.post("/v1/predict", {"rows": alike}).json()["scores"]
            np.testing.assert_allclose(np.frombuffer(answer.raw_output_contents[0], "<f4"), want, atol=1e-6)
        with pytest.raises(grpc.RpcError, match="the inputs before it have 5"):
            call("ModelInfer", model_name="model", inputs=[*given, tensor(name="n", datatype="FP32", shape=[4])])


def test_labels_beside_the_fields_are_left_out_of_account(trained, stub):
    """As in JSON, without a flag: clients may send a line of the log as it is."""
    tensor, contents = stub.types["InferTensor"], stub.types["InferTensorContents"]
    inputs = stub.tensors(trained.rows[:2])["inputs"]
    label = Predictor(trained.bundles[0]).bundle.schema.label
    inputs.append(tensor(name=label, datatype="FP32", shape=[2], contents=contents(fp32_contents=[0, 1])))
    answer = stub("ModelInfer", model_name="ctr", inputs=inputs)
    want = Predictor(trained.bundles[0]).predict(trained.rows[:2])
    np.testing.assert_allclose(np.frombuffer(answer.raw_output_contents[0], "<f4"), want, atol=1e-6)


@pytest.mark.slow
def test_tokens(trained):
    with serving(trained.bundles[0], "--grpc-port", "0", env={"SPARSEFLEET_PREDICT_TOKEN": "s3same"}) as server:
        from sparsefleet.serving.kserve.messages import SERVICE, messages

        types = messages()
        with grpc.insecure_channel(server.about["grpc"]) as channel:
            asked, answered = types["ModelMetadataRequest"], types["ModelMetadataResponse"]
            ask = channel.unary_unary(f"/{SERVICE}/ModelMetadata", asked.SerializeToString, answered.FromString)
            with pytest.raises(grpc.RpcError) as refused:
                ask(asked(name="model"), timeout=20)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            found = ask(asked(name="model"), timeout=20, metadata=(("authorization", "Bearer s3same"),))
            assert found.name == "model"
        assert server.terminate() == 0


@pytest.mark.slow
def test_tls(trained, tmp_path):
    certificate, key = certificate_and_key(tmp_path)
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    known = grpc.ssl_channel_credentials(certificate.read_bytes())
    with serving(trained.bundles[0], "--grpc-port", "0", *tls) as server:
        with calls_of(server, known) as call:
            answer = call("ModelInfer", model_name="model", **call.tensors(trained.rows[:9]))
            scores = np.frombuffer(answer.raw_output_contents[0], "<f4")
            np.testing.assert_allclose(scores, Predictor(trained.bundles[0]).predict(trained.rows[:9]), atol=1e-6)
        for other in (None, grpc.ssl_channel_credentials()):  # in plain text; and one who does not know the certificate
            with calls_of(server, other) as call, pytest.raises(grpc.RpcError) as refused:
                call("ServerLive")
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_version_that_is_asked_for_answers_and_no_other(trained):
    expected = {path.name: Predictor(path).predict(trained.rows[:2]) for path in trained.bundles[:2]}
    canary = ("--canary", str(trained.bundles[1]), "--canary-share", "0.5")
    with serving(trained.bundles[0], "--grpc-port", "0", *canary) as server, calls_of(server) as call:
        asked = {"model_name": "model", **call.tensors(trained.rows[:2])}
        for version in ("v1", "v2"):
            for _ in range(10):
                answer = call("ModelInfer", model_version=version, **asked)
                assert answer.model_version == version
                scores = np.frombuffer(answer.raw_output_contents[0], "<f4")
                np.testing.assert_allclose(scores, expected[version], atol=1e-6)
            assert call("ModelReady", name="model", version=version).ready
        assert {call("ModelInfer", **asked).model_version for _ in range(40)} == {"v1", "v2"}
        assert list(call("ModelMetadata", name="model").versions) == ["v1", "v2"]
        with pytest.raises(grpc.RpcError) as refused:
            call("ModelInfer", model_version="v3", **asked)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "these do: v1, v2" in refused.value.details()


def test_what_is_asked_over_grpc_is_counted_and_the_shadow_scores_along(trained):
    shadow = ("--shadow", str(trained.bundles[2]))
    with serving(trained.bundles[0], "--grpc-port", "0", *shadow) as server, calls_of(server) as call:

        def told(name):
            found = re.search(rf"^sparsefleet_{name} (\S+)$", server.client.get("/metrics").text, re.M)
            return float(found[1]) if found else 0.0

        call("ModelInfer", model_name="model", **call.tensors(trained.rows[:7]))
        with pytest.raises(grpc.RpcError):
            call("ModelInfer", model_name="model", inputs=[])
        path = "/inference.GRPCInferenceService/ModelInfer"
        for status in (200, 400):
            name = f'requests_total{{path="{path}",status="{status}"}}'
            wait_until(lambda name=name: told(re.escape(name)) == 1, 20, name)
        assert told("predict_seconds_count") == 2
        wait_until(lambda: told(r"shadow_rows_total\S*") + told("shadow_skipped_rows_total") == 7, 20, "the shadow")


@pytest.mark.slow
def test_requests_are_taken_for_a_while_after_sigterm(trained):
    """It says that it is not ready, and lingers for all of its time."""
    options = ("--grpc-port", "0", "--linger", "60")
    with serving(trained.bundles[0], *options) as server, calls_of(server) as call:
        asked = {"model_name": "model", **call.tensors(trained.rows[:1])}
        call("ModelInfer", **asked)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not call("ServerReady").ready, 20, "the server to say that it ends")
        assert call("ModelInfer", **asked).model_version == "v1"
        server.process.send_signal(signal.SIGINT)  # waits no longer
        server.process.wait(timeout=20)


def test_tritons_client_scores_the_readmes_rows(trained, server):
    triton = pytest.importorskip("tritonclient.grpc", reason="no tritonclient: pip install 'tritonclient[grpc]'")
    rows = json.loads(README_ROWS.read_text())["rows"]
    with triton.InferenceServerClient(server.about["grpc"]) as client:
        assert client.is_server_live()
        assert client.is_model_ready("ctr")
        inputs = []
        for name in NAMES:
            dense = name.startswith("I")
            values = [row[name] for row in rows]
            made = triton.InferInput(name, [len(rows)], "FP32" if dense else "BYTES")
            if dense:
                made.set_data_from_numpy(np.array([np.nan if v is None else v for v in values], np.float32))
            else:
                made.set_data_from_numpy(np.array(["" if v is None else str(v) for v in values], object))
            inputs.append(made)
        scores = client.infer("ctr", inputs, request_id="7").as_numpy("scores")
    want = server.post("/v1/predict", {"rows": rows}).json()["scores"]
    np.testing.assert_allclose(scores, want, atol=1e-6)
