"""One client against several servers, interleaved: tokens a second, time to first token, ratios.

    python -m benchmarks.serve_load ours=http://127.0.0.1:8000 vllm=http://127.0.0.1:8001 \\
        --model NAME --concurrency 1,8,32 --prompt-tokens 128 --output-tokens 64 [--shared 448]

Prompts are random token ids, so that every server sees the same tokens. `--pid NAME=PID` adds CPU
seconds of that process and its children. The first server named is what the others are divided by.
How many ids there are is asked of the servers (`vocabulary` in /v1/models); one that does not say
needs `--vocabulary`. `--text` sends random words and no field beyond OpenAI's, for servers that
take nothing else; tokens are then those that the server counts, or its events. `--cancel MINUTES
--pid ours=PID` is a soak instead: requests that are cut at random, with the memory and the open
descriptors of the process over time, and why requests failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil


@dataclass
class Round:
    """What one server did with one load."""

    ttft: list[float] = field(default_factory=list)  # seconds
    tpot: list[float] = field(default_factory=list)  # seconds per token
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.wall if self.wall else 0.0


def prompts(count: int, length: int, shared: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Random ids; the first `shared` are the same in all prompts."""
    source = random.Random(seed)
    head = [source.randrange(8, vocabulary) for _ in range(shared)]
    rest = length - shared
    return [head + [source.randrange(8, vocabulary) for _ in range(rest)] for _ in range(count)]


def cpu_seconds(pid: int | None) -> float:
    """Processor time of a process and its children."""
    if pid is None:
        return 0.0
    process = psutil.Process(pid)
    return sum(
        one.cpu_times().user + one.cpu_times().system
        for one in (process, *process.children(recursive=True))
    )


def words(count: int, length: int, seed: int) -> list[str]:
    """Random words, about as many as the tokens that were asked for."""
    source = random.Random(seed)
    return [
        " ".join("".join(source.choices("abcdefghij", k=3)) for _ in range(length // 3))
        for _ in range(count)
    ]


async def one(session: Any, url: str, body: dict[str, Any], seen: Round) -> None:
    """One streamed completion."""
    began = time.perf_counter()
    first = last = 0.0
    used = events = 0
    async with session.post(url + "/v1/completions", json=body) as response:
        if response.status != 200:
            seen.failures.append(f"{response.status} {(await response.text())[:200]}")
            return
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            found = json.loads(line[6:])
            if found.get("error"):
                seen.failures.append(str(found["error"])[:200])
                return
            if found.get("choices"):
                last = time.perf_counter()
                first = first or last
                events += 1
            used = (found.get("usage") or {}).get("completion_tokens") or used
    used = used or events
    if not first:
        seen.failures.append("no token")
        return
    seen.tokens += used
    seen.ttft.append(first - began)
    seen.tpot.append((last - first) / max(1, used - 1))


async def load(
    url: str, pid: int | None, asked: argparse.Namespace, width: int, seed: int
) -> Round:
    """`width` clients until all prompts are answered."""
    seen = Round()
    count, length = asked.requests * width, asked.prompt_tokens
    queue: list[Any] = (
        list(words(count, length, seed))
        if asked.text
        else list(prompts(count, length, asked.shared, asked.vocabulary, seed))
    )
    fixed: dict[str, Any] = {
        "model": asked.model, "max_tokens": asked.output_tokens, "temperature": 0, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    if asked.text:
        del fixed["ignore_eos"]
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def client() -> None:
            while queue:
                await one(session, url, {**fixed, "prompt": queue.pop()}, seen)

        before, began = cpu_seconds(pid), time.perf_counter()
        await asyncio.gather(*(client() for _ in range(width)))
        seen.wall, seen.cpu = time.perf_counter() - began, cpu_seconds(pid) - before
    return seen


async def soak(url: str, pid: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Requests that are cut at random for some minutes; memory and descriptors before and after."""
    process = psutil.Process(pid)
    chosen = random.Random(1)
    counts = {"asked": 0, "answered": 0, "cut": 0, "failed": 0}
    reasons: Counter[str] = Counter()
    marks = []
    longest = max(5, asked.prompt_tokens)

    async def client(session: Any) -> None:
        while time.monotonic() < end:
            (ids,) = prompts(1, chosen.randrange(4, longest), 0, asked.vocabulary,
                             chosen.randrange(10**9))  # fmt: skip
            body = {"model": asked.model, "prompt": ids, "stream": chosen.random() < 0.8,
                    "max_tokens": asked.output_tokens, "n": chosen.choice((1, 1, 2))}  # fmt: skip
            counts["asked"] += 1
            patience = chosen.choice((0.01, 0.05, 0.2, 60))
            try:
                async with asyncio.timeout(patience):
                    async with session.post(url + "/v1/completions", json=body) as response:
                        raw = await response.read()
                trouble = trouble_in(response.status, raw)
            except (TimeoutError, asyncio.TimeoutError):
                counts["cut"] += 1
                continue
            except aiohttp.ClientError as error:
                trouble = f"{type(error).__name__}: {error}"
            counts["failed" if trouble else "answered"] += 1
            if trouble:
                reasons[trouble] += 1

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(asked.cancel * 60 / 10)
            marks.append((process.memory_info().rss >> 20, process.num_fds()))

    end = time.monotonic() + asked.cancel * 60
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(watch(), *(client(session) for _ in range(8)))
        await asyncio.sleep(1)
        async with session.get(url + "/metrics") as response:
            page = await response.text()
    held = [line for line in page.splitlines() if line.startswith("joymigrate_kv_cache_usage ")]
    return {**counts, "reasons": dict(reasons.most_common(5)), "rss_mib_and_descriptors": marks,
            "kv_usage_after": held}  # fmt: skip


def trouble_in(status: int, raw: bytes) -> str:
    """Why an answer is none; empty for a good one, whole or streamed."""
    text = raw.decode("utf-8", "replace")
    if status != 200:
        return f"{status} {text[:200]}"
    broken = next((line for line in text.splitlines() if line.startswith('data: {"error"')), "")
    if broken:
        return broken[:200]
    streamed = text.startswith("data: ")
    return "the stream is cut" if streamed and "data: [DONE]" not in text else ""


def vocabulary_of(urls: Iterable[str]) -> int:
    """The smallest vocabulary that the servers name; exits where none does."""
    sizes = []
    for url in urls:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as response:
            listed = json.load(response)["data"]
        sizes += [int(card["vocabulary"]) for card in listed if card.get("vocabulary")]
    if not sizes:
        raise SystemExit("the servers do not name their vocabulary: give --vocabulary")
    return min(sizes)


def row(name: str, width: int, rounds: list[Round], base: list[Round] | None) -> str:
    """One line: medians of the rounds, and ratios to the first server."""
    rate = statistics.median(one.rate for one in rounds)
    ttft = statistics.median(t for one in rounds for t in one.ttft or [0.0])
    tpot = statistics.median(t for one in rounds for t in one.tpot or [0.0])
    cpu = sum(one.cpu for one in rounds)
    per_cpu = sum(one.tokens for one in rounds) / cpu if cpu else 0.0
    failures = sum(len(one.failures) for one in rounds)
    text = (
        f"{name:<12} c={width:<3} {rate:8.1f} tok/s {per_cpu:8.1f} tok/CPU-s "
        f"TTFT p50 {ttft * 1000:7.1f} ms  TPOT p50 {tpot * 1000:6.2f} ms  failures {failures}"
    )
    if base is not None and rate:
        other = statistics.median(one.rate for one in base)
        text += f"  (the first one is {other / rate:.2f}x)"
    return text


def main() -> None:
    """Run the rounds in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--model", required=True)
    parser.add_argument("--pid", action="append", default=[], metavar="NAME=PID")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--requests", type=int, default=3, help="per client and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--shared", type=int, default=0, help="equal tokens at the beginning")
    parser.add_argument("--vocabulary", type=int, help="default: what the servers say")
    parser.add_argument("--text", action="store_true", help="words instead of token ids")
    parser.add_argument("--cancel", type=float, default=0.0, metavar="MINUTES")
    asked = parser.parse_intermixed_args()
    servers = dict(item.split("=", 1) for item in asked.servers)
    if asked.vocabulary is None and not asked.text:
        asked.vocabulary = vocabulary_of(servers.values())
    pids = {name: int(pid) for name, pid in (item.split("=") for item in asked.pid)}
    if asked.cancel:
        for name, url in servers.items():
            print(name, json.dumps(asyncio.run(soak(url, pids[name], asked))))
        return
    print(f"load average {os.getloadavg()[0]:.1f}; rounds interleaved")
    for width in map(int, asked.concurrency.split(",")):
        found: dict[str, list[Round]] = {name: [] for name in servers}
        for number in range(asked.rounds):
            for name, url in servers.items():
                seed = number * 1000 + width
                found[name].append(asyncio.run(load(url, pids.get(name), asked, width, seed)))
        first = next(iter(servers))
        for name, rounds in found.items():
            print(row(name, width, rounds, None if name == first else found[first]), flush=True)
            for failure in [f for one in rounds for f in one.failures][:2]:
                print(f"    {failure}")


if __name__ == "__main__":
    main()
