"""Recorded ranking requests, replayed to two servers: do they rank alike, and how fast is each?

The sides are asked one after the other, so that neither waits for the other. Their answers lie in
two files of samples (`verify task --kind ranking` reads them), and are judged as it judges them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from joymigrate.errors import JoyError
from joymigrate.verify.model import Outcome
from joymigrate.verify.task import TaskComparison, TaskQuestion
from joymigrate.verify.task.document import figures_json
from joymigrate.verify.task.ranking import compare_ranking

SCHEMA = "joymigrate.ranking-drill/1"
RANK = "/v1/rank"
SIDES = ("baseline", "target")
SHOWN = 5  # failures that are worded


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request: the body of /v1/rank, its name, and the labels of its candidates if known."""

    id: str
    body: bytes
    user: str
    labels: list[float] | None


@dataclass(slots=True)
class ServerSide:
    """What one server did."""

    url: str
    scores: dict[str, list[float]] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    degraded: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Latency, throughput and failures."""
        ranked = sorted(self.milliseconds)
        at = {"p50_ms": 0.5, "p99_ms": 0.99}
        return {
            "url": self.url,
            "answered": len(ranked),
            "failed": len(self.failures),
            "failures": self.failures[:SHOWN],
            "requests_per_s": round(len(ranked) / self.seconds, 1) if self.seconds else 0.0,
            **{name: round(ranked[int(share * (len(ranked) - 1))], 2) if ranked else None
               for name, share in at.items()},
            "versions": sorted(self.versions),
            "degraded": self.degraded,
        }  # fmt: skip


def read(path: Path) -> list[RecordedRequest]:
    """Requests of a JSONL file: `{"inputs", "user"?, "labels"?, "id"?}`. Raises `JoyError`."""
    found = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise JoyError(f"cannot read the requests: {error.strerror}", where=str(path)) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = orjson.loads(line)
        except ValueError as error:
            raise JoyError(f"not a JSON line: {error}", where=where) from None
        if not isinstance(row, dict) or not isinstance(row.get("inputs"), dict):
            raise JoyError("a recorded request has inputs", where=where,
                           help='{"inputs": {"item": [[1, 2]], …}, "user": "7", "labels": [0]}',
                           )  # fmt: skip
        labels = row.get("labels")
        if labels is not None and not isinstance(labels, list):
            raise JoyError("labels are a list of numbers", where=where)
        user = str(row.get("user", ""))
        body = {"inputs": row["inputs"], **({"user": user} if user else {})}
        name = str(row.get("id", number))
        found.append(RecordedRequest(name, orjson.dumps(body), user or name, labels))
    if not found:
        raise JoyError("there is no request in this file", where=str(path))
    return found


async def replay(
    requests: Sequence[RecordedRequest], side: ServerSide, concurrency: int, rounds: int, key: str
) -> None:
    """Ask one server everything, `rounds` times; the scores of the last round are kept."""
    import aiohttp

    waiting = itertools.chain.from_iterable(itertools.repeat(requests, rounds))
    headers = {"Content-Type": "application/json", **({"X-Api-Key": key} if key else {})}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def client() -> None:
            for one in waiting:
                await ask(session, side, one)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        side.seconds = time.perf_counter() - began


async def ask(session: Any, side: ServerSide, one: RecordedRequest) -> None:
    """One request; a failure is kept in words."""
    import aiohttp

    began = time.perf_counter()
    try:
        async with session.post(side.url + RANK, data=one.body) as reply:
            said = orjson.loads(await reply.read())
            if reply.status != 200:
                raise ValueError(f"status {reply.status}: {json.dumps(said)[:200]}")
        scores = next(iter(said["outputs"].values()))
        side.scores[one.id] = [float(score) for score in scores]
        side.versions.add(str(said.get("model_version", "")))
        side.degraded += "degraded" in said
    except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        side.failures.append(f"request {one.id}: {str(error) or type(error).__name__}")
        return
    side.milliseconds.append(1e3 * (time.perf_counter() - began))


def write_answers(path: Path, requests: Sequence[RecordedRequest], side: ServerSide) -> None:
    """The scores of one side as samples."""
    with path.open("wb") as file:
        for one in requests:
            scores = side.scores.get(one.id)
            if scores is None:
                continue
            row: dict[str, Any] = {"id": one.id, "prediction": scores, "cluster": one.user}
            if one.labels is not None:
                row["reference"] = one.labels
            file.write(orjson.dumps(row) + b"\n")


def drill(
    path: Path,
    urls: tuple[str, str],
    question: TaskQuestion,
    *,
    k: int = 10,
    logits: bool = False,
    concurrency: int = 8,
    rounds: int = 1,
    key: str = "",
    answers: Path | None = None,
) -> tuple[dict[str, Any], Outcome]:
    """Replay, judge, and say everything. `answers`: a folder for the two files of samples."""
    requests = read(path)
    sides = [ServerSide(url.rstrip("/")) for url in urls]
    for side in sides:
        asyncio.run(replay(requests, side, concurrency, rounds, key))
    with tempfile.TemporaryDirectory(prefix="joymigrate-drill-") as temporary:
        folder = answers or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.jsonl" for name in SIDES]
        for file, side in zip(paths, sides, strict=True):
            write_answers(file, requests, side)
        silent = [side.url for side in sides if not side.scores]
        if silent:
            failed = next(side for side in sides if not side.scores)
            raise JoyError(f"no request was answered: {failed.failures[0]}", where=failed.url)
        task = compare_ranking(paths[0], paths[1], question, k, logits=logits)
    outcome = task.outcome
    reasons = list(task.reasons)
    if sides[1].failures and outcome is Outcome.PASS:
        outcome = Outcome.FAIL
        reasons = [f"the target failed on {len(sides[1].failures)} requests", *reasons]
    return document(requests, sides, task, outcome, reasons, concurrency, rounds), outcome


def document(
    requests: Sequence[RecordedRequest],
    sides: Sequence[ServerSide],
    task: TaskComparison,
    outcome: Outcome,
    reasons: Sequence[str],
    concurrency: int,
    rounds: int,
) -> dict[str, Any]:
    """`joymigrate.ranking-drill/1`."""
    judged = {task.main: task.judgement, **{name: one for name, (one, _) in task.fields.items()}}
    return {
        "schema": SCHEMA,
        "verdict": outcome.value,
        "reasons": [str(reason) for reason in reasons],
        "requests": len(requests),
        "rounds": rounds,
        "concurrency": concurrency,
        "sides": dict(zip(SIDES, (side.to_json() for side in sides), strict=True)),
        "ranking": task.ranking,
        "metrics": {name: figures_json(one, task) for name, one in judged.items()},
    }


def text(found: dict[str, Any]) -> str:
    """The drill for people."""
    lines = [f"{'':<10}{'answered':>9}{'failed':>7}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}  "
             "versions"]  # fmt: skip
    for name, side in found["sides"].items():
        lines.append(
            f"{name:<10}{side['answered']:>9}{side['failed']:>7}{side['requests_per_s']:>12}"
            f"{side['p50_ms'] or '-':>9}{side['p99_ms'] or '-':>9}  {', '.join(side['versions'])}"
        )
    ranking = found["ranking"]
    lines.append(
        f"largest difference of scores {ranking['largest_difference']:.3g}, "
        f"{ranking['requests']} requests of {ranking['users']} users compared"
    )
    for name, one in found["metrics"].items():
        if one["baseline"] is not None:
            lines.append(f"{name}: {one['baseline']:.4g} -> {one['target']:.4g}: {one['verdict']}")
        elif one["agreement"] is not None:
            lines.append(f"{name} (first {ranking['k']}): {one['agreement']['value']:.2f} % agree: "
                         f"{one['verdict']}")  # fmt: skip
    lines += [f"not computed: {name}: {why}" for name, why in ranking["left_out"].items()]
    lines.append(f"{found['verdict']}: {'; '.join(found['reasons'])}")
    return "\n".join(lines)
