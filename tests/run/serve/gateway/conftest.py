"""A gateway on loopback in front of two fake backends, and a client that counts what it sees."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.server import Gateway
from tests.run.serve.gateway.fake import Fake, full_text
from tests.run.serve.gateway.faults import Fault, Schedule

# Only where a fake hangs a limit may be short: a busy machine is late, too.
LIMITS = {"first_byte_seconds": 30.0, "idle_seconds": 30.0, "drain_seconds": 1.0}
HANG_LIMITS = {"first_byte_seconds": 0.3, "idle_seconds": 0.3, "total_seconds": 2.0}


@dataclass
class Answer:
    """What a client got."""

    status: int
    text: str = ""
    outcome: str = "ok"  # ok, error (visible), cut (silent)
    events: list[dict[str, Any]] = field(default_factory=list)
    raw: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def upstream(self) -> str:
        return self.headers.get("X-Joymigrate-Upstream", "")


@dataclass
class Bench:
    """The gateway, its fakes, and a client."""

    gateway: Gateway
    gpu: Fake
    npu: Fake
    session: aiohttp.ClientSession
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    async def ask(
        self,
        prompt: str = "how are you",
        *,
        stream: bool = True,
        chat: bool = True,
        headers: dict[str, str] | None = None,
        **body: Any,
    ) -> Answer:
        """One request, read to its end."""
        asked = {"model": "m", "stream": stream, **body}
        asked |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        async with self.session.post(self.url + path, json=asked, headers=headers) as response:
            answer = Answer(response.status, headers=dict(response.headers))
            try:
                answer.raw = await response.read()
            except aiohttp.ClientError:
                answer.outcome = "cut"
        read_answer(answer, stream and answer.status == 200, chat)
        self.seen[answer.outcome] += 1
        return answer

    async def get(self, path: str, **more: Any) -> Any:
        async with self.session.get(self.url + path, **more) as response:
            return await response.json()

    async def order(self, what: str) -> tuple[int, Any]:
        async with self.session.post(self.url + "/admin/rollout", json={"order": what}) as reply:
            return reply.status, await reply.json()

    def expected(self, prompt: str = "how are you", **body: Any) -> str:
        messages = [{"role": "user", "content": prompt}]
        return full_text({"messages": messages, **body}, self.gpu.tokens)

    def outcomes(self) -> dict[str, int]:
        """The gateway's own count of what clients got."""
        cells = self.gateway.meters.outcomes.items()
        return {name: int(cell.value) for name, cell in cells if cell.value}


def read_answer(answer: Answer, stream: bool, chat: bool) -> None:
    if answer.status >= 400:
        answer.outcome = "error"
        return
    if not stream:
        choice = json.loads(answer.raw)["choices"][0]
        answer.text = choice["message"]["content"] if chat else choice["text"]
        return
    done = finished = False
    for event in answer.raw.split(b"\n\n"):
        if not event.startswith(b"data: "):
            continue
        if event == b"data: [DONE]":
            done = True
            continue
        parsed = json.loads(event[6:])
        answer.events.append(parsed)
        if parsed.get("error"):
            answer.outcome = "error"
            return
        for choice in parsed["choices"]:
            piece = choice["delta"].get("content") if chat else choice["text"]
            answer.text += piece or ""
            finished = finished or bool(choice["finish_reason"])
    if not (done and finished):
        answer.outcome = "cut"


@asynccontextmanager
async def running(folder: Path, gpu: Fake, npu: Fake, **sections: Any) -> Any:
    """Start everything, stop everything."""
    for fake in (gpu, npu):
        if fake.server is None:
            await fake.start(fake.port)
    unverified = sections.pop("unverified", True)
    hangs = any("hang" in f.kind for fake in (gpu, npu) for f in fake.schedule.faults)
    limits = {**LIMITS, **(HANG_LIMITS if hangs else {}), **sections.get("limits", {})}
    npu_more = sections.pop("npu_more", {})
    gpu_more = sections.pop("gpu_more", {})
    raw = {
        "listen": "127.0.0.1:0",
        "upstreams": {
            "gpu": {"url": gpu.url, "role": "primary", **gpu_more},
            "npu": {"url": npu.url, "role": "standby", **npu_more},
        },
        "health": {"interval_seconds": 0.05, "timeout_seconds": 20.0},
        "monitor": {"devices": False},
        **sections,
        "rollout": {"min_step_pairs": 0, **sections.get("rollout", {})},
        "limits": limits,
    }
    gateway = Gateway(settings.parse(raw, folder / "gateway.yaml"), unverified=unverified)
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Bench(gateway, gpu, npu, session)
    finally:
        await gateway.stop()
        await gpu.stop()
        await npu.stop()


Scenario = Callable[[Bench], Awaitable[None]]


class Table:
    """Runs a scenario against a gateway; `gpu` and `npu` are faults by share, or fakes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, scenario: Scenario, gpu: Any = (), npu: Any = (), **sections: Any) -> None:
        async def whole() -> None:
            made = running(self.folder, fake(gpu, "gpu"), fake(npu, "npu"), **sections)
            async with made as bench:
                await scenario(bench)

        asyncio.run(asyncio.wait_for(whole(), 60))


def fake(given: Any, name: str) -> Fake:
    if isinstance(given, Fake):
        return given
    faults = tuple(Fault(kind, share) for kind, share in dict(given).items())
    return Fake(Schedule(faults, seed=7, name=name), tokens=12, keep_bodies=True)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def ramp(*steps: float, **more: Any) -> dict[str, Any]:
    """A rollout section that starts at once and stays at its first step."""
    return {"start": "auto", "steps": list(steps), "min_step_seconds": 3600, **more}
