"""What the gateway shows to whom: credentials, request ids, TLS, reloads, logs."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'joymigrate[serve]'")

import aiohttp
import yaml
from aiohttp import web

from joymigrate.errors import JoyError
from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.reload import refuse_changes
from joymigrate.run.serve.gateway.server import Gateway
from joymigrate.run.serve.web import logs, tls
from tests.run.serve.test_web import make_certificates

ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "good"},
                       "finish_reason": "stop"}]}  # fmt: skip
ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Backend:
    """Answers every question, and remembers the headers."""

    def __init__(self, name: str, context: ssl.SSLContext | None = None) -> None:
        self.name, self.context = name, context
        self.seen: list[dict[str, str]] = []
        self.runner: web.ServerRunner | None = None
        self.url = ""

    async def start(self) -> None:
        self.runner = web.ServerRunner(web.Server(self.handle))
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=self.context).start()
        kind = "https" if self.context else "http"
        self.url = f"{kind}://127.0.0.1:{self.runner.addresses[0][1]}"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            self.seen.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({**ANSWER, "id": self.name})

    async def stop(self) -> None:
        assert self.runner is not None
        await self.runner.cleanup()


Scenario = Callable[[Gateway, aiohttp.ClientSession, list[Backend]], Awaitable[None]]


def run(
    folder: Path,
    scenario: Scenario,
    more: dict[str, Any] | None = None,
    up_more: dict[str, Any] | None = None,
    context: ssl.SSLContext | None = None,
) -> None:
    """Three backends, the third of which no file names; a gateway before the first two."""

    async def whole() -> None:
        backends = [Backend(name, context) for name in ("one", "two", "three")]
        for backend in backends:
            await backend.start()
        raw = {
            "listen": "127.0.0.1:0",
            "upstreams": {
                "gpu": {"url": backends[0].url, "role": "primary", **(up_more or {})},
                "npu": {"url": backends[1].url, "role": "standby", **(up_more or {})},
            },
            "monitor": {"devices": False, "backends": False},
            "rollout": {"start": "manual", "min_step_pairs": 0},
            **(more or {}),
        }
        path = folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(raw))
        gateway = Gateway(settings.load(path), unverified=True)
        await gateway.start()
        try:
            async with aiohttp.ClientSession() as session:
                await scenario(gateway, session, backends)
        finally:
            await gateway.stop()
            for backend in backends:
                await backend.stop()

    asyncio.run(asyncio.wait_for(whole(), 60))


async def ask(
    gateway: Gateway, session: aiohttp.ClientSession, **headers: str
) -> tuple[int, Any, Any]:
    url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.post(url, json=ASK, headers=named) as reply:
        return reply.status, reply.headers, await reply.json()


SECRETS = {"Authorization": "Bearer client", "X_Api_Key": "client", "Cookie": "a=b"}


@pytest.mark.parametrize(
    ("forward", "key", "shown"),
    [
        ([], None, {}),
        (["authorization"], None, {"authorization": "Bearer client", "x-api-key": "client"}),
        (["cookie"], None, {"cookie": "a=b"}),
        ([], "own", {"authorization": "Bearer own"}),
        (["authorization", "cookie"], "own", {"authorization": "Bearer own", "cookie": "a=b"}),
    ],
)
def test_a_clients_secrets_go_only_where_they_are_sent(
    tmp_path: Path, forward: list[str], key: str | None, shown: dict[str, str]
) -> None:
    async def scenario(gateway: Gateway, session: Any, backends: list[Backend]) -> None:
        status, headers, _ = await ask(gateway, session, X_Request_Id="abc-1", **SECRETS)
        assert status == 200
        assert headers["X-Request-Id"] == "abc-1"
        seen = backends[0].seen[0]
        assert {k: seen[k] for k in ("authorization", "x-api-key", "cookie") if k in seen} == shown
        assert seen["x-request-id"] == "abc-1"

    run(tmp_path, scenario, up_more={"forward": forward, **({"key": key} if key else {})})


def test_a_key_of_the_file_has_its_limits(tmp_path: Path) -> None:
    async def scenario(gateway: Gateway, session: Any, backends: list[Backend]) -> None:
        statuses = [(await ask(gateway, session, Authorization="Bearer k"))[0] for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await ask(gateway, session))[0] == 401
        assert gateway.rollout.primary.failures == 0

    run(tmp_path, scenario, {"keys": [{"key": "k", "name": "a", "requests_per_minute": 2}]})


def test_a_reload_moves_an_upstream_and_changes_keys(tmp_path: Path) -> None:
    async def scenario(gateway: Gateway, session: Any, backends: list[Backend]) -> None:
        assert (await ask(gateway, session, X_Api_Key="old"))[2]["id"] == "one"
        path = gateway.settings.path
        raw = yaml.safe_load(path.read_text())
        raw["upstreams"]["gpu"]["url"] = backends[2].url
        raw["keys"] = ["new"]
        path.write_text(yaml.safe_dump(raw))
        gateway.reload()
        assert (await ask(gateway, session, X_Api_Key="old"))[0] == 401
        assert (await ask(gateway, session, X_Api_Key="new"))[2]["id"] == "three"
        await asyncio.gather(*gateway.tasks[-1:])  # the monitor moves, too
        read = {source.name: getattr(source, "url", "") for source in gateway.monitor.sources}
        assert read["gpu"] == backends[2].url + "/metrics"
        assert read["npu"] == backends[1].url + "/metrics"

    run(tmp_path, scenario, {"keys": ["old"], "monitor": {"devices": False}})


def test_a_mistake_in_the_file_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async def scenario(gateway: Gateway, session: Any, backends: list[Backend]) -> None:
        said: list[str] = []
        gateway.talk = said.append
        path = gateway.settings.path
        good = path.read_text()
        for bad in ("upstreams: 3", good.replace("start: manual", "start: auto"), ":"):
            path.write_text(bad)
            gateway.reload()
            assert "not reloaded" in said[-1]
        assert "needs" not in said[0]
        assert "rollout.start cannot change" in said[1]
        assert (await ask(gateway, session))[0] == 200

    run(tmp_path, scenario)


def test_what_may_change_alive_is_a_list_of_names(tmp_path: Path) -> None:
    raw = {"upstreams": {"a": {"url": "http://a", "role": "primary"},
                         "b": {"url": "http://b", "role": "standby"}}}  # fmt: skip
    path = tmp_path / "gateway.yaml"
    before = settings.parse(raw, path)
    refuse_changes(before, settings.parse(raw, path))
    refuse_changes(before, settings.parse({**raw, "cors": {"origins": ["https://x"]}}, path))
    for more, key in (
        ({"listen": "127.0.0.1:9"}, "listen"), ({"limits": {"attempts": 2}}, "limits.attempts"),
        ({"rollout": {"rule": "eprocess:alpha=0.02"}}, "rollout.rule"),
        ({"rollout": {"sticky": "none"}}, "rollout.sticky"),
        ({"rollout": {"last_resort": True}}, "rollout.last_resort"),
        ({"rollout": {"steps": [5, 100]}}, "rollout.steps"),
        ({"state": "other.json"}, "state"), ({"log": "log.jsonl"}, "log"),
        ({"tls": {"certificate": "c.pem"}}, "tls"), ({"access_log": True}, "access_log"),
    ):  # fmt: skip
        with pytest.raises(JoyError) as refused:
            refuse_changes(before, settings.parse({**raw, **more}, path))
        assert refused.value.what.split()[0] == key
    raw["upstreams"]["b"]["role"] = "primary"
    raw["upstreams"]["a"]["role"] = "standby"
    with pytest.raises(JoyError, match=r"upstreams\.a\.role cannot change"):
        refuse_changes(before, settings.parse(raw, path))


@pytest.mark.parametrize(
    "more",
    [
        {"listen": "8080"}, {"listen": ":8080"}, {"state": "gateway.state.json"},
        {"rollout": {"steps": [1, 5, 20, 50]}}, {"rollout": {"rule": "eprocess"}},
        {"limits": {}}, {"log": "./log.jsonl"}, {"tls": {"certificate": "./c.pem"}},
        {"rollout": {"rule": {"name": "eprocess", "limit": 0.01}, "limit": 0.01}},
    ],
)  # fmt: skip
def test_a_file_that_means_the_same_is_taken_up(tmp_path: Path, more: dict[str, Any]) -> None:
    raw: dict[str, Any] = {
        "upstreams": {"a": {"url": "http://a", "role": "primary"},
                      "b": {"url": "http://b", "role": "standby"}},
        "log": "log.jsonl", "tls": {"certificate": "c.pem"},
        "rollout": {"limit": 0.01, "steps": [1, 5, 20, 50, 100]},
    }  # fmt: skip
    path = tmp_path / "gateway.yaml"
    before = settings.parse(raw, path)
    for name, value in more.items():
        raw[name] = {**raw.get(name, {}), **value} if isinstance(value, dict) else value
    refuse_changes(before, settings.parse(raw, path))


@pytest.mark.parametrize("key", ["url", "urls"])
def test_a_wrong_address_is_placed_at_its_own_key(tmp_path: Path, key: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "upstreams:\n"
        "  gpu: {url: http://a, role: primary}\n"
        "  npu:\n    role: standby\n"
        f"    {key}: [http://b, b:80]\n"
    )
    with pytest.raises(JoyError, match="got 'b:80'") as refused:
        settings.load(path)
    assert refused.value.where == f"{path}:5 upstreams.npu.{key}"


def test_upstreams_over_tls_that_ask_for_our_certificate(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    theirs = tls.of_server(tls.Tls(files["server"], files["server.key"], files["ca"]))
    given = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}

    async def good(gateway: Gateway, session: Any, backends: list[Backend]) -> None:
        assert (await ask(gateway, session))[0] == 200

    async def bad(gateway: Gateway, session: Any, backends: list[Backend]) -> None:
        assert (await ask(gateway, session))[0] == 502

    run(tmp_path, good, up_more={"tls": given}, context=theirs)
    run(tmp_path, bad, up_more={"tls": {"ca": "ca.pem"}}, context=theirs)
    run(tmp_path, bad, context=theirs)


def test_the_access_log_has_a_json_line_per_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(gateway: Gateway, session: Any, backends: list[Backend]) -> None:
        await ask(gateway, session, Authorization="Bearer k", X_Request_Id="r-1")
        await ask(gateway, session)

    logs.open_log("json")
    try:
        more = {"keys": [{"key": "k", "name": "team"}], "access_log": True}
        run(tmp_path, scenario, more)
    finally:
        log = logging.getLogger(logs.NAME)
        log.handlers.clear()
        log.propagate = True
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    good, bad = (line for line in lines if line.get("path") == "/v1/chat/completions")
    assert (good["request"], good["status"], good["key"], good["upstream"]) == (
        "r-1", 200, "team", "gpu",
    )  # fmt: skip
    assert (bad["status"], bad["key"]) == (401, None)
    assert "Bearer" not in json.dumps(lines)
