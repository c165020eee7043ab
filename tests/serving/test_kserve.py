"""gRPC with the KServe v2 protocol: a client of the protocol's own fields, and Triton's where it is installed."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from bundle_fixtures import NAMES
from http_server import serving

from sparsefleet.serving import Predictor

grpc = pytest.importorskip("grpc", reason="no grpcio: pip install 'sparsefleet[grpc]'")
README_ROWS = Path(__file__).parents[2] / "examples" / "rows.json"


@pytest.fixture(scope="module")
def server(trained):
    with serving(trained.bundles[0], "--grpc-port", "0", "--model-name", "ctr") as running:
        yield running


@pytest.fixture(scope="module")
def stub(server):
    from sparsefleet.serving.kserve.messages import METHODS, SERVICE, messages

    types = messages()
    with grpc.insecure_channel(server.about["grpc"]) as channel:

        def call(method, metadata=(), timeout=20, **fields):
            asked, answered = (types[name] for name in METHODS[method])
            ask = channel.unary_unary(f"/{SERVICE}/{method}", asked.SerializeToString, answered.FromString)
            return ask(asked(**fields), timeout=timeout, metadata=metadata)

        call.types = types
        yield call


def tensors(stub, rows, raw=False):
    """One tensor a field."""
    tensor, contents = stub.types["InferTensor"], stub.types["InferTensorContents"]
    inputs, raws = [], []
    for name in NAMES:
        values = [row[name] for row in rows]
        dense = name.startswith("I")
        if dense:
            numbers = np.array([np.nan if value is None else value for value in values], np.float32)
            held, data = contents(fp32_contents=numbers.tolist()), numbers.tobytes()
        else:
            texts = [str(value).encode() for value in values]
            held = contents(bytes_contents=texts)
            data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        made = tensor(name=name, datatype="FP32" if dense else "BYTES", shape=[len(rows)])
        if not raw:
            made.contents.CopyFrom(held)
        inputs.append(made)
        raws.append(data)
    return {"inputs": inputs, "raw_input_contents": raws if raw else []}


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("count", [1, 300])
def test_scores_are_those_of_the_bundle(trained, stub, raw, count):
    rows = trained.rows[:count]
    answer = stub("ModelInfer", model_name="ctr", id="r-1", **tensors(stub, rows, raw))
    (output,) = answer.outputs
    assert (answer.model_version, answer.id, output.name, list(output.shape)) == ("v1", "r-1", "scores", [count])
    scores = np.frombuffer(answer.raw_output_contents[0], "<f4")
    np.testing.assert_allclose(scores, Predictor(trained.bundles[0]).predict(rows), atol=1e-6)


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
        fields = tensors(stub, rows)
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
    assert len(stub("ModelInfer", model_name="ctr", **tensors(stub, rows)).outputs) == 1


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
