"""What there is: server, model, configuration, readiness, statistics, repository."""

from __future__ import annotations

from typing import Any

from joymigrate import __version__
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.monitor.metrics import Histogram
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Ask, Reply, data

VERSION = "1"
PLATFORM = "joymigrate"
# name, datatype, shape; the first one must be there, the others may
INPUTS = (
    ("text_input", "BYTES", [1]),
    ("max_tokens", "INT32", [1]),
    ("temperature", "FP32", [1]),
    ("top_k", "INT32", [1]),
    ("top_p", "FP32", [1]),
    ("min_p", "FP32", [1]),
    ("min_tokens", "INT32", [1]),
    ("repetition_penalty", "FP32", [1]),
    ("presence_penalty", "FP32", [1]),
    ("frequency_penalty", "FP32", [1]),
    ("seed", "INT64", [1]),
    ("stop", "BYTES", [-1]),
    ("ignore_eos", "BOOL", [1]),
    ("exclude_input_in_output", "BOOL", [1]),
    ("sampling_parameters", "BYTES", [1]),
    ("stream", "BOOL", [1]),
)
# the first one always comes, the others when they are asked for
OUTPUTS = (
    ("text_output", "BYTES", [1]),
    ("finish_reason", "BYTES", [1]),
    ("num_input_tokens", "UINT32", [1]),
    ("num_output_tokens", "UINT32", [1]),
)
EXTENSIONS = [
    "model_repository",
    "model_configuration",
    "statistics",
    "binary_tensor_data",
    "generate",
]


def check(service: EngineService, model: str, version: str | None) -> None:
    """Refuse a model or version that is not there."""
    if model not in service.names:
        raise HttpRefusal(404, f"unknown model: '{model}' is not found", code="model_not_found")
    if version not in (None, VERSION):
        raise HttpRefusal(
            404, f"unknown model: '{model}' has no version '{version}', only {VERSION}"
        )


async def server(service: EngineService, ask: Ask) -> Reply:
    """GET /v2."""
    return data({"name": "joymigrate", "version": __version__, "extensions": EXTENSIONS})


async def live(service: EngineService, ask: Ask) -> Reply:
    """GET /v2/health/live."""
    return Reply(200)


async def ready(service: EngineService, ask: Ask) -> Reply:
    """GET /v2/health/ready."""
    trouble = service.trouble()
    if trouble is not None:
        raise HttpRefusal(503, trouble)
    return Reply(200)


async def model_ready(service: EngineService, ask: Ask, model: str, version: str | None) -> Reply:
    """GET /v2/models/M/ready."""
    check(service, model, version)
    return await ready(service, ask)


async def model(service: EngineService, ask: Ask, model: str, version: str | None) -> Reply:
    """GET /v2/models/M."""
    check(service, model, version)
    return data(describe_model(model))


def describe_model(model: str) -> dict[str, Any]:
    """Names, types and shapes of what goes in and out."""
    return {
        "name": model,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": n, "datatype": t, "shape": s} for n, t, s in INPUTS],
        "outputs": [{"name": n, "datatype": t, "shape": s} for n, t, s in OUTPUTS],
    }


async def config(service: EngineService, ask: Ask, model: str, version: str | None) -> Reply:
    """GET /v2/models/M/config."""
    check(service, model, version)
    info = service.info

    def kind(datatype: str) -> str:
        return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"

    said = {
        "max_model_len": str(info.max_model_len),
        "dtype": info.dtype,
        "device": info.device,
        "attention": info.attention,
        "quantisation": info.quantisation or "none",
    }
    return data(
        {
            "name": model,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "max_batch_size": 0,
            "input": [
                {"name": n, "data_type": kind(t), "dims": s, "optional": place > 0}
                for place, (n, t, s) in enumerate(INPUTS)
            ],
            "output": [{"name": n, "data_type": kind(t), "dims": s} for n, t, s in OUTPUTS],
            "model_transaction_policy": {"decoupled": True},
            "instance_group": [{"name": f"{model}_0", "count": 1}],
            "version_policy": {"latest": {"num_versions": 1}},
            "parameters": {key: {"string_value": value} for key, value in said.items()},
        }
    )


async def index(service: EngineService, ask: Ask) -> Reply:
    """POST /v2/repository/index."""
    only_ready = bool(ask.json().get("ready")) if ask.body else False
    trouble = service.trouble()
    if trouble is not None and only_ready:
        return data([])
    state = "READY" if trouble is None else "UNAVAILABLE"
    row = {"name": service.name, "version": VERSION, "state": state, "reason": trouble or ""}
    return data([row])


async def load(service: EngineService, ask: Ask, model: str, what: str) -> Reply:
    """POST /v2/repository/models/M/load|unload: one process serves one model for its life."""
    check(service, model, None)
    if what == "load" and service.trouble() is None:
        return data({})
    raise HttpRefusal(400, f"'{model}' lives as long as this server; {what} is not supported")


async def stats(
    service: EngineService, ask: Ask, model: str | None = None, version: str | None = None
) -> Reply:
    """GET /v2/models[/M]/stats, since the start."""
    check(service, model or service.name, version)
    meters, engine = service.meters, service.engine.stats()
    failed = sum(
        int(n) for reason, n in engine.finished.items() if reason not in ("stop", "length")
    )
    nothing = {"count": 0, "ns": 0}
    row = {
        "name": model or service.name,
        "version": VERSION,
        "last_inference": service.last_ms,
        "inference_count": int(sum(engine.finished.values())) - failed,
        "execution_count": engine.steps,
        "inference_stats": {
            "success": duration(meters.seconds),
            "fail": {"count": failed, "ns": 0},
            "queue": duration(meters.ttft),
            "compute_input": nothing,
            "compute_infer": duration(meters.seconds),
            "compute_output": nothing,
            "cache_hit": {"count": engine.prefix_hits, "ns": 0},
            "cache_miss": {"count": engine.prefix_queries - engine.prefix_hits, "ns": 0},
        },
        "batch_stats": [],
    }
    return data({"model_stats": [row]})


def duration(histogram: Histogram) -> dict[str, Any]:
    """Count and sum of a histogram as Triton says them."""
    return {"count": histogram.total, "ns": int(histogram.sum * 1e9)}
