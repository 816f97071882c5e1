"""Does the gateway stay the same size? Requests at a fixed rate with faults, for minutes.

    python benchmarks/gateway_soak.py --minutes 10 --rate 200

The gateway runs in a process of its own. Prints one JSON line: its memory in the second and in
the last quarter, its descriptors at rest before and after, what clients saw. Passes (exit 0) when
memory grew by less than 5 %, at most five descriptors more are open at rest (files of the history
open late), and no answer was corrupt or silently cut.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
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
from tests.run.serve.gateway.faults import Fault, Schedule

TOKENS = 6
REST_SECONDS = 5.0
OPEN = 100  # requests at a time: a machine that cannot keep the rate must not pile them up
FAULTS = ("refuse", "status_500", "error_after_200", "truncate", "cut", "reset", "invalid_json")


async def one(session: aiohttp.ClientSession, url: str, number: int, seen: Counter[str]) -> None:
    body = {
        "stream": number % 5 > 0,
        "user": f"user {number % 997}",
        "messages": [{"role": "user", "content": f"question {number}"}],
    }
    try:
        async with session.post(url + "/v1/chat/completions", json=body) as response:
            raw = await response.read()
            seen[judge(raw, response.status, body["stream"], full_text(body, TOKENS))] += 1
    except aiohttp.ClientError:
        seen["silently cut"] += 1


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=200)
    given = parser.parse_args()
    faults = tuple(Fault(kind, 0.002) for kind in FAULTS)
    gpu = Fake(Schedule(faults, 1, "gpu"), tokens=TOKENS)
    npu = Fake(Schedule(faults, 2, "npu"), tokens=TOKENS)
    await gpu.start()
    await npu.start()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "gateway.yaml"
        upstreams = {
            "gpu": {"url": gpu.url, "role": "primary"},
            "npu": {"url": npu.url, "role": "standby"},
        }
        # A rule that never trips keeps both backends in the traffic for the whole time.
        rollout = {"steps": [50, 100], "min_step_seconds": 1e6, "max_step_seconds": 1e7,
                   "rule": {"name": "eprocess", "limit": 0.9}}  # fmt: skip
        config.write_text(
            json.dumps(
                {"listen": "127.0.0.1:0", "upstreams": upstreams, "rollout": rollout,
                 "log": "requests.jsonl", "shadow": {"percent": 5}}
            )
        )  # fmt: skip
        command = [sys.executable, "-m", "joymigrate", "serve", "--config", str(config)]
        process = subprocess.Popen([*command, "--unverified"], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        url = ""
        for line in process.stderr:
            if "listening on" in line:
                url = line.split()[-1]
                break
        found = await load(given, url, psutil.Process(process.pid))
        process.terminate()
        found["exit_code"] = await asyncio.to_thread(process.wait, 30)
    print(json.dumps(found))
    return 0 if found["flat"] and found["honest"] else 1


async def load(given: argparse.Namespace, url: str, process: psutil.Process) -> dict[str, object]:
    seen: Counter[str] = Counter()
    sizes: list[tuple[float, int]] = []
    end, sampled, number = time.monotonic() + given.minutes * 60, 0.0, 0
    begun, idle = process.cpu_times(), process.num_fds()
    tasks: set[asyncio.Task[None]] = set()
    started = time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        while time.monotonic() < end:
            while number < (time.monotonic() - started) * given.rate and len(tasks) < OPEN:
                task = asyncio.create_task(one(session, url, number, seen))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            if time.monotonic() - sampled >= 10:
                sampled = time.monotonic()
                sizes.append((round(process.memory_info().rss / 2**20, 1), process.num_fds()))
            await asyncio.sleep(0.02)
        await asyncio.gather(*tasks)
    used = process.cpu_times()
    await asyncio.sleep(REST_SECONDS)  # idle connections to the backends are closed by now
    at_rest = [idle, process.num_fds()]
    quarter = max(1, len(sizes) // 4)
    first, last = sizes[quarter : 2 * quarter] or sizes, sizes[-quarter:]
    rss = [statistics.median(size for size, _ in part) for part in (first, last)]
    return {
        "minutes": given.minutes,
        "requests": number,
        "requests_per_s": round(number / (given.minutes * 60), 1),
        "series": sizes[:: max(1, len(sizes) // 12)],
        "seen": dict(seen),
        "rss_mib": [round(value, 1) for value in rss],
        "descriptors_at_rest": at_rest,
        "cpu_us_per_request": round(
            (used.user + used.system - begun.user - begun.system) / number * 1e6
        ),
        "flat": rss[1] < rss[0] * 1.05 and at_rest[1] <= at_rest[0] + 5,
        "honest": not (seen["corrupt"] or seen["silently cut"]),
    }


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
