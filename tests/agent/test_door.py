"""The server of tools: the SDK's own client and a plain one, and clients that mean no good."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp_types import ListRootsResult, Root

from joymigrate.agent.door.answers import MOST_BYTES, dump, shorten
from joymigrate.agent.door.arguments import check, meet_roots
from joymigrate.agent.door.runs import CommandRun
from joymigrate.agent.door.server import Allowed, guard, make_server
from joymigrate.agent.door.tools import BY_NAME, TOOLS, schema_of
from joymigrate.errors import JoyError

PROGRAM = "import torch\n\nx = torch.zeros(3).cuda()\ny = torch.cuda.get_device_capability()\n"
Talk = Callable[[Client], Awaitable[None]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "joymigrate.toml").write_text("")
    (folder / "a.py").write_text(PROGRAM)
    (tmp_path / "outside.py").write_text(PROGRAM)
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    return folder


def talk(allowed: Allowed, with_client: Talk, **options: Any) -> None:
    """Let a client of the protocol's own package talk to a server in this process."""

    async def live() -> None:
        async with Client(make_server(allowed), **options) as client:
            await with_client(client)

    asyncio.run(live())


async def ask(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    (part,) = answer.content
    assert len(part.text.encode()) <= MOST_BYTES
    found: dict[str, Any] = json.loads(part.text)
    assert bool(answer.is_error) == (found["schema"] == "joymigrate.error/1")
    assert not answer.is_error or found["next"]
    return found


def test_the_tools_say_what_they_change(project: Path) -> None:
    async def look(client: Client) -> None:
        tools = {one.name: one for one in (await client.list_tools()).tools}
        wanted = ("scan why explain rewrite baseline rehearse coverage advise verify next report "
                  "status rollback migrate result")  # fmt: skip
        assert set(tools) == set(wanted.split())
        reading = {name for name, one in tools.items() if one.annotations.read_only_hint}
        assert {"scan", "why", "explain", "coverage", "next", "status"} <= reading
        assert not {"rewrite", "rollback", "rehearse", "migrate"} & reading
        assert tools["rollback"].annotations.destructive_hint

    talk(Allowed((project,)), look)


def test_a_project_is_read_and_changed_by_our_own_documents(project: Path) -> None:
    async def work(client: Client) -> None:
        found = await ask(client, "scan", path=".", style="agnostic")
        assert (found["schema"], found["findings"][0]["tier"]) == ("joymigrate.scan/1", "report")
        told = await ask(client, "explain", name="torch.cuda.get_device_capability")
        assert told["names"][0]["statements"][0]["rule"] == "JM107"
        chain = await ask(client, "why", path="a.py", line=3)
        assert any("JM110" in line for line in chain["lines"])
        shown = await ask(client, "rewrite", path=".")  # in the style of `migrate`, as all tools
        assert "+x = torch.zeros(3).to(jm.device())" in shown["lines"]
        assert (project / "a.py").read_text() == PROGRAM
        await ask(client, "rewrite", path=".", style="agnostic", apply=True)
        assert "jm.device()" in (project / "a.py").read_text()
        assert (await ask(client, "next", path="."))["state"] == "rewritten"
        assert (await ask(client, "status", path="."))["steps"][0]["kind"] == "rewrite"
        page = await ask(client, "report", path=".")
        assert any("a.py" in line for line in page["lines"])
        await ask(client, "rollback", path=".")
        assert (project / "a.py").read_text() == PROGRAM

    talk(Allowed((project,), write=True), work)


def test_what_was_not_allowed_is_refused_and_nothing_runs(project: Path) -> None:
    async def push(client: Client) -> None:
        command = ["python", "-c", "open('ran', 'w')"]
        for name in ("baseline", "rehearse", "migrate"):
            told = await ask(client, name, path=".", command=command)
            assert "--allow-run" in told["next"]
        for name, more in (("rewrite", {"apply": True}), ("rollback", {})):
            assert "--allow-write" in (await ask(client, name, path=".", **more))["next"]
        (project / "joymigrate.toml").write_text('codemods = ["own.Mod"]\n')
        assert "codemods" in (await ask(client, "scan", path="."))["error"]
        assert not (project / "ran").exists()

    talk(Allowed((project,)), push)


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("scan", {"path": "/etc"}),
    ("scan", {"path": "../outside.py"}),
    ("scan", {"path": "link.py"}),
    ("scan", {"path": "a\0b"}),
    ("scan", {"path": "x" * 5_000}),
    ("scan", {"path": "y" * 90_000}),
    ("scan", {"path": "none.py"}),
    ("scan", {"path": ["."]}),
    ("scan", {"path": ".", "to": "--settings"}),
    ("scan", {"path": ".", "to": "/etc"}),
    ("scan", {"path": ".", "style": "shim; rm -rf /"}),
    ("scan", {"path": ".", "--output": "/tmp/x"}),
    ("why", {}),
    ("why", {"path": "a.py", "line": True}),
    ("why", {"path": "a.py", "line": -1}),
    ("explain", {"name": "--list"}),
    ("explain", {"name": "\ud800"}),
    ("rehearse", {"path": ".", "command": []}),
    ("rehearse", {"path": ".", "command": ["x"] * 1_000}),
    ("rehearse", {"path": ".", "command": [1]}),
    ("rehearse", {"path": ".", "command": ["x"], "wait": 10**9}),
    ("rollback", {"path": ".", "step": "--force"}),
    ("result", {"id": "r999"}),
    ("no_such_tool", {}),
]


def test_numbers_are_as_json_has_them_and_texts_end_where_they_end(project: Path) -> None:
    found = check(BY_NAME["result"], {"id": "1", "cursor": 2.0}, [project])
    assert found["cursor"] == 2
    assert isinstance(found["cursor"], int)
    with pytest.raises(JoyError):
        check(BY_NAME["rewrite"], {"path": ".", "to": "ascend\n"}, [project])


def test_hostile_arguments_are_errors_that_say_what_to_do(project: Path) -> None:
    async def push(client: Client) -> None:
        for name, arguments in HOSTILE:
            if any(isinstance(one, str) and "\ud800" in one for one in arguments.values()):
                continue  # no JSON of a client can carry it; `check` is asked below
            told = await ask(client, name, **arguments)
            assert told["schema"] == "joymigrate.error/1", (name, arguments)
        assert (await ask(client, "next", path="."))["state"] == "not started"

    talk(Allowed((project,), run=True, write=True), push)
    with pytest.raises(JoyError, match="does not match"):
        check(BY_NAME["explain"], {"name": "\ud800"}, [project])


def test_a_call_without_a_path_is_about_the_one_root(project: Path, tmp_path: Path) -> None:
    asked = check(BY_NAME["next"], {}, [project])
    assert asked == {"path": str(project), "folder": str(project)}
    with pytest.raises(JoyError, match="which folder is meant"):
        check(BY_NAME["next"], {}, [project, tmp_path])
    with pytest.raises(JoyError, match="required"):
        check(BY_NAME["why"], {"line": 3}, [project])


def test_ten_calls_at_once_are_all_answered(project: Path) -> None:
    async def crowd(client: Client) -> None:
        answers: list[dict[str, Any]] = []

        async def one(number: int) -> None:
            found = await ask(client, "next", path=".")
            while found["schema"] == "joymigrate.server-run/1":  # on a busy machine
                found = await ask(client, "result", id=found["id"], wait=60)
            answers.append(found)

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(one, number)
        assert [found["state"] for found in answers] == ["not started"] * 10

    talk(Allowed((project,)), crowd)


def test_a_long_run_has_an_id_tells_progress_and_can_be_cancelled(project: Path) -> None:
    heard: list[str] = []
    command = ["python", "-c", "import time; open('began', 'w'); time.sleep(120)"]

    async def tell(done: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def work(client: Client) -> None:
        arguments = {"path": ".", "command": command, "wait": 2}
        answer = await client.call_tool("baseline", arguments, progress_callback=tell)
        first = json.loads(answer.content[0].text)
        assert (first["schema"], first["state"]) == ("joymigrate.server-run/1", "running")
        assert any(first["id"] in message for message in heard)
        until = time.monotonic() + 60
        while not (project / "began").exists() and time.monotonic() < until:
            await anyio.sleep(0.1)
        told = await ask(client, "result", id=first["id"], cancel=True, wait=20)
        assert told["error"] == "the run was cancelled"
        assert "time.sleep(120)" not in programs()
        assert (await ask(client, "result"))["runs"][0]["state"] == "cancelled"

    talk(Allowed((project,), run=True), work)


def programs() -> str:
    """The command lines of all processes of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pytest" not in words:
            found.append(b" ".join(words).decode("utf-8", "replace"))
    return "\n".join(found)


def test_a_client_that_gives_up_loses_nothing(project: Path) -> None:
    async def work(client: Client) -> None:
        with anyio.move_on_after(0.2):
            await client.call_tool("scan", {"path": "."})
        runs = (await ask(client, "result"))["runs"]
        found = await ask(client, "result", id=runs[0]["id"], wait=60)
        assert found["schema"] == "joymigrate.scan/1"

    talk(Allowed((project,)), work)


def test_the_roots_of_an_older_client_narrow_what_may_be_used(project: Path) -> None:
    inner = project / "inner"
    inner.mkdir()

    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=inner.as_uri())])

    async def work(client: Client) -> None:
        told = await ask(client, "scan", path=str(project / "a.py"))
        assert "outside of what may be used" in told["error"]
        assert (await ask(client, "next", path=str(inner)))["schema"] == "joymigrate.next/1"

    talk(Allowed((project,)), work, mode="legacy", list_roots_callback=roots)


def test_roots_meet() -> None:
    a, b = Path("/a"), Path("/b")
    assert meet_roots([a], None) == [a]
    assert meet_roots([a], ["file:///a/x", "file:///b"]) == [a / "x"]
    assert meet_roots([a / "x", b], ["file:///"]) == [a / "x", b]
    assert meet_roots([a], ["http://host/a", "file://elsewhere/a", "file:///b"]) == []


def test_a_list_goes_on_behind_its_cursor_the_worst_first() -> None:
    rows = [{"tier": "safe" if n % 2 else "report", "path": "x" * 60, "n": n} for n in range(200)]
    document = {"schema": "joymigrate.scan/1", "findings": rows, "summary": {"all": 200}}
    seen: list[int] = []
    cursor = 0
    while True:
        found = shorten(document, cursor)
        assert len(dump(found).encode()) <= MOST_BYTES
        seen += [one["n"] for one in found["findings"]]
        if "cursor" not in found:
            break
        assert found["more"] == 200 - len(seen)
        cursor = found["cursor"]
    assert sorted(seen) == list(range(200))
    assert all(n % 2 == 0 for n in seen[:100])


@pytest.mark.parametrize(
    "document",
    [
        {"schema": "joymigrate.scan/1", "findings": [{"message": "m" * 10**6}] * 3},
        {"schema": "joymigrate.text/1", "lines": ["l" * 10**6]},
        {"schema": "joymigrate.rehearsal/1", **{f"k{n}": "v" * 500 for n in range(400)}},
        {"schema": "joymigrate.journey/1", "journey": [{"figures": {"a": ["b" * 99] * 999}}] * 40},
        {"schema": "joymigrate.error/1", "error": "e" * 10**5, "next": "n"},
        {"schema": "other/1", "deep": {"a": {"b": {"c": {"d": ["x" * 99] * 99}}}}},
    ],
)
def test_an_answer_is_small_whatever_it_is_made_of(document: dict[str, Any]) -> None:
    found = shorten(document)
    assert len(dump(found).encode()) <= MOST_BYTES
    assert found["schema"] == document["schema"]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda one: one.name)
def test_every_tool_has_a_schema_without_holes(tool: Any) -> None:
    schema = schema_of(tool)
    assert not schema["additionalProperties"]
    assert set(schema["required"]) <= set(schema["properties"])


def test_resources_are_read_and_others_refused(project: Path) -> None:
    async def read(client: Client) -> None:
        names = {str(one.uri) for one in (await client.list_resources()).resources}
        assert {"joymigrate://rules", "joymigrate://limits"} <= names
        for uri, part in [
            ("joymigrate://rules", "JM101 safe device-module"),
            ("joymigrate://rules/JM107", "JM107"),
            ("joymigrate://operators/ascend", '"native"'),
            ("joymigrate://operators/ascend/lgamma", "aten::lgamma"),
            ("joymigrate://limits", "chip"),
            ("joymigrate://rules/../../etc/passwd", "error"),
            ("joymigrate://nothing", "error"),
        ]:
            answer = await client.read_resource(uri)
            assert part in answer.contents[0].text, uri

    talk(Allowed((project,)), read)


class PlainClient:
    """A client of its own: lines of JSON-RPC, the handshake of older protocols."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "joymigrate", "mcp", *words]
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.number = 0

    def send(self, text: str) -> None:
        assert self.server.stdin
        self.server.stdin.write(text + "\n")
        self.server.stdin.flush()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        self.send(json.dumps(message))
        assert self.server.stdout
        while True:
            found: dict[str, Any] = json.loads(self.server.stdout.readline())
            if found.get("id") == self.number:
                return found

    def shake_hands(self) -> None:
        client = {"name": "plain", "version": "1"}
        told = self.call("initialize", protocolVersion="2025-06-18", capabilities={},
                         clientInfo=client)  # fmt: skip
        assert told["result"]["serverInfo"]["name"] == "joymigrate"
        self.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))


@pytest.mark.dear
def test_a_plain_client_is_served_and_a_disconnect_ends_the_server(project: Path) -> None:
    client = PlainClient(str(project))
    client.shake_hands()
    client.send("this is no JSON")
    told = client.call("tools/call", name="next", arguments={"path": str(project)})
    assert json.loads(told["result"]["content"][0]["text"])["state"] == "not started"
    assert "error" in client.call("no/such/method")
    assert client.server.stdin
    client.server.stdin.close()
    assert client.server.wait(30) == 0


def test_without_the_token_nothing_answers() -> None:
    heard: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        heard.append("inner")

    async def send(message: Any) -> None:
        heard.append(message.get("status"))

    async def go(headers: list[tuple[bytes, bytes]]) -> list[Any]:
        heard.clear()
        await guard(inner, "secret")({"type": "http", "headers": headers}, None, send)
        return list(heard)

    assert asyncio.run(go([]))[0] == 401
    assert asyncio.run(go([(b"authorization", b"Bearer wrong")]))[0] == 401
    assert asyncio.run(go([(b"authorization", b"Bearer secret")])) == ["inner"]


@pytest.mark.dear
def test_http_serves_loopback_with_a_token(project: Path) -> None:
    import socket
    import urllib.error
    import urllib.request

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "joymigrate", "mcp", str(project), "--http", str(port)]
    token = "a-token-of-a-test"
    with subprocess.Popen(words, env={**os.environ, "JOYMIGRATE_MCP_TOKEN": token}) as server:
        try:
            url = f"http://127.0.0.1:{port}/mcp"
            until = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(url, timeout=5)
                except urllib.error.HTTPError:  # without a token: 401, as the test above says
                    break
                except OSError:
                    assert time.monotonic() < until
                    time.sleep(0.2)
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "plain", "version": "1"}}}  # fmt: skip
            kinds = "application/json, text/event-stream"
            headers = {"Authorization": f"Bearer {token}", "Accept": kinds,
                       "Content-Type": "application/json"}  # fmt: skip
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            assert b'"joymigrate"' in urllib.request.urlopen(request, timeout=30).read()
            headers["Host"] = "evil.example"
            bad = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(bad, timeout=30)
        finally:
            server.terminate()


def test_a_run_that_ended_tells_how_long_it_took_not_its_age() -> None:
    run = CommandRun("r1", "scan", began=time.monotonic() - 500, took=3.5)
    assert run.row()["seconds"] == 3.5
