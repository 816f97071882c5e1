"""The same service over gRPC: KServe's GRPCInferenceService in the server's own event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as kserve
from tritonclient.grpc import service_pb2_grpc

from joymigrate import __version__
from joymigrate.errors import JoyError
from joymigrate.run.serve.kserve import tensors
from joymigrate.run.serve.kserve.protocol import InferRequest, KserveService
from joymigrate.run.serve.web import tls
from joymigrate.run.serve.web.answering import refusal_from
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Ask
from joymigrate.run.serve.web.tls import Tls

INFER = "ModelInfer"
STREAMED = 64  # requests of one stream that run at the same time
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}  # fmt: skip
Call = Callable[[Any, Any, Any], Awaitable[Any]]  # service, message, context


async def start(
    service: KserveService, host: str, port: int, secured: Tls | None = None
) -> tuple[Any, int]:
    """Listen; returns the server and its port. Raises `JoyError` when the address is taken."""
    size = service.limits.body_bytes
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
    )
    stubs: Any = service_pb2_grpc.GRPCInferenceServiceServicer()
    for name, call in CALLS.items():
        setattr(stubs, name, answering(service, call, work=name == INFER))
    stubs.ModelStreamInfer = streaming(service, infer)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(stubs, server)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if secured is None:
            bound = server.add_insecure_port(where)
        else:
            bound = server.add_secure_port(where, credentials(secured))
    except RuntimeError:
        bound = 0
    if not bound:
        raise JoyError(f"cannot listen on {where} for gRPC",
                       help="choose another one with --grpc-port, or stop what uses it",
                       )  # fmt: skip
    await server.start()
    return server, bound


def credentials(secured: Tls) -> Any:
    """The certificate to listen with; with a CA, clients need one of its certificates."""
    tls.of_server(secured)  # words what is wrong with the files
    if secured.certificate is None:
        raise JoyError("TLS needs a certificate")
    chain = secured.certificate.read_bytes()
    key = (secured.key or secured.certificate).read_bytes()
    authority = secured.ca.read_bytes() if secured.ca is not None else None
    return grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=authority, require_client_auth=authority is not None
    )


def streaming(service: KserveService, call: Call) -> Callable[[Any, Any], AsyncIterator[Any]]:
    """ModelStreamInfer, which is Triton's: requests of one call run at the same time, answers keep
    their order."""

    async def handler(messages: Any, context: Any) -> AsyncIterator[Any]:
        try:
            service.keys.check("/v2/infer", headers(context))
        except HttpRefusal as refusal:
            await context.abort(CODES.get(refusal.status, grpc.StatusCode.INTERNAL),
                                refusal.message)  # fmt: skip
        running: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(STREAMED)

        async def read() -> None:
            async for message in messages:
                await running.put(
                    asyncio.create_task(one_of_stream(service, call, message, context))
                )
            await running.put(None)

        reader = asyncio.create_task(read())
        task: asyncio.Task[Any] | None = None
        try:
            while (task := await running.get()) is not None:
                yield await task
        finally:  # the client went away: what still waits is taken back
            reader.cancel()
            while task is not None:
                task.cancel()
                task = running.get_nowait() if not running.empty() else None

    return handler


async def one_of_stream(service: KserveService, call: Call, message: Any, context: Any) -> Any:
    """One request of a stream; a refusal is an answer with an error."""
    began, status = time.perf_counter(), 200
    made = kserve.ModelStreamInferResponse()
    try:
        made.infer_response.CopyFrom(await call(service, message, context))
    except Exception as error:
        refusal = refusal_from(error, "a gRPC request failed")
        status = refusal.status
        made.error_message = refusal.message
        made.infer_response.id = message.id
    service.count(status, time.perf_counter() - began, False)
    return made


def answering(
    service: KserveService, call: Call, *, work: bool
) -> Callable[[Any, Any], Awaitable[Any]]:
    """A handler that words refusals as gRPC does and counts what became of requests."""

    async def handler(message: Any, context: Any) -> Any:
        began, status, gone = time.perf_counter(), 200, True
        try:
            if work:
                service.keys.check("/v2/infer", headers(context))
            answer = await call(service, message, context)
            gone = False
            return answer
        except Exception as error:
            gone = False
            refusal = refusal_from(error, "a gRPC request failed")
            status = refusal.status
            code = CODES.get(status, grpc.StatusCode.INTERNAL)
            await context.abort(code, refusal.message)
        finally:
            service.count(status, time.perf_counter() - began, gone, work)

    return handler


def headers(context: Any) -> dict[str, str]:
    """The metadata as headers, for the key."""
    found = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
    return {
        "Authorization": found.get("authorization", ""),
        "X-Api-Key": found.get("x-api-key", ""),
    }


async def live(service: KserveService, message: Any, context: Any) -> Any:
    """ServerLive."""
    return kserve.ServerLiveResponse(live=service.lives())


async def ready(service: KserveService, message: Any, context: Any) -> Any:
    """ServerReady."""
    return kserve.ServerReadyResponse(ready=service.trouble() is None)


async def model_ready(service: KserveService, message: Any, context: Any) -> Any:
    """ModelReady."""
    service.check_model(message.name, message.version)
    return kserve.ModelReadyResponse(ready=service.trouble() is None)


async def metadata(service: KserveService, message: Any, context: Any) -> Any:
    """ServerMetadata."""
    return kserve.ServerMetadataResponse(
        name="joymigrate", version=__version__, extensions=service.extensions
    )


async def model_metadata(service: KserveService, message: Any, context: Any) -> Any:
    """ModelMetadata."""
    found = service.describe(service.check_model(message.name, message.version))
    for row in (*found["inputs"], *found["outputs"]):
        row.pop("parameters", None)
    return kserve.ModelMetadataResponse(**found)


async def model_config(service: KserveService, message: Any, context: Any) -> Any:
    """ModelConfig."""
    found = service.configure(service.check_model(message.name, message.version))
    return kserve.ModelConfigResponse(config=found)


async def statistics(service: KserveService, message: Any, context: Any) -> Any:
    """ModelStatistics; without a name of the only model."""
    name = service.check_model(message.name or service.names[0], message.version)
    return kserve.ModelStatisticsResponse(**service.describe_statistics(name))


async def index(service: KserveService, message: Any, context: Any) -> Any:
    """RepositoryIndex."""
    return kserve.RepositoryIndexResponse(models=service.index())


async def infer(service: KserveService, message: Any, context: Any) -> Any:
    """ModelInfer."""
    name = service.check_model(message.model_name, message.model_version)
    parameters = {
        key: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
        for key, value in message.parameters.items()
    }
    wanted = service.choose([one.name for one in message.outputs])
    asked = InferRequest(
        name, read_inputs(message), parameters, wanted, Ask("POST", f"/v2/models/{name}/infer", {}),
        context.time_remaining(),
    )  # fmt: skip
    found = await service.infer(asked)
    answer = kserve.ModelInferResponse(model_name=name, model_version=found.version, id=message.id)
    for key, text in found.parameters.items():
        answer.parameters[key].string_param = text
    for one in wanted:
        array = found.outputs[one]
        answer.outputs.add(name=one, datatype=tensors.NAMES[array.dtype.name], shape=array.shape)
        answer.raw_output_contents.append(tensors.bytes_of(array))
    return answer


def read_inputs(message: Any) -> dict[str, tensors.Array]:
    """The arrays of a request: views of its raw bytes, or from typed contents."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise HttpRefusal(400, f"{len(message.inputs)} inputs, {len(raw)} raw contents")
    if not message.inputs:
        raise HttpRefusal(400, "inputs is a list of at least one tensor", param="inputs")
    found: dict[str, tensors.Array] = {}
    for place, one in enumerate(message.inputs):
        if one.name in found:
            raise tensors.refuse(one.name, "it is there twice")
        kind = tensors.kind_of(one.name, one.datatype)
        shape = tensors.shape_of(one.name, list(one.shape))
        if raw:
            if one.HasField("contents"):
                raise tensors.refuse(
                    one.name, "its values came twice, as raw bytes and as contents"
                )
            found[one.name] = tensors.from_bytes(one.name, kind, shape, raw[place],
                                               one.datatype)  # fmt: skip
            continue
        holder = CONTENTS.get(one.datatype)
        if holder is None:
            raise tensors.refuse(one.name, f"{one.datatype} comes as raw bytes")
        others = [field.name for field, _ in one.contents.ListFields() if field.name != holder]
        if others:
            raise tensors.refuse(
                one.name, f"{one.datatype} comes in {holder}, there is {', '.join(others)}"
            )
        values: list[Any] = list(getattr(one.contents, holder))
        if holder == "bytes_contents":
            values = [tensors.text_of(one.name, value) for value in values]
        found[one.name] = tensors.from_values(one.name, kind, shape, values)
    return found


CALLS: dict[str, Call] = {
    "ServerLive": live,
    "ServerReady": ready,
    "ModelReady": model_ready,
    "ServerMetadata": metadata,
    "ModelMetadata": model_metadata,
    "ModelInfer": infer,
    "RepositoryIndex": index,
    "ModelConfig": model_config,
    "ModelStatistics": statistics,
}
