"""A fire drill: real gateway, fake backends, seeded faults, and what the clients saw.

    python -m benchmarks.gateway_drill faults.yaml

The file has the fields of `Drill`: how much is asked, the faults by role
(`standby: [{kind: refuse, share: 0.02, first: 50}, garbage]`), and sections of `gateway.yaml`.
Exit 1 where a client got a corrupt or a silently cut answer, or where counts disagree.

Every answer is compared with what a healthy backend says, so that a doubled, lost or foreign
token is noticed, and every count of the gateway with the clients' own.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.admin import describe
from joymigrate.run.serve.gateway.server import Gateway
from tests.run.serve.gateway.fake import Fake, full_text
from tests.run.serve.gateway.faults import HARMLESS, Fault, Schedule

SEEN = ("ok", "error", "interrupted", "rejected", "corrupt", "silently cut")
BAD = ("corrupt", "silently cut")
DEFAULTS: dict[str, Any] = {
    # Pairs are requests of the gateway's own: here every count is compared with the clients'.
    "rollout": {
        "start": "auto",
        "steps": [20, 50, 100],
        "min_step_seconds": 1.0,
        "min_step_pairs": 0,
    },
    "limits": {"first_byte_seconds": 1.0, "idle_seconds": 1.0, "drain_seconds": 2.0},
    "health": {"interval_seconds": 0.5},
    "monitor": {"devices": False},
}


@dataclass(frozen=True, slots=True)
class Drill:
    """A whole drill: load, faults by role, and what of the gateway is set differently."""

    requests: int = 1000
    concurrency: int = 16
    stream_share: float = 0.8
    tokens: int = 24  # of an answer
    gap_seconds: float = 0.0  # between the events of a stream
    seed: int = 0
    primary: tuple[Fault, ...] = ()
    standby: tuple[Fault, ...] = ()
    gateway: Mapping[str, Any] | None = None


def read(path: Path) -> Drill:
    """The drill of a YAML file."""
    asked = yaml.safe_load(path.read_text())
    for role in ("primary", "standby"):
        asked[role] = faults(asked.get(role, ()))
    return Drill(**asked)


def faults(rows: Sequence[str | Mapping[str, Any]]) -> tuple[Fault, ...]:
    """The faults of one backend: each a kind, or all its fields."""
    return tuple(Fault(row) if isinstance(row, str) else Fault(**row) for row in rows)


@dataclass(slots=True)
class DrillResult:
    """What a drill found. Latencies in milliseconds."""

    seen: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    after_decision: int | None = None  # standby requests that began after the rollback
    rollout: dict[str, Any] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    retried: int = 0
    injected: dict[str, dict[str, int]] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """No client was lied to, and all counts agree."""
        return not any(self.seen[bad] for bad in BAD) and not self.disagreements

    def to_json(self) -> dict[str, Any]:
        """The drill's JSON."""
        ranked = sorted(self.latencies_ms)
        at = {"p50": 0.5, "p99": 0.99}
        return {
            "passed": self.passed,
            "clients": {name: self.seen[name] for name in SEEN},
            "latency_ms": {
                name: round(ranked[int(share * (len(ranked) - 1))], 2) if ranked else None
                for name, share in at.items()
            },
            "seconds": round(self.seconds, 2),
            "served": self.served,
            "injected": self.injected,
            "retried": self.retried,
            "resumed": self.resumed,
            "after_decision": self.after_decision,
            "counted": self.counted,
            "disagreements": self.disagreements,
            "rollout": {key: self.rollout[key] for key in ("state", "weights", "evidence")},
            "events": self.rollout["events"],
        }


async def run(drill: Drill, talk: Callable[[str], None] = lambda line: None) -> DrillResult:
    """Hold one drill."""
    fakes = {
        name: Fake(
            Schedule(faults, drill.seed, name), tokens=drill.tokens, gap_seconds=drill.gap_seconds
        )
        for name, faults in (("primary", drill.primary), ("standby", drill.standby))
    }
    for fake in fakes.values():
        await fake.start()
    outcome = DrillResult()
    with tempfile.TemporaryDirectory(prefix="joymigrate-drill-") as folder:
        config = settings.parse(sections(drill, fakes), Path(folder) / "gateway.yaml")
        gateway = Gateway(config, unverified=True, talk=talk)
        await gateway.start()
        started = time.perf_counter()
        try:
            await load(drill, gateway, fakes["standby"], outcome)
        finally:
            outcome.seconds = time.perf_counter() - started
            outcome.rollout = describe(gateway.rollout, gateway.router)
            await gateway.stop()
            for fake in fakes.values():
                await fake.stop()
        tally(gateway, fakes, outcome)
    return outcome


def sections(drill: Drill, fakes: Mapping[str, Fake]) -> dict[str, Any]:
    """The gateway's file: defaults for a short drill, the schedule's own sections over them."""
    given = dict(drill.gateway or {})
    merged = {
        name: {**DEFAULTS.get(name, {}), **(given.pop(name, None) or {})} for name in DEFAULTS
    }
    return {
        "listen": "127.0.0.1:0",
        "upstreams": {name: {"url": fake.url, "role": name} for name, fake in fakes.items()},
        **merged,
        **given,
    }


async def load(drill: Drill, gateway: Gateway, standby: Fake, outcome: DrillResult) -> None:
    """Let `concurrency` clients share the requests."""
    import aiohttp

    numbers = iter(range(drill.requests))
    url = f"http://127.0.0.1:{gateway.port}"
    decided: list[int] = []

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            await one(session, url, drill, number, outcome)
            if gateway.rollout.state == "rolled_back" and not decided:
                # Requests that were on their way when the decision fell still arrive.
                decided.append(standby.seen + gateway.router.standby.inflight)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(drill.concurrency)))
    if decided:
        outcome.after_decision = max(0, standby.seen - decided[0])


async def one(session: Any, url: str, drill: Drill, number: int, outcome: DrillResult) -> None:
    """One request, and what the client makes of the answer."""
    import aiohttp

    rng = random.Random(f"{drill.seed} client {number}")
    stream = rng.random() < drill.stream_share
    body = {
        "model": "fake",
        "stream": stream,
        "messages": [{"role": "user", "content": f"question {number} of the drill"}],
    }
    started = time.perf_counter()
    try:
        async with session.post(url + "/v1/chat/completions", json=body) as response:
            raw = await response.read()
            status = response.status
    except aiohttp.ClientError:
        outcome.seen["silently cut"] += 1
        return
    outcome.latencies_ms.append((time.perf_counter() - started) * 1e3)
    outcome.seen[judge(raw, status, stream, full_text(body, drill.tokens))] += 1


def judge(raw: bytes, status: int, stream: bool, expected: str) -> str:
    """One of `SEEN`."""
    if status in (429, 503):
        return "rejected"
    if status >= 400:
        return "error"
    if not stream:
        text = json.loads(raw)["choices"][0]["message"]["content"]
        return "ok" if text == expected else "corrupt"
    text, finished, done = "", False, False
    for event in raw.split(b"\n\n"):
        if event == b"data: [DONE]":
            done = True
        elif event.startswith(b"data: "):
            parsed = json.loads(event[6:])
            if parsed.get("error"):
                return "interrupted"
            for choice in parsed.get("choices") or ():
                text += choice["delta"].get("content") or ""
                finished = finished or bool(choice["finish_reason"])
    if not (finished and done):
        return "silently cut"
    return "ok" if text == expected else "corrupt"


def tally(gateway: Gateway, fakes: Mapping[str, Fake], outcome: DrillResult) -> None:
    """Compare the gateway's counts with the clients' and the fakes'."""
    meters, rollout = gateway.meters, gateway.rollout
    outcome.counted = {name: int(cell.value) for name, cell in meters.outcomes.items()}
    outcome.retried = int(sum(cell.value for cell in meters.retries.series.values()))
    outcome.resumed = int(sum(cell.value for cell in meters.resumed.series.values()))
    outcome.served = {name: fake.seen for name, fake in fakes.items()}
    outcome.injected = {name: dict(fake.injected) for name, fake in fakes.items()}
    for name in ("ok", "error", "interrupted", "rejected"):
        if outcome.counted[name] != outcome.seen[name]:
            outcome.disagreements.append(
                f"{name}: clients {outcome.seen[name]}, gateway {outcome.counted[name]}"
            )
    for name, seen in (("primary", rollout.primary), ("standby", rollout.total)):
        harmless = sum(fakes[name].injected[kind] for kind in HARMLESS)
        faults = sum(fakes[name].injected.values()) - harmless
        if seen.failures != faults:
            outcome.disagreements.append(
                f"{name}: {faults} faults injected, {seen.failures} failures counted"
            )


if __name__ == "__main__":
    held = asyncio.run(run(read(Path(sys.argv[1]))))
    print(json.dumps(held.to_json(), indent=2, ensure_ascii=False))
    sys.exit(0 if held.passed else 1)
