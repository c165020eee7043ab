"""The messages of the KServe v2 protocol, from the fields that its grpc_predict_v2.proto gives them.

Made when they are first needed, so that neither a compiler of .proto files nor a generated file is part of the tree.
"""

from __future__ import annotations

from functools import cache
from typing import Any

PACKAGE = "inference"
SERVICE = "inference.GRPCInferenceService"

# Message: fields, each a name, its number and its type. A type with a dot before it is a message; * is repeated; and
# "parameters" is the map of parameters that most messages have.
MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": (("live", 1, "bool"),),
    "ServerReadyRequest": (),
    "ServerReadyResponse": (("ready", 1, "bool"),),
    "ModelReadyRequest": (("name", 1, "string"), ("version", 2, "string")),
    "ModelReadyResponse": (("ready", 1, "bool"),),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (("name", 1, "string"), ("version", 2, "string"), ("extensions", 3, "*string")),
    "ModelMetadataRequest": (("name", 1, "string"), ("version", 2, "string")),
    "TensorMetadata": (("name", 1, "string"), ("datatype", 2, "string"), ("shape", 3, "*int64")),
    "ModelMetadataResponse": (
        ("name", 1, "string"),
        ("versions", 2, "*string"),
        ("platform", 3, "string"),
        ("inputs", 4, "*.TensorMetadata"),
        ("outputs", 5, "*.TensorMetadata"),
    ),
    "InferParameter": (
        ("bool_param", 1, "bool"),
        ("int64_param", 2, "int64"),
        ("string_param", 3, "string"),
        ("double_param", 4, "double"),
        ("uint64_param", 5, "uint64"),
    ),
    "InferTensorContents": (
        ("bool_contents", 1, "*bool"),
        ("int_contents", 2, "*int32"),
        ("int64_contents", 3, "*int64"),
        ("uint_contents", 4, "*uint32"),
        ("uint64_contents", 5, "*uint64"),
        ("fp32_contents", 6, "*float"),
        ("fp64_contents", 7, "*double"),
        ("bytes_contents", 8, "*bytes"),
    ),
    "InferTensor": (
        ("name", 1, "string"),
        ("datatype", 2, "string"),
        ("shape", 3, "*int64"),
        ("parameters", 4, "parameters"),
        ("contents", 5, ".InferTensorContents"),
    ),
    "InferRequestedOutputTensor": (("name", 1, "string"), ("parameters", 2, "parameters")),
    "ModelInferRequest": (
        ("model_name", 1, "string"),
        ("model_version", 2, "string"),
        ("id", 3, "string"),
        ("parameters", 4, "parameters"),
        ("inputs", 5, "*.InferTensor"),
        ("outputs", 6, "*.InferRequestedOutputTensor"),
        ("raw_input_contents", 7, "*bytes"),
    ),
    "ModelInferResponse": (
        ("model_name", 1, "string"),
        ("model_version", 2, "string"),
        ("id", 3, "string"),
        ("parameters", 4, "parameters"),
        ("outputs", 5, "*.InferTensor"),
        ("raw_output_contents", 6, "*bytes"),
    ),
}
"""Names of messages do not travel, so tensors of requests and answers, which have the same fields, are one here."""

METHODS = {
    "ServerLive": ("ServerLiveRequest", "ServerLiveResponse"),
    "ServerReady": ("ServerReadyRequest", "ServerReadyResponse"),
    "ModelReady": ("ModelReadyRequest", "ModelReadyResponse"),
    "ServerMetadata": ("ServerMetadataRequest", "ServerMetadataResponse"),
    "ModelMetadata": ("ModelMetadataRequest", "ModelMetadataResponse"),
    "ModelInfer": ("ModelInferRequest", "ModelInferResponse"),
}


@cache
def messages() -> dict[str, Any]:
    """Classes by name. They stand in a pool of their own: a client's generated ones may be in the same process."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="sparsefleet_kserve_v2.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "InferParameter":
            message.oneof_decl.add(name="parameter_choice")
        for field_name, number, kind in fields:
            field = message.field.add(name=field_name, number=number, label=field_type.LABEL_OPTIONAL)
            if name == "InferParameter":
                field.oneof_index = 0
            if kind == "parameters":
                entry = message.nested_type.add(name="ParametersEntry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=field_type.LABEL_OPTIONAL, type=field_type.TYPE_STRING)
                value = entry.field.add(name="value", number=2, label=field_type.LABEL_OPTIONAL)
                value.type, value.type_name = field_type.TYPE_MESSAGE, f".{PACKAGE}.InferParameter"
                field.label, field.type = field_type.LABEL_REPEATED, field_type.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{name}.ParametersEntry"
                continue
            if kind.startswith("*"):
                field.label, kind = field_type.LABEL_REPEATED, kind[1:]
            if kind.startswith("."):
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".{PACKAGE}{kind}"
            else:
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}
