"""What the gateway does for one request, counted in function calls: load does not change them.

    python -m benchmarks.gateway_calls [--tree FOLDER] [--port 18811]

A gateway runs under cProfile in a process of its own, from the tree given (another commit's, for
a comparison). It answers 200 streams of 33 chunks, then 1,200; the difference over 1,000 is the
share of a request. Functions called less than once in two requests are left out (the start).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import pstats
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import gateway_overhead as overhead

FEW, MANY = 200, 1200
PROGRAM = """
import cProfile, runpy, sys
sys.argv = ["joymigrate", "serve", "-q", "--config", {config!r}]
profile = cProfile.Profile()
try:
    profile.runcall(runpy.run_module, "joymigrate", run_name="__main__", alter_sys=True)
except BaseException:
    pass
profile.dump_stats({made!r})
"""
Counts = dict[tuple[str, int, str], int]


async def ask(port: int, count: int) -> None:
    """`count` streams, one after the other, on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {overhead.KEY}\r\ncontent-length: {len(overhead.BODY)}\r\n\r\n"
    for _ in range(count):
        writer.write(head.encode() + overhead.BODY)
        answer = await reader.readuntil(b"\r\n0\r\n\r\n")
        if b" 200 OK" not in answer[:20]:
            raise SystemExit(f"unexpected answer: {answer[:300]!r}")
    writer.close()


def count(tree: Path, port: int, requests: int) -> Counts:
    """Calls of each function while a gateway lives and answers `requests`."""
    upstream = {"url": f"http://127.0.0.1:{port}"}
    raw = {
        "listen": f"127.0.0.1:{port + 1}",
        "upstreams": {
            "gpu": {**upstream, "role": "primary"},
            "npu": {**upstream, "role": "standby"},
        },
        "rollout": {"start": "manual"},
    }
    with tempfile.TemporaryDirectory() as name:
        config, made = Path(name) / "gateway.yaml", Path(name) / "profile"
        config.write_text(json.dumps(raw))
        program = PROGRAM.format(config=str(config), made=str(made))
        process = subprocess.Popen([sys.executable, "-c", program], cwd=tree)
        overhead.wait_for(f"http://127.0.0.1:{port + 1}/health", 90)
        asyncio.run(ask(port + 1, requests))
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        stats: dict[tuple[str, int, str], tuple[int, ...]] = vars(pstats.Stats(str(made)))["stats"]
        return {function: row[1] for function, row in stats.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path.cwd())
    parser.add_argument("--port", type=int, default=18811)
    given = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    spawn.Process(target=overhead.backend, args=(given.port,), daemon=True).start()
    few, many = (count(given.tree, given.port, requests) for requests in (FEW, MANY))
    rows = [((calls - few.get(at, 0)) / (MANY - FEW), at) for at, calls in many.items()]
    rows = sorted((row for row in rows if row[0] >= 0.5), key=lambda row: -row[0])
    ours = [row for row in rows if "/joymigrate/" in row[1][0]]
    print(
        f"{sum(row[0] for row in rows):.0f} calls a request, {sum(row[0] for row in ours):.0f} ours"
    )
    for calls, (file, line, name) in ours[:20]:
        print(f"{calls:8.2f}  {file.rpartition('/joymigrate/')[2]}:{line} {name}")


if __name__ == "__main__":
    main()
