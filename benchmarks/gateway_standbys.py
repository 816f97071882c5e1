"""Misconfigured standbys and faults of either side: what is promoted, what clients see.

    python -m benchmarks.gateway_standbys mistakes --seeds 20
    python -m benchmarks.gateway_standbys faults --seeds 3

`mistakes`: a standby that does one thing wrong at every request. None may be promoted.
`faults`: one side does one thing wrong at a share of its requests. No client may see a failure
before its first byte, and no stream may end wrong without saying so.

Gateway, clients and backends share one process. Where that stands still for as long as the limit
for the first byte (another process has the processor, the disk is slow), a healthy backend could
not answer either: such a run says nothing, is repeated, and is counted in `stood still`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.server import Gateway
from tests.run.serve.gateway.fake import Fake, full_text
from tests.run.serve.gateway.faults import KINDS, Fault, Schedule

MISTAKES = (
    "status_404", "status_401", "status_400", "redirect", "html", "no_body", "no_content",
    "bare_object", "wrong_type", "silent", "refusing", "short", "other_text", "slow", "busy",
    "no_usage", "zero_usage", "other_name", "no_model", "no_logprobs", "flat_logprobs", "no_role",
    "other_finish",
)  # fmt: skip
UNSEEN = ("garbage", "short", "other_text", "refusing", "silent")  # the text itself is wrong
TOKENS = 12
HEALTHY = "healthy"  # the control: this one has to be promoted
WAVES = 60
LIMIT_SECONDS = 0.3  # for the first byte and between bytes; --limit on a busy machine
STILL = 0.5  # of that limit: a run in which the process stood still for longer is repeated
TRIES = 5


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> str:
    """One request; `ok`, `error` before the first byte, `interrupted`, `cut` or `wrong`."""
    stream, chat = number % 4 != 0, number % 3 != 0
    body: dict[str, Any] = {"model": "fake", "stream": stream, "temperature": 0}
    if number % 5 == 0:
        body["logprobs"] = True if chat else 1
    body |= (
        {"messages": [{"role": "user", "content": f"q{number}"}]}
        if chat
        else {"prompt": f"q{number}"}
    )
    path = "/v1/chat/completions" if chat else "/v1/completions"
    async with session.post(url + path, json=body) as response:
        if response.status != 200:
            return f"error {response.status}"
        try:
            raw = await response.read()
        except aiohttp.ClientError:
            return "cut"
    return judge(raw, stream, chat, full_text(body, TOKENS))


def judge(raw: bytes, stream: bool, chat: bool, expected: str) -> str:
    """What a client makes of a whole answer."""
    try:
        if not stream:
            choice = json.loads(raw)["choices"][0]
            text = choice["message"]["content"] if chat else choice["text"]
            return "ok" if text == expected else "wrong"
        text, done = "", False
        for event in raw.split(b"\n\n"):
            if event == b"data: [DONE]":
                done = True
            elif event.startswith(b"data: "):
                parsed = json.loads(event[6:])
                if parsed.get("error"):
                    return "interrupted" if text else "error in the stream"
                for choice in parsed["choices"]:
                    text += (choice["delta"].get("content") if chat else choice["text"]) or ""
    except (ValueError, KeyError, TypeError, IndexError):
        return "error unreadable"
    if not done:
        return "cut"
    return "ok" if text == expected else "wrong"


async def watch(still: list[float]) -> None:
    """Keep the longest time in seconds for which this process stood still in `still[0]`."""
    pulse_seconds = 0.01
    while True:
        before = time.perf_counter()
        await asyncio.sleep(pulse_seconds)
        still[0] = max(still[0], time.perf_counter() - before - pulse_seconds)


async def measure(
    kind: str, share: float, side: str, seed: int, folder: Path, limit: float
) -> dict[str, Any]:
    """`run`, again where the process stood still. `stood_still` lists what was thrown away."""
    thrown: list[dict[str, Any]] = []
    for _ in range(TRIES):
        still = [0.0]
        watcher = asyncio.get_running_loop().create_task(watch(still))
        try:
            found = await run(kind, share, side, seed, folder, limit)
        finally:
            watcher.cancel()
        if still[0] < STILL * limit:
            break
        thrown.append({**found, "seconds": still[0]})
    else:
        found = {**found, "state": "stood still", "seen": {}}
    return {**found, "stood_still": thrown}


async def run(
    kind: str, share: float, side: str, seed: int, folder: Path, limit: float
) -> dict[str, Any]:
    """One gateway between two fakes until it decided or the waves are over."""
    faults = () if kind == HEALTHY else (Fault(kind, share),)
    bad = Fake(Schedule(faults, seed=seed, name=side), tokens=TOKENS)
    good = Fake(tokens=TOKENS)
    gpu, npu = (good, bad) if side == "standby" else (bad, good)
    await gpu.start()
    await npu.start()
    raw = {
        "listen": "127.0.0.1:0",
        "upstreams": {
            "gpu": {"url": gpu.url, "role": "primary"},
            "npu": {"url": npu.url, "role": "standby"},
        },
        "rollout": {"start": "auto", "steps": [5, 50, 100], "min_step_seconds": 0.02,
                    "limit": 0.02},
        "limits": {"first_byte_seconds": limit, "idle_seconds": limit,
                   "drain_seconds": 1.0},
        "health": {"interval_seconds": 0.2},
        "monitor": {"devices": False},
    }  # fmt: skip
    path = Path(tempfile.mkdtemp(dir=folder)) / "gateway.yaml"  # a repeated run begins afresh
    gateway = Gateway(settings.parse(raw, path), unverified=True)
    await gateway.start()
    seen: Counter[str] = Counter()
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{gateway.port}"
            for wave in range(WAVES * (1 + (kind == HEALTHY))):
                asked = [ask(session, url, seed * 10_000 + wave * 16 + i) for i in range(16)]
                seen.update(await asyncio.gather(*asked))
                if gateway.rollout.state in ("promoted", "rolled_back", "paused"):
                    break
                await asyncio.sleep(0.005)
        change = gateway.rollout.changes[-1]
        return {"kind": kind, "side": side, "seed": seed, "state": gateway.rollout.state,
                "seen": dict(seen), "why": change.text}  # fmt: skip
    finally:
        await gateway.stop()
        await gpu.stop()
        await npu.stop()


async def main_async(asked: argparse.Namespace) -> None:
    kinds = asked.kinds.split(",") if asked.kinds else None
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if asked.what == "mistakes":
            plans = [(kind, 1.0, "standby") for kind in kinds or (*MISTAKES, HEALTHY)]
        else:
            plans = [(kind, share, side) for kind in kinds or KINDS for side in
                     ("primary", "standby") for share in (0.2, 1.0)]  # fmt: skip
        total: Counter[str] = Counter()
        lost: Counter[str] = Counter()  # what clients saw in the runs that were thrown away
        for kind, share, side in plans:
            states: Counter[str] = Counter()
            seen: Counter[str] = Counter()
            why = ""
            for seed in range(asked.seeds):
                found = await measure(kind, share, side, seed, folder, asked.limit)
                total["stood still"] += len(found["stood_still"])
                for thrown in found["stood_still"]:
                    lost.update(thrown["seen"])
                states[found["state"]] += 1
                seen.update(found["seen"])
                why = found["why"]
            total.update(seen)
            total["promoted"] += states["promoted"]
            print(f"{kind:<16} {share:4.0%} {side:<8} {dict(states)} {dict(seen)} | {why[:110]}",
                  flush=True)  # fmt: skip
        print(dict(total), "| in runs that stood still:", dict(lost))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("mistakes", "faults"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS,
                        help="seconds to the first byte and between bytes")  # fmt: skip
    asyncio.run(main_async(parser.parse_args()))


if __name__ == "__main__":
    main()
