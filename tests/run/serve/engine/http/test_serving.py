"""`joymigrate serve MODEL_DIR` as a process: start, logs, drain; two of them behind a gateway."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.embedded import open_engines
from joymigrate.run.serve.gateway.server import Gateway

from .conftest import call, free_port, process, wait_ready, wait_said

PROMPT = "Hello world, tokens"


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two real servers of the same model, both on the CPU: one plays the GPU, one the chip."""
    ports = free_port(), free_port()
    common = ("--device", "cpu", "--dtype", "float32", "--threads", "1", "--log-format", "json")
    with (
        process(str(folder), "--port", str(ports[0]), "--name", "tiny", *common) as gpu,
        process(str(folder), "--port", str(ports[1]), "--name", "tiny", *common) as npu,
    ):
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url, (made, lines) in zip(urls, (gpu, npu), strict=True):
            wait_ready(url, made, lines)
        yield urls, (gpu, npu)


@functools.cache
def readable(url: str) -> dict[str, int]:
    """A bias that leaves printable ASCII: random bytes would be taken for garbage, rightly."""
    found = {}
    size = 300
    for token in range(size + 100):
        status, _, raw = call(url + "/detokenize", json.dumps({"tokens": [token]}).encode())
        text = json.loads(raw)["prompt"] if status == 200 else None
        if text is not None and not (text.isascii() and text.isprintable() and text != "!"):
            found[str(token)] = -100
    return found


def complete(url: str, **more: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **more}
    status, _, raw = call(url + "/v1/completions", json.dumps(body).encode())
    assert status == 200, raw
    found: dict[str, Any] = json.loads(raw)
    return found


def test_a_process_says_what_it_serves(pair: Any) -> None:
    urls, ((_, lines), _) = pair
    said = json.loads(wait_said(lines, "listening on"))
    assert said["url"] == urls[0]
    assert (said["model"], said["device"], said["dtype"]) == ("tiny", "cpu", "float32")
    assert said["level"] == "info"


def test_two_processes_agree_on_every_token(pair: Any) -> None:
    (gpu, npu), _ = pair
    more = {"return_token_ids": True}
    assert complete(gpu, **more)["choices"] == complete(npu, **more)["choices"]


def gateway_for(folder: Path, upstreams: Any, **more: Any) -> Gateway:
    raw = {
        "listen": "127.0.0.1:0",
        "upstreams": upstreams,
        "monitor": {"devices": False},
        "rollout": {"start": "auto", "steps": [50, 100], "min_step_seconds": 3600},
        **more,
    }
    loaded = settings.parse(raw, folder / "gateway.yaml")
    return Gateway(loaded, unverified=True, engines=open_engines(loaded))


def test_a_gateway_spreads_over_both_and_the_texts_are_the_same(pair: Any, tmp_path: Path) -> None:
    (gpu, npu), _ = pair
    upstreams = {
        "gpu": {"url": gpu, "role": "primary"},
        "npu": {"url": npu, "role": "standby", "chip": "ascend"},
    }
    more = {"logit_bias": readable(gpu)}
    expected = complete(gpu, **more)["choices"][0]["text"]

    async def whole() -> None:
        gateway = gateway_for(tmp_path, upstreams)
        await gateway.start()
        url = f"http://127.0.0.1:{gateway.port}"
        try:
            found = await asyncio.gather(
                *(asyncio.to_thread(complete, url, user=f"u{i}", **more) for i in range(24))
            )
            attempts = gateway.meters.attempts
            assert all(row["choices"][0]["text"] == expected for row in found)
            assert attempts.of("gpu", "ok").value
            assert attempts.of("npu", "ok").value
        finally:
            await gateway.stop()

    asyncio.run(whole())


class Cut:
    """A relay to a server that cuts every stream after some bytes, as a dying process does."""

    def __init__(self, url: str, after: int) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.target = (host, int(port))
        self.after = after
        self.cuts = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.relay, args=(client,), daemon=True).start()

    def relay(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.target) as server:
            threading.Thread(target=pump, args=(client, server), daemon=True).start()
            passed, stream = 0, False
            while piece := server.recv(512):
                stream = stream or b"event-stream" in piece
                passed += len(piece) if stream else 0
                if stream and passed > self.after:
                    self.cuts += 1
                    for end in (client, server):  # also for who waits for bytes of theirs
                        end.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(piece)


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            target.sendall(piece)
    except OSError:
        pass


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("after", [2500, 4000])
@pytest.mark.parametrize("way", ["resume", "ids"])
def test_a_stream_that_breaks_goes_on_elsewhere_token_by_token(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, after: int, chat: bool
) -> None:
    if way == "ids":  # as behind a server that is no engine of joymigrate
        monkeypatch.setattr("joymigrate.run.serve.gateway.backend.ENGINE", "X-Nobody")
    (gpu, npu), _ = pair
    cut = Cut(npu, after)
    upstreams = {
        "gpu": {"url": gpu, "role": "primary", "token_ids": "ask"},
        "npu": {"url": cut.url, "role": "standby", "chip": "ascend", "token_ids": "ask"},
    }
    start = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = {**start, "max_tokens": 40, "temperature": 0, "ignore_eos": True,
            "logit_bias": readable(gpu)}  # fmt: skip
    asked = {**body, "stream": True, "return_token_ids": True,
             "stream_options": {"include_usage": True}}  # fmt: skip

    def text_and_ids(events: list[dict[str, Any]]) -> tuple[str, list[int]]:
        choices = [event["choices"][0] for event in events if event.get("choices")]
        texts = [c["delta"].get("content") if chat else c["text"] for c in choices]
        return "".join(t or "" for t in texts), [
            i for c in choices for i in c.get("token_ids") or ()
        ]

    def stream(url: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
        status, _, raw = call(url + path, json.dumps(asked).encode())
        assert status == 200
        assert raw.endswith(b"data: [DONE]\n\n")
        return [json.loads(e[6:]) for e in raw.split(b"\n\n") if e.startswith(b"data: {")]

    expected = text_and_ids(stream(gpu, asked))
    assert len(expected[1]) == 40

    async def whole() -> None:
        gateway = gateway_for(
            tmp_path, upstreams,
            rollout={"start": "auto", "steps": [99, 100], "min_step_seconds": 3600},
        )  # fmt: skip
        await gateway.start()
        url = f"http://127.0.0.1:{gateway.port}"
        try:
            broken = 0
            for number in range(4):
                events = await asyncio.to_thread(stream, url, {**asked, "user": str(number)})
                assert text_and_ids(events) == expected
                assert events[-1]["usage"]["completion_tokens"] == 40
                broken = cut.cuts
            assert broken >= 1
            resumed = gateway.meters.resumed.series
            assert sum(cell.value for cell in resumed.values()) == broken
            # Where nothing had arrived before the cut, the request is asked again.
            assert way in {taken for _, taken in resumed} <= {way, "replay"}
        finally:
            await gateway.stop()
            cut.socket.close()

    asyncio.run(whole())


def test_an_engine_can_live_inside_the_gateway(pair: Any, folder: Path, tmp_path: Path) -> None:
    (gpu, _), _ = pair
    upstreams = {
        "gpu": {"url": gpu, "role": "primary"},
        "npu": {"model": str(folder), "role": "standby", "dtype": "float32", "serves": "tiny"},
    }
    more = {"logit_bias": readable(gpu)}
    expected = complete(gpu, **more)["choices"][0]["text"]

    async def whole() -> None:
        gateway = gateway_for(tmp_path, upstreams)
        await gateway.start()
        url = f"http://127.0.0.1:{gateway.port}"
        try:
            found = await asyncio.gather(
                *(asyncio.to_thread(complete, url, user=f"u{i}", **more) for i in range(16))
            )
            assert {row["choices"][0]["text"] for row in found} == {expected}
            assert gateway.meters.attempts.of("npu", "ok").value > 0
            assert gateway.router.standby.up
            engine = gateway.engines["npu"].service.engine  # type: ignore[attr-defined]
            made = await asyncio.to_thread(stream_and_leave, url)
            assert made
            for _ in range(500):
                if not engine.stats().blocks_used:
                    break
                await asyncio.sleep(0.01)
            assert engine.stats().blocks_used == 0
        finally:
            await gateway.stop()

    asyncio.run(whole())


def stream_and_leave(url: str) -> bool:
    """Clients that go away in the middle of a stream."""
    host, _, port = url.removeprefix("http://").partition(":")
    for number in range(6):
        body = json.dumps(
            {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True,
             "user": f"x{number}"}
        ).encode()  # fmt: skip
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port)), 20) as made:
            made.sendall(head.encode() + body)
            made.recv(2048)
    return True


def test_sigterm_lets_running_streams_end(folder: Path) -> None:
    port = free_port()
    with process(str(folder), "--port", str(port), "--device", "cpu", "--threads", "1") as (
        made,
        lines,
    ):
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, made, lines)
        found: list[Any] = []
        body = {"prompt": PROMPT, "max_tokens": 450, "ignore_eos": True, "stream": True}
        client = threading.Thread(
            target=lambda: found.append(
                call(url + "/v1/completions", json.dumps({**body, "n": 8}).encode())
            )
        )
        client.start()
        while b"joymigrate_inflight 0.0" in call(url + "/metrics")[2]:
            time.sleep(0.005)
        made.send_signal(signal.SIGTERM)
        client.join(60)
        assert made.wait(60) == 0
        status, _, raw = found[0]
        assert status == 200
        assert raw.endswith(b"data: [DONE]\n\n"), "not cut"
        assert raw.count(b'"finish_reason":"length"') == 8
    assert any("stopping" in line for line in lines)


def test_a_taken_port_and_a_wrong_folder_are_clear_errors(folder: Path, pair: Any) -> None:
    (gpu, _), _ = pair
    from joymigrate.cli._main import run

    port = gpu.rpartition(":")[2]
    assert run(["serve", str(folder), "--port", port, "--device", "cpu", "-q"]) == 2
    assert run(["serve", str(folder.parent), "--device", "cpu"]) == 2


def test_a_target_chip_needs_a_verdict(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from joymigrate.cli._main import run

    (tmp_path / ".joymigrate").mkdir()
    assert run(["serve", str(folder), "--to", "ascend", "--ledger", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "has no verdict on ascend" in said
    assert "--unverified" in said


def test_what_verify_generate_records_is_what_the_gate_asks_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from joymigrate.cli._main import run
    from joymigrate.ledger import Ledger
    from joymigrate.ledger.subject import of_folder

    (tmp_path / ".joymigrate").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello world"}\n')
    asked = ["verify", "generate", "--model", str(folder), "--device", "cpu", "--length", "4"]
    assert run([*asked, "--record", "--prompts", "prompts.jsonl", "-o", "base.jsonl"]) == 0
    assert run([*asked, "base.jsonl"]) == 0
    subject = of_folder(folder)
    assert subject.sha256 is not None
    assert Ledger(tmp_path).verdict(subject, "cpu").refusal() is None
    files = ["base.jsonl", "base.jsonl", "--to", "cpu", "--subject", str(folder)]
    assert run(["verify", "generate", *files]) == 0
    steps = [json.loads(line) for line in (tmp_path / ".joymigrate/ledger.jsonl").open()]
    assert [step["subject"]["sha256"] for step in steps] == [subject.sha256] * 2


def test_a_rehearsed_verdict_opens_the_gate_of_a_rehearsal_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from joymigrate import chips
    from joymigrate.cli import _serve_model
    from joymigrate.errors import JoyError
    from joymigrate.ledger import Ledger, Step
    from joymigrate.ledger.subject import of_folder

    (tmp_path / ".joymigrate").mkdir()
    Ledger(tmp_path).record(
        Step("verify", chip="ascend", subject=of_folder(folder), verdict="pass", stage="S6",
             grade="rehearsed")
    )  # fmt: skip
    chip = chips.target("ascend")
    with pytest.raises(JoyError, match="rehearsed verdict only"):
        _serve_model.refuse_unproven(folder, tmp_path, chip)
    monkeypatch.setenv("JOYMIGRATE_REHEARSE", "1")
    _serve_model.refuse_unproven(folder, tmp_path, chip)
    assert os.environ["JOYMIGRATE_REHEARSE"] == "1"
