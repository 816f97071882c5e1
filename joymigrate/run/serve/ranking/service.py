"""A ranking model behind HTTP: KServe v2, a small JSON endpoint, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from joymigrate import __version__
from joymigrate.errors import JoyError
from joymigrate.run.serve.kserve.protocol import (
    InferAnswer,
    InferRequest,
    KserveService,
    TensorSpec,
    kserve_routes,
    statistics_row,
)
from joymigrate.run.serve.kserve.tensors import writable_in_json
from joymigrate.run.serve.ranking.json_inputs import datatype_of, read_values, sizes_of
from joymigrate.run.serve.ranking.lanes import RankingEngine, deadline_of
from joymigrate.run.serve.ranking.meters import RankingMeters
from joymigrate.run.serve.ranking.packages import Packages
from joymigrate.run.serve.ranking.record import RequestRecorder
from joymigrate.run.serve.ranking.request import Arrays, check
from joymigrate.run.serve.ranking.results import RankingResult
from joymigrate.run.serve.ranking.signature import DERIVED
from joymigrate.run.serve.ranking.texts import as_ids
from joymigrate.run.serve.ranking.versions import Versions
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import Ask, Reply, data
from joymigrate.run.serve.web.paths import HttpRoute, PathTable

MAX_DEADLINE_MS = 86_400_000.0


@dataclass(slots=True)
class RankingService(KserveService):
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

    # As the protocol asks

    @property
    def version(self) -> str:
        return self.engine.version

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(one.name, datatype_of(one), sizes_of(one), one.role in DERIVED, one.role)
            for one in self.engine.program.signature.inputs
        )

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(o, "FP32", (-1,)) for o in self.engine.program.signature.outputs)

    def lives(self) -> bool:
        """Whether the engine works, also while it drains."""
        return self.engine.trouble() is None

    def trouble(self) -> str | None:
        """Why requests are not taken now."""
        draining = "stopping: no new requests are taken" if self.draining else None
        return self.engine.trouble() or draining

    def statistics(self) -> dict[str, Any]:
        """Counts and sums since the start. A batch's whole time is said to be its computing."""
        counts, outcomes, seconds = self.engine.counts, self.meters.outcomes, self.meters.seconds
        failed = int(sum(outcomes[key].value for key in ("client_error", "error", "rejected")))
        sums = {
            "success": (seconds.total, seconds.sum), "fail": (failed, 0.0),
            "queue": (counts.wait_seconds.total, counts.wait_seconds.sum),
            "compute_infer": (counts.batch_seconds.total, counts.batch_seconds.sum),
        }  # fmt: skip
        last = int(1e3 * counts.last) if counts.last else 0
        return {
            **statistics_row(last, counts.requests, counts.batches, sums),
            "batch_stats": [
                {"batch_size": size, "compute_infer": {"count": count, "ns": int(1e9 * seconds)}}
                for size, (count, seconds) in sorted(counts.merged.items())
            ],
        }

    async def infer(self, asked: InferRequest) -> InferAnswer:
        """Rank what came as tensors."""
        limit = deadline(asked.parameters, asked.ask.headers)
        if asked.seconds is not None:
            limit = min(asked.seconds * 1000, limit or math.inf)
        key = key_of(asked.parameters.get("user"))
        found = await self.rank(asked.arrays, key=key, deadline_ms=limit)
        outputs = dict(zip(self.engine.program.signature.outputs, found.outputs, strict=True))
        degraded = {"degraded": ",".join(found.degraded)} if found.degraded else {}
        return InferAnswer(outputs, found.version, degraded)

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

    def paths(self) -> PathTable:
        """What is answered."""
        return PATHS

    def tally(self, outcome: str, seconds: float) -> None:
        """Count a request that was work."""
        self.meters.outcomes[outcome].add()
        if outcome == "ok":
            self.meters.seconds.add(seconds)

    def describe_start(self) -> dict[str, Any]:
        """What the log says of it beside its address."""
        engine = self.engine
        return {"kind": "ranking", "device": engine.program.device, "lanes": len(engine.lanes),
                "merges": not engine.alone}  # fmt: skip

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
        read_values(signature, body.get("inputs")),
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
    trouble = service.trouble()
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


PATHS = PathTable(
    [
        HttpRoute("GET", "/health", health),
        HttpRoute("GET", "/ready", ready),
        HttpRoute("GET", "/metrics", metrics),
        HttpRoute("GET", "/version", version),
        HttpRoute("POST", "/admin/version/back", back),
        HttpRoute("POST", "/admin/version/go", go),
        HttpRoute("POST", "/admin/version/resume", resume),
        HttpRoute("GET", "/v1/models", models),
        HttpRoute("POST", "/v1/rank", rank),
        *kserve_routes(),
    ]
)
