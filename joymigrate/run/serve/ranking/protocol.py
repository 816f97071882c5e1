"""The messages of the published KServe v2 gRPC protocol, in a descriptor pool of their own.

Names and field numbers are those of `grpc_predict_v2.proto` (KServe, Open Inference Protocol);
a client's stubs of the same package can live in the same process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
METHODS = (
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"),
    *("RepositoryIndex", "ModelConfig", "ModelStatistics"),
)
STREAM = "ModelStreamInfer"  # Triton's: many ModelInferRequests on one call
# message → "type name number"; `*` is repeated, `map` a map from texts to InferParameter.
TENSOR = "string name 1; string datatype 2; *int64 shape 3"
FULL = f"{TENSOR}; map parameters 4; InferTensorContents contents 5"
MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready 1",
    "ModelReadyRequest": "string name 1; string version 2",
    "ModelReadyResponse": "bool ready 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name 1; string version 2; *string extensions 3",
    "ModelMetadataRequest": "string name 1; string version 2",
    "ModelMetadataResponse.TensorMetadata": TENSOR,
    "ModelMetadataResponse": "string name 1; *string versions 2; string platform 3; "
    "*ModelMetadataResponse.TensorMetadata inputs 4; "
    "*ModelMetadataResponse.TensorMetadata outputs 5",
    "InferParameter": "bool bool_param 1; int64 int64_param 2; string string_param 3; "
    "double double_param 4; uint64 uint64_param 5",
    "InferTensorContents": "*bool bool_contents 1; *int32 int_contents 2; *int64 int64_contents 3; "
    "*uint32 uint_contents 4; *uint64 uint64_contents 5; *float fp32_contents 6; "
    "*double fp64_contents 7; *bytes bytes_contents 8",
    "ModelInferRequest.InferInputTensor": FULL,
    "ModelInferRequest.InferRequestedOutputTensor": "string name 1; map parameters 2",
    "ModelInferRequest": "string model_name 1; string model_version 2; string id 3; "
    "map parameters 4; *ModelInferRequest.InferInputTensor inputs 5; "
    "*ModelInferRequest.InferRequestedOutputTensor outputs 6; *bytes raw_input_contents 7",
    "ModelInferResponse.InferOutputTensor": FULL,
    "ModelInferResponse": "string model_name 1; string model_version 2; string id 3; "
    "map parameters 4; *ModelInferResponse.InferOutputTensor outputs 5; "
    "*bytes raw_output_contents 6",
    "ModelStreamInferResponse": "string error_message 1; ModelInferResponse infer_response 2",
    "RepositoryIndexRequest": "string repository_name 1; bool ready 2",
    "RepositoryIndexResponse.ModelIndex": "string name 1; string version 2; string state 3; "
    "string reason 4",
    "RepositoryIndexResponse": "*RepositoryIndexResponse.ModelIndex models 1",
    # Triton's statistics and configuration (of this what a client reads; enums as their numbers)
    "StatisticDuration": "uint64 count 1; uint64 ns 2",
    "InferStatistics": "StatisticDuration success 1; StatisticDuration fail 2; "
    "StatisticDuration queue 3; StatisticDuration compute_input 4; "
    "StatisticDuration compute_infer 5; StatisticDuration compute_output 6",
    "InferBatchStatistics": "uint64 batch_size 1; StatisticDuration compute_infer 3",
    "ModelStatistics": "string name 1; string version 2; uint64 last_inference 3; "
    "uint64 inference_count 4; uint64 execution_count 5; InferStatistics inference_stats 6; "
    "*InferBatchStatistics batch_stats 7",
    "ModelStatisticsRequest": "string name 1; string version 2",
    "ModelStatisticsResponse": "*ModelStatistics model_stats 1",
    "ModelInput": "string name 1; int32 data_type 2; *int64 dims 4; bool optional 8",
    "ModelOutput": "string name 1; int32 data_type 2; *int64 dims 3",
    "ModelConfig": "string name 1; string platform 2; int32 max_batch_size 4; "
    "*ModelInput input 5; *ModelOutput output 6; string backend 17",
    "ModelConfigRequest": "string name 1; string version 2",
    "ModelConfigResponse": "ModelConfig config 1",
}
ONE_OF = {"InferParameter": "parameter_choice"}


@cache
def messages() -> dict[str, Any]:
    """Message classes by name."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(description().SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


def description() -> Any:
    """The file descriptor that a protocol compiler would write."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="joymigrate/kserve_v2.proto", package=PACKAGE, syntax="proto3"
    )
    made: dict[str, Any] = {}
    for name in sorted(MESSAGES, key=lambda name: name.count(".")):
        outer, _, inner = name.rpartition(".")
        made[name] = (made[outer].nested_type if outer else file.message_type).add(name=inner)
    for name, row in MESSAGES.items():
        message = made[name]
        if name in ONE_OF:
            message.oneof_decl.add(name=ONE_OF[name])
        for text in filter(None, row.split("; ")):
            add_field(message, name, text)
    return file


def add_field(message: Any, owner: str, text: str) -> None:
    """One field of `type name number`."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    kind, name, number = text.split()
    repeated = kind.startswith("*") or kind == "map"
    field = message.field.add(
        name=name,
        number=int(number),
        label=Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL,
    )
    kind = kind.lstrip("*")
    if kind == "map":
        entry = message.nested_type.add(name="ParametersEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
        entry.field.add(
            name="value", number=2, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL,
            type_name=f".{PACKAGE}.InferParameter",
        )  # fmt: skip
        kind = f"{owner}.ParametersEntry"
    plain = getattr(Field, f"TYPE_{kind.upper()}", None)
    if plain is None:
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = plain
    if owner in ONE_OF:
        field.oneof_index = 0
