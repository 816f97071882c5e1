"""Forward passes that fail below a real server: what clients, health checks and a gateway see."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.server import Gateway

from .conftest import Running, call, free_port, serving, wait_ready

PROGRAM = Path(__file__).parent.parent / "programs" / "serve_failing.py"
BODY = {"prompt": "Hello world", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def frail(folder: Path) -> Iterator[Running]:
    """A server whose model these tests break."""
    with serving(folder, max_batch_tokens=64) as running:
        yield running


@pytest.fixture
def model(frail: Running) -> Iterator[Any]:
    """Its model; afterwards it is whole again, and nothing is held."""
    found = frail.service.engine.engine.model
    yield found
    vars(found).pop("hidden", None)
    frail.idle()
    assert frail.get("/health")[0] == 200
    assert frail.post("/v1/completions", BODY)[0] == 200


def break_when(model: Any, error: Exception, fails: Any) -> None:
    """Have the model raise an error after it computed a batch of which `fails` is true."""

    def hidden(batch: Any, cache: Any) -> Any:
        states = type(model).hidden(model, batch, cache)
        if fails(batch):
            raise error
        return states

    model.hidden = hidden


def together(frail: Running, bodies: list[dict[str, Any]]) -> list[tuple[int, bytes]]:
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        found = pool.map(lambda body: frail.post("/v1/completions", body), bodies)
        return [(status, raw) for status, _, raw in found]


def text_of(raw: bytes) -> str:
    return str(json.loads(raw)["choices"][0]["text"])


def test_too_little_memory_for_a_large_step_is_not_seen_by_clients(
    frail: Running, model: Any
) -> None:
    bodies = [{**BODY, "prompt": f"{i} Hello world, tokens and blocks"} for i in range(8)]
    before = [text_of(frail.post("/v1/completions", body)[2]) for body in bodies]
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    break_when(model, error, lambda batch: len(batch.ids) > 3)
    bodies[0]["stream"] = True
    found = together(frail, bodies)
    assert [status for status, _ in found] == [200] * 8
    assert [text_of(raw) for _, raw in found[1:]] == before[1:]
    assert found[0][1].endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in found[0][1]
    page = frail.get("/metrics")[2].decode()
    assert float(re.findall(r"(?m)^joymigrate_engine_failures_total (\S+)", page)[0]) > 0


def test_a_request_that_fails_gets_a_500_and_the_others_their_text(
    frail: Running, model: Any
) -> None:
    plain = text_of(frail.post("/v1/completions", BODY)[2])
    break_when(model, RuntimeError("shape mismatch"), lambda batch: (batch.ids == 3).any())
    bad = {**BODY, "prompt": [5, 3, 7]}
    whole, streamed, *others = together(frail, [bad, {**bad, "stream": True}, BODY, BODY])
    for status, raw in (whole, streamed):
        assert status == 500
        error = json.loads(raw)["error"]
        assert error["type"] == "server_error"
        assert "the model failed at this text: RuntimeError: shape mismatch" in error["message"]
    assert [text_of(raw) for _, raw in others] == [plain, plain]
    status, _, raw = frail.post("/v2/models/tiny/generate", {"text_input": "<|im_end|>"})
    assert status == 500
    assert "shape mismatch" in json.loads(raw)["error"]


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_that_fails_ends_with_an_error_event(frail: Running, model: Any, n: int) -> None:
    openai = pytest.importorskip("openai", reason="pip install 'joymigrate[dev]'")
    client = openai.OpenAI(base_url=frail.url + "/v1", api_key="any", max_retries=0)
    failing = threading.Event()
    break_when(model, RuntimeError("kernel failed"), lambda batch: failing.is_set())
    # The made-up tokens of the spare pass succeed: one token at position 0 and nothing else.
    whole = model.hidden
    model.hidden = lambda batch, cache: (
        type(model).hidden(model, batch, cache)
        if batch.positions.tolist() == [0]
        else whole(batch, cache)
    )
    got: list[str] = []
    with client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            n=n,
            max_tokens=200,
            extra_body={"ignore_eos": True},
        )
        with pytest.raises(openai.APIError, match="kernel failed"):  # noqa: PT012
            for chunk in stream:
                got.append(chunk.choices[0].delta.content or "")
                failing.set()
    assert got


def started(folder: Path, first: int, said: str) -> Any:
    """`serve` as a process whose forward passes fail from the `first` on."""
    port = free_port()
    options = ["--device", "cpu", "--dtype", "float32", "--threads", "1", "--name", "tiny"]
    line = [sys.executable, str(PROGRAM), str(first), said, str(folder), "--port", str(port)]
    made = subprocess.Popen(
        [*line, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: list[str] = []
    threading.Thread(target=lambda: lines.extend(made.stdout or ()), daemon=True).start()
    wait_ready(f"http://127.0.0.1:{port}", made, lines)
    return made, f"http://127.0.0.1:{port}", lines


def test_a_lost_device_ends_streams_with_an_error_and_then_the_process(folder: Path) -> None:
    made, url, lines = started(folder, 150, "NPU function error: FORCE STOP.")
    long = {"max_tokens": 300, "ignore_eos": True}
    body = json.dumps({**BODY, **long, "stream": True, "n": 2}).encode()
    named = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", body, named)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {**BODY, **long}),
        ("/v2/models/tiny/generate_stream", {"text_input": "Hello", **long}),
    ]
    with (
        urllib.request.urlopen(request, timeout=60) as stream,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        events = stream.readline()  # it has begun; the others may come before the failure or behind
        whole, triton = pool.map(lambda one: call(url + one[0], json.dumps(one[1]).encode()), asked)
        events += stream.read()
    assert b'"finish_reason":null' in events
    last = events.strip().split(b"\n\n")[-2:]
    assert last[1] == b"data: [DONE]"
    error = json.loads(last[0].removeprefix(b"data: "))["error"]
    assert error["code"] == "engine_failed"
    assert "FORCE STOP" in error["message"]
    assert whole[0] == 503
    assert "FORCE STOP" in json.loads(triton[2].strip().split(b"data: ")[-1])["error"]
    assert made.wait(30) == 2
    said = "".join(lines)
    assert "the engine failed: RuntimeError: NPU function error: FORCE STOP." in said
    assert "Traceback" in said


def test_a_gateway_goes_on_with_the_other_server(folder: Path, tmp_path: Path) -> None:
    bad, failing, _ = started(folder, 12, "CUDA error: an illegal memory access was encountered")
    good, healthy, _ = started(folder, 10**9, "")
    raw = {
        "listen": "127.0.0.1:0",
        "upstreams": {
            "gpu": {"url": healthy, "role": "primary", "token_ids": "ask"},
            "npu": {"url": failing, "role": "standby", "chip": "ascend", "token_ids": "ask"},
        },
        "monitor": {"devices": False},
        "rollout": {"start": "auto", "steps": [50, 100], "min_step_seconds": 3600},
    }
    # One printable character over and over would count as garbage; two words do not.
    body = {**BODY, "guided_regex": "(Hello|world|tokens|blocks){40,60}", "max_tokens": 40}
    del body["ignore_eos"]
    expected = text_of(call(healthy + "/v1/completions", json.dumps(body).encode())[2])

    async def main() -> None:
        loaded = settings.parse(raw, tmp_path / "gateway.yaml")
        gateway = Gateway(loaded, unverified=True)
        await gateway.start()
        url = f"http://127.0.0.1:{gateway.port}/v1/completions"
        try:
            for number in range(12):
                asked = json.dumps({**body, "user": f"u{number}"}).encode()
                status, _, answer = await asyncio.to_thread(call, url, asked)
                assert status == 200, answer
                assert text_of(answer) == expected
            assert gateway.meters.attempts.of("gpu", "ok").value
        finally:
            await gateway.stop()

    try:
        asyncio.run(main())
        assert bad.wait(30) == 2
    finally:
        for process in (good, bad):
            process.terminate()
            process.wait(30)
