"""What the gateway costs: processor time per request, added latency, and a peer beside it.

    python benchmarks/gateway_overhead.py [--seconds 4] [--litellm /path/to/venv/bin/litellm]

A constant backend in a process of its own answers with streams of 33 chunks. Measured through the
gateway (all metrics and classification on) and directly, alternating; medians of three rounds.

* 16 clients: processor time of the gateway's process per request; its inverse is requests per
  second and core.
* 1 client: what the gateway adds to the median and to the 99th percentile.
* 64 streams with 20 ms between chunks: 99th percentile of whole streams beside direct.

The ratio to a bare aiohttp proxy, measured by turns, holds on a busy machine, too; times do not.
With --litellm the LiteLLM proxy (one worker) is measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

CHUNKS = 33
KEY = "sk-benchmark-4f1d2c7b9a6e8035d1c24b7f"  # the peer refuses to start without one
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    '{"id":"cmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    '[{"index":0,"delta":%s,"finish_reason":%s}]}'
)
BODY = json.dumps(
    {
        "model": "m",
        "stream": True,
        "user": "u1",
        "messages": [{"role": "user", "content": "hello there, how are you doing today"}],
    }
).encode()


def events(count: int) -> list[bytes]:
    made = [EVENT % (json.dumps({"content": f" tok{i}"}), "null") for i in range(count - 1)]
    made.append(EVENT % ("{}", '"stop"'))
    framed = [b"data: " + text.encode() + b"\n\n" for text in made] + [b"data: [DONE]\n\n"]
    return [b"%x\r\n%s\r\n" % (len(data), data) for data in framed] + [b"0\r\n\r\n"]


class Backend(asyncio.Protocol):
    """Answers every POST with the same stream; `/slow` in the path spaces the chunks."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.rest = transport, b""

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while (end := self.rest.find(b"\r\n\r\n")) >= 0:
            head = self.rest[:end].lower()
            place = head.find(b"content-length:")
            size = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            if len(self.rest) < end + 4 + size:
                return
            body, self.rest = self.rest[end + 4 : end + 4 + size], self.rest[end + 4 + size :]
            if head.startswith(b"get"):
                self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            elif b'"slow"' in body:
                asyncio.get_running_loop().create_task(self.slowly())
            else:
                self.transport.write(ONE if b'"one"' in body else ALL)

    async def slowly(self) -> None:
        self.transport.write(HEAD)
        for chunk in FRAMES:
            self.transport.write(chunk)
            await asyncio.sleep(0.02)


FRAMES = events(CHUNKS)
ALL = HEAD + b"".join(FRAMES)
ONE = HEAD + b"".join(events(2))


def bare(port: int, up: int) -> None:
    """The least that an aiohttp proxy does: no metrics, no judgement, no retries."""
    import aiohttp
    from aiohttp import web

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with request.app[SESSION].post(f"http://127.0.0.1:{up}", data=body) as got:
            response = web.StreamResponse(headers={"content-type": got.headers["content-type"]})
            await response.prepare(request)
            async for block in got.content.iter_any():
                await response.write(block)
            await response.write_eof()
            return response

    async def make() -> web.Application:
        app = web.Application()
        app[SESSION] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app.router.add_post("/{path:.*}", answer)
        return app

    SESSION = web.AppKey("session", aiohttp.ClientSession)
    web.run_app(make(), host="127.0.0.1", port=port, print=None, access_log=None)


def backend(port: int) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


async def client(port: int, until: float, body: bytes, times: list[float]) -> None:
    """Sequential requests on one connection; the time of each goes to `times`, in ms."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s"
        % (KEY.encode(), len(body), body)
    )
    while time.perf_counter() < until:
        started = time.perf_counter()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n0\r\n\r\n")
        if b" 200 OK" not in answer[:20] or b"[DONE]" not in answer:
            raise SystemExit(f"unexpected answer: {answer[:300]!r}")
        times.append((time.perf_counter() - started) * 1e3)
    writer.close()


async def load(port: int, clients: int, seconds: float, body: bytes = BODY) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, until, body, times) for _ in range(clients)))
    return times


def at(times: list[float], share: float) -> float:
    ranked = sorted(times)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def cpu_of(process: psutil.Process) -> float:
    family = [process, *process.children(recursive=True)]
    return sum(t.user + t.system for t in (member.cpu_times() for member in family))


def wait_for(url: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except OSError:
            if time.monotonic() > end:
                raise SystemExit(f"{url} does not answer") from None
            time.sleep(0.2)


def measure(port: int, process: psutil.Process, seconds: float) -> dict[str, float]:
    begun = cpu_of(process)
    times = asyncio.run(load(port, 16, seconds))
    used = cpu_of(process) - begun
    return {"cpu_us": used / len(times) * 1e6, "requests_per_s": len(times) / seconds}


def middle(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}


def gateway(folder: Path, port: int, up: int) -> subprocess.Popen[bytes]:
    config = folder / "gateway.yaml"
    upstreams = {
        "gpu": {"url": f"http://127.0.0.1:{up}", "role": "primary"},
        "npu": {"url": f"http://127.0.0.1:{up}", "role": "standby"},
    }
    config.write_text(
        json.dumps(
            {
                "listen": f"127.0.0.1:{port}",
                "upstreams": upstreams,
                "rollout": {"start": "manual"},
            }
        )
    )
    return subprocess.Popen(
        [sys.executable, "-m", "joymigrate", "serve", "-q", "--config", str(config)]
    )


def litellm(program: str, folder: Path, port: int, up: int) -> subprocess.Popen[bytes]:
    config = folder / "litellm.yaml"
    model = {
        "model_name": "m",
        "litellm_params": {
            "model": "openai/m",
            "api_base": f"http://127.0.0.1:{up}/v1",
            "api_key": "sk-1",
        },
    }
    config.write_text(json.dumps({"model_list": [model]}))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
    return subprocess.Popen(
        [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
        env=environment,
        **quiet,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--litellm")
    parser.add_argument("--port", type=int, default=18700)
    given = parser.parse_args()
    up, ours, theirs, plain = (given.port + place for place in range(4))
    spawn = multiprocessing.get_context("spawn")
    server = spawn.Process(target=backend, args=(up,), daemon=True)
    proxy = spawn.Process(target=bare, args=(plain, up), daemon=True)
    server.start()
    proxy.start()
    found: dict[str, object] = {"load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [gateway(folder, ours, up)]
        if given.litellm:
            started.append(litellm(given.litellm, folder, theirs, up))
        try:
            wait_for(f"http://127.0.0.1:{ours}/health", 30)
            process = psutil.Process(started[0].pid)
            asyncio.run(load(ours, 16, 1.0))
            rows, reference = [], []
            other_process = psutil.Process(proxy.pid)
            for _ in range(3):
                rows.append(measure(ours, process, given.seconds))
                reference.append(measure(plain, other_process, given.seconds))
            many = middle(rows)
            many["bare_proxy_cpu_us"] = middle(reference)["cpu_us"]
            many["ratio_to_bare_proxy"] = round(many["cpu_us"] / many["bare_proxy_cpu_us"], 2)
            many["requests_per_s_and_core"] = round(1e6 / many["cpu_us"])
            found["16 clients"] = many
            found["1 client"] = one_client(up, ours, given.seconds)
            found["64 streams x 20 ms"] = streams(up, plain, ours)
            if given.litellm:
                wait_for(f"http://127.0.0.1:{theirs}/health/liveliness", 120)
                peer = psutil.Process(started[1].pid)
                asyncio.run(load(theirs, 4, 1.0))
                other = middle([measure(theirs, peer, given.seconds) for _ in range(3)])
                other["ratio_cpu"] = round(other["cpu_us"] / many["cpu_us"], 1)
                other["ratio_requests_per_s"] = round(
                    many["requests_per_s"] / other["requests_per_s"], 1
                )
                found["litellm"] = other
        finally:
            for child in started:
                child.terminate()
            for child in started:
                child.wait()
            proxy.terminate()
            server.terminate()
    print(json.dumps(found, indent=2))


def one_client(up: int, ours: int, seconds: float) -> dict[str, float]:
    """One chunk per answer, direct and through the gateway by turns."""
    body = BODY.replace(b'"u1"', b'"one"')
    rows = []
    for _ in range(3):
        direct = asyncio.run(load(up, 1, seconds / 2, body))
        through = asyncio.run(load(ours, 1, seconds / 2, body))
        row = {"direct_p50_ms": at(direct, 0.5), "p50_ms": at(through, 0.5)}
        row["added_p50_ms"] = row["p50_ms"] - row["direct_p50_ms"]
        row["added_p99_ms"] = at(through, 0.99) - at(direct, 0.99)
        rows.append(row)
    return middle(rows)


def streams(up: int, plain: int, ours: int) -> dict[str, float]:
    body = BODY.replace(b'"u1"', b'"slow"')
    rows = []
    for _ in range(3):
        direct = asyncio.run(load(up, 64, 1.5, body))
        bare_one = asyncio.run(load(plain, 64, 1.5, body))
        through = asyncio.run(load(ours, 64, 1.5, body))
        row = {"direct_p99_ms": at(direct, 0.99), "p99_ms": at(through, 0.99)}
        row["bare_proxy_p99_ms"] = at(bare_one, 0.99)
        row["added_p99_ms"] = row["p99_ms"] - row["direct_p99_ms"]
        rows.append(row)
    return middle(rows)


if __name__ == "__main__":
    main()
