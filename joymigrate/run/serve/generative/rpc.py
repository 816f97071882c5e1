"""A generative recommender over gRPC: what KServe's protocol asks of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as kserve

from joymigrate import __version__
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.generative.service import (
    PLATFORM,
    GenerativeService,
    describe,
    read_arrays,
    read_wanted,
)
from joymigrate.run.serve.ranking.rpc import INFER, Call, read_inputs
from joymigrate.run.serve.ranking.wire import NAMES
from joymigrate.run.serve.web.errors import HttpRefusal


async def live(service: GenerativeService, message: Any, context: Any) -> Any:
    """ServerLive."""
    return kserve.ServerLiveResponse(live=service.works)


async def ready(service: GenerativeService, message: Any, context: Any) -> Any:
    """ServerReady."""
    return kserve.ServerReadyResponse(ready=service.works and not service.draining)


async def model_ready(service: GenerativeService, message: Any, context: Any) -> Any:
    """ModelReady."""
    service.check_model(message.name)
    return kserve.ModelReadyResponse(ready=service.works and not service.draining)


async def metadata(service: GenerativeService, message: Any, context: Any) -> Any:
    """ServerMetadata."""
    return kserve.ServerMetadataResponse(name="joymigrate", version=__version__)


async def model_metadata(service: GenerativeService, message: Any, context: Any) -> Any:
    """ModelMetadata."""
    found = describe(service, service.check_model(message.name))
    keys = ("name", "datatype", "shape")
    rows = {side: [{key: one[key] for key in keys} for one in found[side]]
            for side in ("inputs", "outputs")}  # fmt: skip
    return kserve.ModelMetadataResponse(
        name=message.name, versions=found["versions"], platform=PLATFORM, **rows
    )


async def index(service: GenerativeService, message: Any, context: Any) -> Any:
    """RepositoryIndex."""
    rows = [{"name": name, "version": "1", "state": "READY"} for name in service.names]
    return kserve.RepositoryIndexResponse(models=rows)


async def infer(service: GenerativeService, message: Any, context: Any) -> Any:
    """ModelInfer; `n`, `beam_width` and `top_k` are parameters."""
    name = service.check_model(message.model_name)
    parameters = {
        key: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
        for key, value in message.parameters.items()
    }
    fields = Fields(parameters, "parameters.")
    wanted = read_wanted(service, fields)
    fields.close()
    known = ("item", "score")
    asked = [one.name for one in message.outputs] or list(known)
    for one in asked:
        if one not in known:
            raise HttpRefusal(400, f"the model has no output '{one}', only {', '.join(known)}")
    found = await service.rank(*read_arrays(read_inputs(message), wanted))
    arrays: dict[str, Any] = {
        "item": np.array(found.items, np.int64),
        "score": np.array(found.scores, np.float32),
    }
    answer = kserve.ModelInferResponse(model_name=name, model_version="1", id=message.id)
    for one in asked:
        array = arrays[one]
        answer.outputs.add(name=one, datatype=NAMES[array.dtype.name], shape=array.shape)
        answer.raw_output_contents.append(array.tobytes())
    return answer


CALLS: dict[str, Call] = {
    "ServerLive": live,
    "ServerReady": ready,
    "ModelReady": model_ready,
    "ServerMetadata": metadata,
    "ModelMetadata": model_metadata,
    "RepositoryIndex": index,
    INFER: infer,
}
