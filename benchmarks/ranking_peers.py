"""Ranking servers side by side: requests per processor-second and p99 over HTTP, one client.

    python -m benchmarks.ranking_peers [--peers aiohttp,ray,torchserve] [--clients 16]
                                       [--requests 1500] [--model din.pt2] [--torchserve FOLDER]

The same exported model, the same JSON body, one torch thread. Peers: `aiohttp` (a plain loop, one
request after the other), `ray` (Ray Serve with @serve.batch; its batch is merged by the code that
we use; needs ray[serve]), `torchserve` (its Java frontend forms batches within 2 ms, merged by the
same code; needs java, and torchserve with torch-model-archiver, here or in FOLDER, the
site-packages of another environment). Ours: eager, and with its package, which is waited for:
without `--model` and a package of it in $JOYMIGRATE_CACHE it is compiled first. Processor time is
that of the
server's process and all its children, Ray's own processes included. `queued` is how long the
server's threads stood ready for a processor that others had, by wall time (Linux: schedstat): on a
machine that is busy with other work it is what makes p99, and on an idle one it is near 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil

from benchmarks import ranking_example as example
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.program import load

CANDIDATES, LENGTH = 5, 20
PLAIN = """
import sys, orjson, torch
from aiohttp import web
from pathlib import Path
from joymigrate.run.serve.ranking import json_inputs
from joymigrate.run.serve.ranking.program import load
from joymigrate.run.serve.ranking.request import check
torch.set_num_threads(1)
program = load(Path(sys.argv[1]))
async def rank(request):
    body = orjson.loads(await request.read())
    asked = check(program.signature, json_inputs.read_values(program.signature, body["inputs"]))
    scores = program.run(asked.arrays)[0].numpy()
    return web.Response(body=orjson.dumps({"outputs": {"score": scores}},
                        option=orjson.OPT_SERIALIZE_NUMPY), content_type="application/json")
app = web.Application()
app.add_routes([web.post("/v1/rank", rank)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]), print=None)
"""
RAY = """
import sys, time, ray, orjson, torch
from pathlib import Path
from ray import serve
from starlette.requests import Request
from starlette.responses import Response
from joymigrate.run.serve.ranking import json_inputs
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.program import load
from joymigrate.run.serve.ranking.request import check
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
@serve.deployment(max_ongoing_requests=256)
class Ranker:
    def __init__(self, path):
        torch.set_num_threads(1)
        self.program = load(Path(path))
    @serve.batch(max_batch_size=128, batch_wait_timeout_s=0.002)
    async def batch(self, asked):
        whole = merge(self.program.signature, asked)
        scores = self.program.run(whole.arrays)[0].numpy()
        return [scores[start:stop] for start, stop in whole.spans]
    async def __call__(self, request: Request):
        body = orjson.loads(await request.body())
        asked = check(self.program.signature,
                      json_inputs.read_values(self.program.signature, body["inputs"]))
        scores = await self.batch(asked)
        return Response(orjson.dumps({"outputs": {"score": scores}},
                        option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
serve.run(Ranker.bind(sys.argv[1]), route_prefix="/v1/rank")
while True:
    time.sleep(1)
"""
TORCHSERVE = """
import orjson, torch
from pathlib import Path
from joymigrate.run.serve.ranking import json_inputs
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.program import load
from joymigrate.run.serve.ranking.request import check
held = []
def handle(rows, context):
    if not held:
        torch.set_num_threads(1)
        held.append(load(Path(context.system_properties["model_dir"]) / "din.pt2"))
    if not rows:
        return []
    program = held[0]
    asked = []
    for row in rows:
        body = row.get("body") or row.get("data")
        body = body if isinstance(body, dict) else orjson.loads(bytes(body))
        asked.append(check(program.signature,
                           json_inputs.read_values(program.signature, body["inputs"])))
    whole = merge(program.signature, asked)
    scores = program.run(whole.arrays)[0].numpy()
    return [orjson.dumps({"outputs": {"score": scores[start:stop].copy()}},
                         option=orjson.OPT_SERIALIZE_NUMPY) for start, stop in whole.spans]
"""
PATHS = {"torchserve": "/predictions/ranker"}
MODEL = {
    "ranker": {
        "1.0": {
            "marName": "ranker.mar",
            "minWorkers": 1,
            "maxWorkers": 1,
            "batchSize": 128,
            "maxBatchDelay": 2,
            "responseTimeout": 120,
        }
    }
}


def torchserve(path: Path, port: int) -> list[str]:
    """An archive of the model, a configuration, and the command that serves them."""
    folder = Path(tempfile.mkdtemp())
    (folder / "handler.py").write_text(TORCHSERVE)
    (folder / "din.pt2").write_bytes(path.read_bytes())
    archive = "from model_archiver.model_packaging import generate_model_archive as go; go()"
    subprocess.run(
        [sys.executable, "-c", archive, "--model-name", "ranker", "--version", "1.0", "--handler",
         str(folder / "handler.py"), "--extra-files", str(folder / "din.pt2"), "--export-path",
         str(folder)], check=True,
    )  # fmt: skip
    settings = {
        "inference_address": f"http://127.0.0.1:{port}", "metrics_mode": "prometheus",
        "management_address": f"http://127.0.0.1:{port + 40}", "enable_metrics_api": "false",
        "metrics_address": f"http://127.0.0.1:{port + 41}", "model_store": str(folder),
        "load_models": "ranker.mar", "job_queue_size": "1000",
        "disable_token_authorization": "true",
        "disable_system_metrics": "true", "install_py_dep_per_model": "false",
        "models": json.dumps(MODEL),
    }  # fmt: skip
    os.environ["LOG_LOCATION"] = os.environ["METRICS_LOCATION"] = str(folder)
    (folder / "config.properties").write_text(
        "".join(f"{key}={value}\n" for key, value in settings.items())
    )
    return [sys.executable, "-c", "from ts.model_server import start; start()", "--start",
            "--foreground", "--ncs", "--disable-token-auth", "--ts-config",
            str(folder / "config.properties")]  # fmt: skip


def command(name: str, path: Path, port: int) -> list[str]:
    """How a server is started."""
    if name == "torchserve":
        return torchserve(path, port)
    if name in ("aiohttp", "ray"):
        return [sys.executable, "-W", "ignore", "-c", PLAIN if name == "aiohttp" else RAY,
                str(path), str(port)]  # fmt: skip
    more = [] if name == "ours-compiled" else ["--no-compile"]
    start = [sys.executable, "-W", "ignore", "-m", "joymigrate", "serve", str(path)]
    set_up = ["--device", "cpu", "--threads", "1", "--lanes", "1", "-q"]
    return [*start, "--port", str(port), *set_up, *more]


def processor_seconds(root: int) -> float:
    """Of a process and everything below it, and of Ray's processes wherever they are."""
    whole = 0.0
    mine = psutil.Process(root)
    family = {mine.pid, *(one.pid for one in mine.children(recursive=True))}
    for one in psutil.process_iter(["pid", "cmdline", "cpu_times", "name"]):
        line = " ".join(one.info["cmdline"] or ())
        if one.info["pid"] in family or "ray::" in line or "raylet" in line or "gcs_server" in line:
            times = one.info["cpu_times"]
            whole += times.user + times.system
    return whole


def queued_seconds(root: int) -> float:
    """How long the threads of a process and its children waited for a processor."""
    whole = 0
    for one in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
        for found in Path(f"/proc/{one.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                whole += int(found.read_text().split()[1])
    return whole / 1e9


async def package(session: aiohttp.ClientSession, url: str, seconds: float) -> None:
    """Wait until compiled code answers."""
    end = time.monotonic() + seconds
    while True:
        async with session.get(url) as reply:
            states = [line for line in (await reply.text()).splitlines()
                      if "compile_state{" in line and line.endswith((" 1", " 1.0"))]  # fmt: skip
        if any('"ready"' in line for line in states):
            return
        if time.monotonic() > end:
            raise SystemExit(f"no package after {seconds:.0f} s: {states}")
        await asyncio.sleep(1)


async def ready(session: aiohttp.ClientSession, url: str, body: bytes, seconds: float) -> None:
    """Wait for a first right answer."""
    end = time.monotonic() + seconds
    while True:
        try:
            async with session.post(url, data=body) as reply:
                if reply.status == 200 and "outputs" in await reply.json(content_type=None):
                    return
        except (aiohttp.ClientError, OSError, ValueError):
            pass
        if time.monotonic() > end:
            raise SystemExit(f"{url} does not answer")
        await asyncio.sleep(0.3)


async def load_of(
    url: str, bodies: list[bytes], clients: int, requests: int, root: int, compiled: bool
) -> dict[str, float]:
    """A closed loop of clients; the first tenth warms up."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await ready(session, url, bodies[0], 120)
        if compiled:
            await package(session, url.replace("/v1/rank", "/metrics"), 900)
        times: list[float] = []

        async def client(numbers: Any) -> None:
            for number in numbers:
                began = time.perf_counter()
                async with session.post(url, data=bodies[number % len(bodies)]) as reply:
                    await reply.read()
                    if reply.status != 200:
                        raise SystemExit(f"{url}: status {reply.status}")
                times.append(1e3 * (time.perf_counter() - began))

        warm = iter(range(requests // 10))
        await asyncio.gather(*(client(warm) for _ in range(clients)))
        times.clear()
        used, queued = processor_seconds(root), queued_seconds(root)
        began = time.perf_counter()
        numbers = iter(range(requests))
        await asyncio.gather(*(client(numbers) for _ in range(clients)))
        seconds, used = time.perf_counter() - began, processor_seconds(root) - used
        queued = queued_seconds(root) - queued
    times.sort()
    return {"per_cpu_s": requests / used, "per_s": requests / seconds,
            "p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100],
            "queued": queued / seconds}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="aiohttp,ray")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--model", type=Path, help="the DIN-like model; default: a fresh one")
    parser.add_argument("--torchserve", type=Path, help="site-packages with torchserve")
    options = parser.parse_args()
    if options.torchserve is not None:
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = f"{before}{os.pathsep}{options.torchserve}"
    path = options.model or example.export(Path(tempfile.mkdtemp()) / "din.pt2")
    program = load(path)
    bodies = [
        orjson.dumps({"inputs": draw(program.signature, CANDIDATES, LENGTH, seed).arrays},
                     option=orjson.OPT_SERIALIZE_NUMPY) for seed in range(100)
    ]  # fmt: skip
    rows = {}
    for place, name in enumerate([*options.peers.split(","), "ours", "ours-compiled"]):
        port = 18400 + place
        server = subprocess.Popen(command(name, path, port), env=dict(os.environ))
        try:
            url = f"http://127.0.0.1:{port}{PATHS.get(name, '/v1/rank')}"
            measured = load_of(url, bodies, options.clients, options.requests, server.pid,
                               name == "ours-compiled")  # fmt: skip
            rows[name] = asyncio.run(measured)
        finally:
            for one in psutil.Process(server.pid).children(recursive=True):
                one.kill()
            server.kill()
            server.wait()
        row = rows[name]
        print(f"{name:<14} {row['per_cpu_s']:8.0f} requests per CPU-second {row['per_s']:8.0f}/s  "
              f"p50 {row['p50']:7.1f} ms  p99 {row['p99']:7.1f} ms  "
              f"queued {row['queued']:.0%}", flush=True)  # fmt: skip
    for peer in options.peers.split(","):
        for ours in ("ours", "ours-compiled"):
            print(f"{ours} / {peer}: {rows[ours]['per_cpu_s'] / rows[peer]['per_cpu_s']:.2f}x")


if __name__ == "__main__":
    main()
