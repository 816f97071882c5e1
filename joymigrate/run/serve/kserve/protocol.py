"""What a server of KServe's protocol says and takes, whatever its model: paths, words, tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from joymigrate import __version__
from joymigrate.run.serve.kserve import tensors
from joymigrate.run.serve.kserve.tensors import Array
from joymigrate.run.serve.web.answering import answer_request, log_request, outcome_of
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import Ask, Reply, data
from joymigrate.run.serve.web.paths import HttpRoute, PathTable

LENGTH = "Inference-Header-Content-Length"
M = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output. Optional inputs may be left out, optional outputs come when named."""

    name: str
    datatype: str
    shape: tuple[int, ...] = (1,)
    optional: bool = False
    role: str = ""  # told beside `optional` where there is one

    def describe(self) -> dict[str, Any]:
        """As metadata have it."""
        row = {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}
        told = {"role": self.role, "optional": self.optional}
        return {**row, "parameters": told} if self.role else row

    def configure(self) -> dict[str, Any]:
        """As the configuration has it."""
        kind = "STRING" if self.datatype == tensors.BYTES else self.datatype
        return {"name": self.name, "data_type": f"TYPE_{kind}", "dims": list(self.shape)}


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference. `seconds` are left to a gRPC call."""

    name: str
    arrays: dict[str, Array]
    parameters: dict[str, Any]
    wanted: tuple[str, ...]
    ask: Ask
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """The outputs that were wanted, and maybe others."""

    outputs: Mapping[str, Array]
    version: str = "1"
    parameters: Mapping[str, str] = field(default_factory=dict)


class KserveModel:
    """A model as the protocol sees it; its shapes hold all dimensions, also that of a batch."""

    platform: ClassVar[str] = "joymigrate"
    extensions: ClassVar[tuple[str, ...]] = (
        "binary_tensor_data", "model_repository", "model_configuration", "statistics"
    )  # fmt: skip
    names: tuple[str, ...]

    @property
    def version(self) -> str:
        return "1"

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        raise NotImplementedError

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        raise NotImplementedError

    def lives(self) -> bool:
        """Whether requests could be answered if they were taken."""
        return True

    def trouble(self) -> str | None:
        """Why requests are not taken now."""
        raise NotImplementedError

    async def infer(self, asked: InferRequest) -> InferAnswer:
        """Answer one request; raises `HttpRefusal`."""
        raise NotImplementedError

    def statistics(self) -> dict[str, Any]:
        """Counts and sums since the start, in Triton's words."""
        raise HttpRefusal(501, "this server keeps no statistics")

    def check_model(self, name: Any, version: Any = None) -> str:
        """The model's name; a model or a version that is not here is refused."""
        if name not in self.names:
            raise HttpRefusal(404, f"unknown model: '{name}'; this server has '{self.names[0]}'",
                              code="model_not_found", param="model")  # fmt: skip
        if version not in (None, "", self.version):
            raise HttpRefusal(404, f"unknown model: '{name}' has no version '{version}', "
                              f"only {self.version}", param="version")  # fmt: skip
        return str(name)

    def describe(self, name: str) -> dict[str, Any]:
        """Names, types and shapes of what goes in and out."""
        return {
            "name": name, "versions": [self.version], "platform": self.platform,
            "inputs": [one.describe() for one in self.inputs],
            "outputs": [one.describe() for one in self.outputs],
        }  # fmt: skip

    def configure(self, name: str) -> dict[str, Any]:
        """The configuration as Triton words it."""
        return {
            "name": name, "platform": self.platform, "backend": self.platform, "max_batch_size": 0,
            "input": [{**one.configure(), "optional": one.optional} for one in self.inputs],
            "output": [one.configure() for one in self.outputs],
        }  # fmt: skip

    def describe_statistics(self, name: str) -> dict[str, Any]:
        """The answer to a question for statistics."""
        row = {"name": name, "version": self.version, **self.statistics()}
        return {"model_stats": [row]}

    def index(self) -> list[dict[str, Any]]:
        """The repository: this model under all its names."""
        trouble = self.trouble()
        state = {"state": "UNAVAILABLE" if trouble else "READY", "reason": trouble or ""}
        return [{"name": name, "version": self.version, **state} for name in self.names]

    def choose(self, names: Sequence[Any]) -> tuple[str, ...]:
        """The outputs that a request names; those that always come where it names none."""
        known = [one.name for one in self.outputs]
        for place, name in enumerate(names):
            if name not in known:
                raise HttpRefusal(400, f"outputs[{place}]: unexpected inference output {name!r}, "
                                  f"there are {', '.join(known)}", param="outputs")  # fmt: skip
        return tuple(names) or tuple(one.name for one in self.outputs if not one.optional)


class KserveService(KserveModel):
    """A model with a server of its own (`Answering`), over HTTP and gRPC: keys, limits, counts."""

    limits: HttpLimits
    keys: Keys
    draining: bool

    def paths(self) -> PathTable:
        """What is answered."""
        raise NotImplementedError

    def tally(self, outcome: str, seconds: float) -> None:
        """Count a request that was work."""
        raise NotImplementedError

    def describe_start(self) -> Mapping[str, Any]:
        """What the log says of it beside its address."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop what stands behind it."""
        raise NotImplementedError

    async def answer(self, ask: Ask) -> Reply:
        """Answer a request; never raises but when it is cancelled."""

        async def route(asked: Ask) -> Reply:
            handler, parts = self.paths().find(asked.method, asked.path)
            return await handler(self, asked, **parts)

        return await answer_request(ask, self.keys, route)

    def record(self, ask: Ask, status: int, *, gone: bool = False) -> None:
        """Count a request; refusals and mistakes go to the log."""
        outcome = self.count(status, time.perf_counter() - ask.started, gone, ask.method != "GET")
        log_request(ask, status, outcome, quiet=outcome == "ok")

    def count(self, status: int, seconds: float, gone: bool, work: bool = True) -> str:
        """Count what became of a request."""
        outcome = outcome_of(status, gone=gone)
        if work:
            self.tally(outcome, seconds)
        return outcome


def statistics_row(
    last_ms: int, inferences: int, executions: int, sums: Mapping[str, tuple[int, float]]
) -> dict[str, Any]:
    """Statistics in Triton's words: `sums` are counts with seconds."""
    kinds = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    empty = dict.fromkeys(kinds, (0, 0.0))
    return {
        "last_inference": last_ms, "inference_count": inferences, "execution_count": executions,
        "inference_stats": {kind: {"count": count, "ns": int(1e9 * seconds)}
                            for kind, (count, seconds) in {**empty, **sums}.items()},
        "batch_stats": [],
    }  # fmt: skip


# Over HTTP


async def server(model: KserveModel, ask: Ask) -> Reply:
    """GET /v2."""
    return data({"name": "joymigrate", "version": __version__, "extensions": model.extensions})


async def live(model: KserveModel, ask: Ask) -> Reply:
    """GET /v2/health/live."""
    return Reply(200 if model.lives() else 503)


async def ready(
    model: KserveModel, ask: Ask, name: str | None = None, version: str | None = None
) -> Reply:
    """GET /v2/health/ready and /v2/models/M/ready."""
    if name is not None:
        model.check_model(name, version)
    trouble = model.trouble()
    if trouble is not None:
        raise HttpRefusal(503, trouble)
    return Reply(200)


async def describe(model: KserveModel, ask: Ask, name: str, version: str | None) -> Reply:
    """GET /v2/models/M."""
    model.check_model(name, version)
    return data(model.describe(name))


async def configure(model: KserveModel, ask: Ask, name: str, version: str | None) -> Reply:
    """GET /v2/models/M/config."""
    model.check_model(name, version)
    return data(model.configure(name))


async def statistics(
    model: KserveModel, ask: Ask, name: str = "", version: str | None = None
) -> Reply:
    """GET /v2/models[/M]/stats, since the start."""
    return data(model.describe_statistics(model.check_model(name or model.names[0], version)))


async def index(model: KserveModel, ask: Ask) -> Reply:
    """POST /v2/repository/index."""
    only_ready = bool(ask.json().get("ready")) if ask.body else False
    return data([row for row in model.index() if row["state"] == "READY" or not only_ready])


async def load(model: KserveModel, ask: Ask, name: str, what: str) -> Reply:
    """POST /v2/repository/models/M/load|unload: one process serves one model for its life."""
    model.check_model(name)
    if what == "load" and model.trouble() is None:
        return data({})
    raise HttpRefusal(400, f"'{name}' lives as long as this server; {what} is not supported")


async def infer(model: KserveModel, ask: Ask, name: str, version: str | None) -> Reply:
    """POST /v2/models/M/infer: tensors in, tensors out."""
    model.check_model(name, version)
    header, binary = tensors.header_of(ask.body, ask.headers.get(LENGTH))
    parameters = parameters_of(header, "parameters")
    called = header.get("id")
    if not isinstance(called, str | None):
        raise HttpRefusal(400, f"id is a text, got {called!r:.40}", param="id")
    default = bool(flag(parameters, "binary_data_output"))
    choices = outputs_of(header)
    wanted = model.choose(list(choices))
    arrays = tensors.read_inputs(header, binary)
    ask.notes["model"] = name
    found = await model.infer(InferRequest(name, arrays, parameters, wanted, ask))
    head: dict[str, Any] = {"model_name": name, "model_version": found.version}
    if called is not None:
        head["id"] = called
    if found.parameters:
        head["parameters"] = found.parameters
    raw = {one: default if choices.get(one) is None else bool(choices[one]) for one in wanted}
    body, size = tensors.write(head, {one: found.outputs[one] for one in wanted}, raw)
    if size is None:
        return Reply(200, body)
    return Reply(200, body, "application/octet-stream", {LENGTH: str(size)})


def outputs_of(header: Mapping[str, Any]) -> dict[Any, bool | None]:
    """The outputs that are named, and whether in binary (None: as the request says)."""
    raw = header.get("outputs") or []
    found: dict[Any, bool | None] = {}
    for place, one in enumerate(raw if isinstance(raw, list) else [raw]):
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise HttpRefusal(400, f"outputs[{place}] is an object with a name", param="outputs")
        parameters = parameters_of(one, f"outputs[{place}].parameters")
        if parameters.get("classification"):
            raise HttpRefusal(400, "classification is not supported", param="outputs")
        found[one["name"]] = flag(parameters, "binary_data")
    return found


def parameters_of(owner: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The parameters of a request or an output."""
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise HttpRefusal(400, f"{where} is an object, got {parameters!r:.40}", param=where)
    return dict(parameters)


def flag(parameters: dict[str, Any], name: str) -> bool | None:
    """Take out a parameter that is true or false; None where it is not there."""
    value = parameters.pop(name, None)
    if not isinstance(value, bool | None):
        raise HttpRefusal(400, f"{name} is true or false, got {value!r:.40}", param=name)
    return value


def kserve_routes(
    model_of: Callable[[Any], Any] = lambda service: service,
    more: Mapping[str, Callable[..., Any]] | None = None,
) -> tuple[HttpRoute, ...]:
    """The protocol's routes; `more` are a kind of model's own paths behind /v2/models/M."""

    def route(method: str, path: str, handler: Callable[..., Any]) -> HttpRoute:
        async def call(service: Any, ask: Ask, **parts: Any) -> Reply:
            reply: Reply = await handler(model_of(service), ask, **parts)
            return reply

        return HttpRoute(method, path, call)

    return (
        route("GET", "/v2", server),
        route("GET", "/v2/health/live", live),
        route("GET", "/v2/health/ready", ready),
        route("GET", "/v2/models/stats", statistics),
        route("POST", "/v2/repository/index", index),
        route("GET", M, describe),
        route("GET", M + "/ready", ready),
        route("GET", M + "/config", configure),
        route("GET", M + "/stats", statistics),
        route("POST", M + "/infer", infer),
        *(route("POST", f"{M}/{name}", handler) for name, handler in (more or {}).items()),
        route("POST", r"/v2/repository/models/(?P<name>[^/]+)/(?P<what>load|unload)", load),
    )
