"""How many streams are held at once: a gateway with its defaults, two fake backends, one client.

    python -m benchmarks.gateway_streams --streams 2000

Streams are opened `--rate` a second and last for `--seconds`, so that all of them are open at once.
Backends and client share a process, the gateway has one of its own. Prints one JSON line; exit 1
unless every stream came whole, with the backend's text, while all were open.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import psutil

from benchmarks.gateway_drill import judge
from tests.run.serve.gateway.fake import Fake, full_text

TOKENS = 24


async def one(
    session: aiohttp.ClientSession, url: str, number: int, seen: Counter[str], ends: list[float]
) -> None:
    """One stream, read to its end."""
    body = {"stream": True, "user": f"user {number}",
            "messages": [{"role": "user", "content": f"question {number}"}]}  # fmt: skip
    try:
        async with session.post(url + "/v1/chat/completions", json=body) as response:
            seen["open"] += 1
            seen["most"] = max(seen["most"], seen["open"])
            raw = await response.read()
            seen["open"] -= 1
            if response.status != 200:
                seen[f"status {response.status}: {raw[:120].decode('utf-8', 'replace')}"] += 1
            seen[judge(raw, response.status, True, full_text(body, TOKENS))] += 1
    except aiohttp.ClientError as error:
        seen[type(error).__name__] += 1
    ends.append(time.monotonic())


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=100)
    given = parser.parse_args()
    fakes = [Fake(tokens=TOKENS, gap_seconds=given.seconds / TOKENS) for _ in range(2)]
    for fake in fakes:
        await fake.start()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "gateway.yaml"
        roles = zip(("gpu", "npu"), fakes, ("primary", "standby"), strict=True)
        upstreams = {name: {"url": fake.url, "role": role} for name, fake, role in roles}
        config.write_text(json.dumps({"listen": "127.0.0.1:0", "upstreams": upstreams}))
        command = [sys.executable, "-m", "joymigrate", "serve", "--config", str(config)]
        process = subprocess.Popen([*command, "--unverified"], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        url = next(line.split()[-1] for line in process.stderr if "listening on" in line)
        watched = psutil.Process(process.pid)
        idle = watched.num_fds()
        seen: Counter[str] = Counter()
        ends: list[float] = []
        begun = time.monotonic()
        limit = aiohttp.ClientTimeout(total=600)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
            tasks = []
            for number in range(given.streams):
                tasks.append(asyncio.create_task(one(session, url, number, seen, ends)))
                await asyncio.sleep(max(0.0, begun + (number + 1) / given.rate - time.monotonic()))
            await asyncio.gather(*tasks)
        await asyncio.sleep(5)
        found = {
            "streams": given.streams,
            "open_at_once": seen.pop("most"),
            "seen": {name: count for name, count in seen.items() if name != "open"},
            "seconds": round(max(ends) - begun, 1),
            "gateway_rss_mib": round(watched.memory_info().rss / 2**20),
            "gateway_cpu_s": round(sum(watched.cpu_times()[:2]), 1),
            "descriptors_at_rest": [idle, watched.num_fds()],
        }
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
    print(json.dumps(found))
    whole = seen["ok"] == given.streams
    return 0 if whole and found["open_at_once"] == given.streams else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
