"""A ranking model behind HTTP: KServe v2, a small JSON endpoint, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from joymigrate import __version__
from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.http.triton.tensors import header_of
from joymigrate.run.serve.ranking import model_description, wire
from joymigrate.run.serve.ranking.lanes import RankingEngine, deadline_of
from joymigrate.run.serve.ranking.meters import RankingMeters
from joymigrate.run.serve.ranking.packages import Packages
from joymigrate.run.serve.ranking.record import RequestRecorder
from joymigrate.run.serve.ranking.request import Arrays, check
from joymigrate.run.serve.ranking.results import RankingResult
from joymigrate.run.serve.ranking.tensors import writable_in_json
from joymigrate.run.serve.ranking.texts import as_ids
from joymigrate.run.serve.ranking.versions import Versions
from joymigrate.run.serve.web.answering import answer_request, outcome_of
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import Ask, Reply, data

log = logging.getLogger("joymigrate.serve")
MAX_DEADLINE_MS = 86_400_000.0


@dataclass(slots=True)
class RankingService:
    """What handlers know. Stands behind the engine's HTTP server (`Answering`)."""

    engine: RankingEngine
    names: tuple[str, ...]
    meters: RankingMeters
    limits: HttpLimits = field(default_factory=HttpLimits)
    keys: Keys = field(default_factory=Keys)
    deadline_ms: float | None = None
    admin_key: str = ""
    draining: bool = False
    packages: Packages | None = None
    versions: Versions | None = None
    recorder: RequestRecorder | None = None

    @property
    def name(self) -> str:
        return self.names[0]

    def check_model(self, name: str, version: str | None) -> None:
        """Refuse a model or a version that is not here."""
        if name not in self.names:
            raise HttpRefusal(404, f"unknown model: '{name}'; this server has '{self.name}'",
                              code="model_not_found", param="model")  # fmt: skip
        if version not in (None, "", self.engine.version):
            raise HttpRefusal(404, f"model '{name}' has no version '{version}', "
                              f"only {self.engine.version}", param="version")  # fmt: skip

    async def rank(
        self,
        arrays: Arrays,
        *,
        key: str = "",
        deadline_ms: float | None = None,
    ) -> RankingResult:
        """Check and run one request."""
        if self.draining:
            raise HttpRefusal(503, "stopping: no new requests are taken")
        limit = self.deadline_ms if deadline_ms is None else deadline_ms
        signature = self.engine.program.signature
        arrays = as_ids(signature, arrays)
        request = check(signature, arrays, key=key, deadline=deadline_of(limit))
        if self.recorder is not None:
            self.recorder.add(request)
        return await self.engine.rank(request)

    # As `Answering` asks

    async def answer(self, ask: Ask) -> Reply:
        """Answer a request; never raises but when it is cancelled."""
        return await answer_request(ask, self.keys, partial(route, self))

    def record(self, ask: Ask, status: int, *, gone: bool = False) -> None:
        """Count a request; refusals and mistakes go to the log."""
        outcome = self.count(status, time.perf_counter() - ask.started, gone, ask.method != "GET")
        if outcome != "ok" or log.isEnabledFor(logging.DEBUG):
            log.log(
                logging.ERROR if status >= 500 else logging.INFO,
                "%s %s %s",
                ask.method,
                ask.path,
                status,
                extra={"fields": {"request": ask.called or ask.id, "outcome": outcome}},
            )

    def count(self, status: int, seconds: float, gone: bool, work: bool = True) -> str:
        """Count what became of a request."""
        outcome = outcome_of(status, gone=gone)
        if work:
            self.meters.outcomes[outcome].add()
            if outcome == "ok":
                self.meters.seconds.add(seconds)
        return outcome

    async def close(self) -> None:
        """Stop the engine."""
        if self.versions is not None:
            self.versions.stop()
        if self.packages is not None:
            self.packages.stop()
        if self.recorder is not None:
            self.recorder.close()
        split = self.engine.program.split
        if split is not None:
            split.shards.stop()
        self.engine.close()


Handler = Callable[[RankingService, Ask], Awaitable[Reply]]


async def route(service: RankingService, ask: Ask) -> Reply:
    """Find the handler of a path and call it."""
    path = ask.path.rstrip("/") or "/"
    known = PATHS.get(path)
    if known is not None:
        handler = known.get(ask.method)
        if handler is None:
            raise HttpRefusal(
                405, f"{path} takes {', '.join(known)}", headers={"Allow": ", ".join(known)}
            )
        return await handler(service, ask)
    if path.startswith("/v2/models/"):
        return await model_path(service, ask, path.split("/")[3:])
    raise HttpRefusal(404, f"there is no {path}")


async def model_path(service: RankingService, ask: Ask, parts: list[str]) -> Reply:
    """/v2/models/M[/versions/V][/ready|infer|config|stats], /v2/models/stats."""
    if parts == ["stats"] and "stats" not in service.names:
        parts = [service.name, "stats"]
    name, rest = parts[0], parts[1:]
    version = None
    if len(rest) >= 2 and rest[0] == "versions":
        version, rest = rest[1], rest[2:]
    if rest == ["infer"]:
        if ask.method != "POST":
            raise HttpRefusal(405, "infer takes POST", headers={"Allow": "POST"})
        return await infer(service, ask, name, version)
    found = model_description.MODEL.get("/".join(rest))
    if found is None and rest != ["ready"]:
        raise HttpRefusal(404, f"there is no {ask.path}")
    if ask.method != "GET":
        raise HttpRefusal(405, f"{ask.path} takes GET", headers={"Allow": "GET"})
    service.check_model(name, version)
    if found is not None:
        return data(found(service.engine, service.meters, name))
    return await ready(service, ask)


async def infer(service: RankingService, ask: Ask, name: str, version: str | None) -> Reply:
    """POST …/infer: tensors in, tensors out."""
    service.check_model(name, version)
    length = ask.headers.get("Inference-Header-Content-Length")
    header, binary = header_of(ask.body, length)
    parameters = parameters_of(header, "parameters")
    called = header.get("id")
    if not isinstance(called, str | None):
        raise HttpRefusal(400, f"id is a text, got {called!r:.40}", param="id")
    arrays = wire.read_inputs(header, binary)
    signature = service.engine.program.signature
    wanted = outputs_of(header, signature.outputs)
    found = await service.rank(
        arrays, key=key_of(parameters.get("user")), deadline_ms=deadline(parameters, ask.headers)
    )
    default = bool(flag(parameters, "binary_data_output"))
    outputs = dict(zip(signature.outputs, found.outputs, strict=True))
    head: dict[str, Any] = {"model_name": name, "model_version": found.version}
    if called is not None:
        head["id"] = called
    if found.degraded:
        head["parameters"] = {"degraded": ",".join(found.degraded)}
    body, size = wire.write(
        head,
        {output: outputs[output] for output in wanted},
        {output: default if choice is None else choice for output, choice in wanted.items()},
    )
    if size is None:
        return Reply(200, body)
    more = {"Inference-Header-Content-Length": str(size)}
    return Reply(200, body, "application/octet-stream", more)


def outputs_of(header: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, bool | None]:
    """The outputs that are wanted, and whether in binary (None: as the request says)."""
    raw = header.get("outputs")
    if not raw:
        return dict.fromkeys(names)
    found: dict[str, bool | None] = {}
    for place, one in enumerate(raw if isinstance(raw, list) else [raw]):
        name = one.get("name") if isinstance(one, dict) else None
        if name not in names:
            raise HttpRefusal(400, f"outputs[{place}]: the model has no output {name!r}, "
                              f"only {', '.join(names)}", param="outputs")  # fmt: skip
        parameters = parameters_of(one, f"outputs[{place}].parameters")
        if parameters.get("classification"):
            raise HttpRefusal(400, "classification is not supported", param="outputs")
        found[str(name)] = flag(parameters, "binary_data")
    return found


def parameters_of(owner: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The parameters of a request or an output."""
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise HttpRefusal(400, f"{where} is an object, got {parameters!r:.40}", param=where)
    return parameters


def flag(parameters: Mapping[str, Any], name: str) -> bool | None:
    """A parameter that is true or false; None where it is not there."""
    value = parameters.get(name)
    if not isinstance(value, bool | None):
        raise HttpRefusal(400, f"{name} is true or false, got {value!r:.40}", param=name)
    return value


def key_of(raw: Any) -> str:
    """The user's key; a whole number is one, too."""
    if raw is None:
        return ""
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise HttpRefusal(400, "user is a text or a whole number", param="user")
    return str(raw)


def deadline(parameters: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
    """Milliseconds until the answer is useless: `deadline_ms`, or Triton's `timeout` in us."""
    raw: Any = parameters.get("deadline_ms", headers.get("X-Deadline-Ms"))
    scale = 1.0
    if raw is None:
        raw, scale = parameters.get("timeout"), 1e-3
    if raw is None:
        return None
    try:
        found = math.nan if isinstance(raw, bool) else float(raw) * scale
    except (TypeError, ValueError, OverflowError):
        raise HttpRefusal(
            400, f"the deadline is a number, got {raw!r}", param="deadline_ms"
        ) from None
    if not 0 < found <= MAX_DEADLINE_MS:
        raise HttpRefusal(400, f"the deadline is above 0 ms, got {raw!r}", param="deadline_ms")
    return found


async def rank(service: RankingService, ask: Ask) -> Reply:
    """POST /v1/rank: `{"inputs": {name: values}, "user"?, "deadline_ms"?, "model"?}`."""
    body = ask.json()
    for key in body:
        if key not in ("inputs", "user", "deadline_ms", "model", "version"):
            raise HttpRefusal(400, f"unknown field '{key}'", param=key)
    service.check_model(body.get("model") or service.name, body.get("version"))
    signature = service.engine.program.signature
    found = await service.rank(
        wire.read_values(signature, body.get("inputs")),
        key=key_of(body.get("user")),
        deadline_ms=deadline(body, ask.headers),
    )
    answer: dict[str, Any] = {
        "model": service.name,
        "model_version": found.version,
        "outputs": {name: writable_in_json(output)
                    for name, output in zip(signature.outputs, found.outputs, strict=True)},
    }  # fmt: skip
    if found.degraded:
        answer["degraded"] = list(found.degraded)
    return Reply(200, orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))


async def health(service: RankingService, ask: Ask) -> Reply:
    """GET /health: 200 while the engine works (also while it drains)."""
    trouble = service.engine.trouble()
    if trouble is not None:
        raise HttpRefusal(503, trouble)
    return data({"status": "draining" if service.draining else "ok"})


async def ready(service: RankingService, ask: Ask) -> Reply:
    """GET /ready: 200 while requests are taken."""
    trouble = service.engine.trouble()
    if trouble is None and service.draining:
        trouble = "stopping: no new requests are taken"
    if trouble is not None:
        raise HttpRefusal(503, trouble)
    engine = service.engine
    said = {"status": "ready", "running": engine.running, "waiting": len(engine.queue),
            "model_version": engine.version}  # fmt: skip
    versions = service.versions
    if versions is not None and versions.hold:
        said["newest_version"] = await asyncio.to_thread(lambda: versions.newest)
    return data(said)


async def metrics(service: RankingService, ask: Ask) -> Reply:
    """GET /metrics."""
    return Reply(200, service.meters.text(), "text/plain; version=0.0.4; charset=utf-8")


async def version(service: RankingService, ask: Ask) -> Reply:
    """GET /version."""
    return data({"version": __version__})


async def server(service: RankingService, ask: Ask) -> Reply:
    """GET /v2."""
    return data(
        {"name": "joymigrate", "version": __version__, "extensions": model_description.EXTENSIONS}
    )


async def index(service: RankingService, ask: Ask) -> Reply:
    """POST /v2/repository/index."""
    return data(
        [{"name": name, "version": service.engine.version, "state": "READY", "reason": ""}
         for name in service.names]
    )  # fmt: skip


async def models(service: RankingService, ask: Ask) -> Reply:
    """GET /v1/models."""
    rows = [{"id": name, "object": "model", "owned_by": "joymigrate", "kind": "ranking",
             "model_version": service.engine.version} for name in service.names]  # fmt: skip
    return data({"object": "list", "data": rows})


async def back(service: RankingService, ask: Ask) -> Reply:
    """POST /admin/version/back: the version before, until `resume`."""
    versions = find_versions(service, ask)
    try:
        await asyncio.to_thread(versions.back)
    except JoyError as error:
        raise HttpRefusal(409, str(error), code="no_version") from None
    return await ready(service, ask)


async def go(service: RankingService, ask: Ask) -> Reply:
    """POST /admin/version/go: hold the version of the body, `{"version": 7}`."""
    versions = find_versions(service, ask)
    number = ask.json().get("version")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise HttpRefusal(400, f"version is a whole number from 1, got {number!r}", param="version")
    try:
        await asyncio.to_thread(versions.go, number)
    except JoyError as error:
        raise HttpRefusal(409, str(error), code="no_version") from None
    return await ready(service, ask)


async def resume(service: RankingService, ask: Ask) -> Reply:
    """POST /admin/version/resume: follow new versions again."""
    await asyncio.to_thread(find_versions(service, ask).resume)
    return await ready(service, ask)


def find_versions(service: RankingService, ask: Ask) -> Versions:
    """What an operator steers; refuses everybody else."""
    key = ask.headers.get("X-Admin-Key", "")
    if not service.admin_key:
        raise HttpRefusal(
            403, "set JOYMIGRATE_ADMIN_KEY where the server starts", code="no_admin_key"
        )
    if not hmac.compare_digest(key.encode("utf-8", "replace"), service.admin_key.encode()):
        raise HttpRefusal(401, "the header X-Admin-Key is not the admin key")
    if service.versions is None:
        raise HttpRefusal(409, "no versions are followed here: serve --versions PLACE")
    return service.versions


PATHS: dict[str, dict[str, Handler]] = {
    "/health": {"GET": health},
    "/ready": {"GET": ready},
    "/metrics": {"GET": metrics},
    "/version": {"GET": version},
    "/admin/version/back": {"POST": back},
    "/admin/version/go": {"POST": go},
    "/admin/version/resume": {"POST": resume},
    "/v1/models": {"GET": models},
    "/v1/rank": {"POST": rank},
    "/v2": {"GET": server},
    "/v2/health/live": {"GET": health},
    "/v2/health/ready": {"GET": ready},
    "/v2/repository/index": {"POST": index},
}
