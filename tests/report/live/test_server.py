"""The live page's server: what it answers, whom it answers, how it ends."""

from __future__ import annotations

import html
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.journey.losses import losses
from joymigrate.ledger import Ledger, Step
from joymigrate.report.live import Feed, Live, LiveProject
from joymigrate.report.live.server import MOST_STREAMS, listening


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "joymigrate.toml").touch()
    Ledger.of(root).record(Step(kind="note"), {"page.html": b"<b>hi</b>", "raw.bin": b"\0\1"})
    return root


@pytest.fixture
def server(project: Path) -> Iterator[Live]:
    feed = Feed(LiveProject(project, losses).look)
    made = listening("127.0.0.1", 0, feed, lambda lang: f"report {lang}", "en")
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    feed.close()
    made.shutdown()
    made.server_close()
    thread.join()


def ask(
    server: Live, path: str, method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    port = server.server_address[1]
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    client.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = client.getresponse()
    body = answer.read()
    client.close()
    return answer, body


def test_the_page_loads_nothing_from_elsewhere(server: Live) -> None:
    answer, body = ask(server, "/?lang=zh")
    text = body.decode()
    assert answer.status == 200
    assert "connect-src 'self'" in html.unescape(text)
    assert "https://" not in text
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert '<html lang="zh-CN">' in text
    assert "步骤记录" in text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("[::1]:80", 200),
        ("10.1.2.3", 200),
        ("evil.example:80", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("[::1", 421),
    ],
)
def test_a_name_of_a_stranger_gets_no_answer(server: Live, host: str, status: int) -> None:
    for path in ("/", "/state.json", "/file/.joymigrate/ledger.jsonl", "/events"):
        if status == 200 and path == "/events":
            continue
        assert ask(server, path, host=host)[0].status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_writes(server: Live, method: str) -> None:
    answer, _ = ask(server, "/file/.joymigrate/ledger.jsonl", method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


def test_evidence_is_shown_in_a_sandbox(server: Live) -> None:
    answer, body = ask(server, "/file/.joymigrate/steps/0001/page.html")
    assert body == b"<b>hi</b>"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox")
    assert "default-src 'none'" in policy
    assert (
        ask(server, "/file/.joymigrate/ledger.jsonl")[0]
        .headers["Content-Type"]
        .startswith("text/plain")
    )
    binary, _ = ask(server, "/file/.joymigrate/steps/0001/raw.bin")
    assert binary.headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    "path",
    ["/file/joymigrate.toml", "/file/..%2f..%2fetc/passwd", "/file/%2e%2e/x", "/file/", "/nothing"],
)
def test_what_is_no_evidence_is_not_there(server: Live, path: str) -> None:
    assert ask(server, path)[0].status == 404


def test_head_has_no_body_and_the_report_is_rendered_on_demand(server: Live) -> None:
    answer, body = ask(server, "/", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 1000
    assert ask(server, "/report?lang=zh")[1] == b"report zh"
    assert ask(server, "/report?lang=xx")[1] == b"report en"


def events(server: Live) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    port = server.server_address[1]
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    client.request("GET", "/events", headers={"Host": f"127.0.0.1:{port}"})
    return client, client.getresponse()


def event(answer: http.client.HTTPResponse) -> dict[str, object]:
    while True:
        line = answer.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            return dict(json.loads(line[6:]))


def test_a_stream_tells_everything_once_and_then_what_changed(server: Live, project: Path) -> None:
    client, answer = events(server)
    first = event(answer)
    assert first["schema"] == "joymigrate.live/1"
    assert {"way", "ledger", "menu", "title"} <= set(first["parts"])  # type: ignore[call-overload]
    Ledger.of(project).record(Step(kind="another"))
    server.feed.refresh()
    second = event(answer)
    assert second["version"] == 2
    assert set(second["parts"]) == {"ledger", "menu"}  # type: ignore[call-overload]
    client.close()
    state = json.loads(ask(server, "/state.json")[1])
    assert state["version"] == 2
    assert "another" in state["parts"]["ledger"]


def test_more_streams_than_there_is_room_for_are_told_to_ask(server: Live) -> None:
    for _ in range(MOST_STREAMS):
        assert server.streams.acquire(blocking=False)
    client, answer = events(server)
    assert answer.status == 503
    client.close()


def test_a_look_that_fails_keeps_the_last_state(project: Path) -> None:
    looks = iter([LiveProject(project, losses).look()])

    def look():  # type: ignore[no-untyped-def]
        try:
            return next(looks)
        except StopIteration:
            raise OSError("gone") from None

    feed = Feed(look)
    feed.refresh()
    assert feed.version == 1


def test_an_address_in_use_is_one_clear_error(server: Live, project: Path) -> None:
    port = server.server_address[1]
    with pytest.raises(JoyError, match=f"cannot listen on 127.0.0.1:{port}"):
        listening("127.0.0.1", port, server.feed, lambda lang: None, "en")


def command(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "joymigrate", "report", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_cleanly(number: signal.Signals, project: Path) -> None:
    process = command(project, "--serve", "--port", 0)
    assert process.stderr is not None
    assert "http://127.0.0.1:" in process.stderr.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_mistakes_end_with_2(project: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = command(project, "--serve", "--port", other.getsockname()[1])
        _, err = taken.communicate(timeout=60)
    assert taken.returncode == 2
    assert "cannot listen" in err
    assert "Traceback" not in err
    nowhere = command(project / "nothing", "--serve", "--port", 0)
    assert "shows a project's folder" in nowhere.communicate(timeout=60)[1]
    assert nowhere.returncode == 2
