"""A tiny random model with a tokenizer made here, and one real server for all tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'joymigrate[serve]'")


@pytest.fixture(autouse=True)
def quiet_afterwards() -> Iterator[None]:
    """A test that runs the command in this process leaves no log of its own to the next one."""
    yield
    log = logging.getLogger("joymigrate.serve")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)
    log.propagate = True


TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }} Call one as <tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
WORDS = (
    "Hello world, this is a text about tokens and blocks. 你好，世界。 "
    'Grüße aus Köln — wie geht’s? 🙂🙃 naïve café; 0123456789 {}[]":,'
)


def make_tokenizer(folder: Path) -> int:
    """A byte-level BPE tokenizer that knows every text; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([WORDS] * 3, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    return len(wrapped)


def make_model(folder: Path, *, seed: int = 0, positions: int = 512) -> Path:
    """A two-layer Qwen2 with random weights."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    size = make_tokenizer(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=size,
        max_position_embeddings=positions,
        bos_token_id=0,
        eos_token_id=1,
    )
    config.initializer_range = 0.5  # logits that differ: greedy does not repeat one token
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder of the session."""
    pytest.importorskip("transformers", reason="pip install 'joymigrate[serve]'")
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@dataclass
class Running:
    """A server in a thread of this process, on a real socket."""

    url: str
    service: Any
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Any) -> Any:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return call(self.url + path)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return call(self.url + path, raw, headers)

    def refused(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and error of a request that must be refused."""
        status, _, raw = self.post(path, body, **headers)
        assert status >= 400, raw
        return status, json.loads(raw)["error"]

    def idle(self) -> None:
        """Wait until no text runs and no block is held, or fail."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            stats = self.service.engine.stats()
            if not (stats.running or stats.waiting or stats.blocks_used or self.service.texts):
                return
            time.sleep(0.01)
        raise AssertionError(f"still busy: {stats}")


def call(
    url: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One request without any client library's opinions."""
    kept = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, body, kept)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


@contextlib.contextmanager
def serving(folder: Path, limits: Any = None, keys: tuple[str, ...] = (), **options: Any) -> Any:
    """A server for a `with` block."""
    from joymigrate.run.serve.engine.http.service_start import open_service
    from joymigrate.run.serve.engine.types import EngineOptions
    from joymigrate.run.serve.web.server import Server

    chosen = EngineOptions(**{"threads": 1, **options})
    service = open_service(folder, chosen, names=("tiny", "alias"), keys=keys, limits=limits)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    made: list[Any] = []

    async def start() -> None:
        server = Server(service, port=0)
        await server.start()
        made.append(server)

    asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    running = Running(made[0].url, service, loop)
    try:
        yield running
    finally:
        asyncio.run_coroutine_threadsafe(made[0].stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Running]:
    """The one server of the session."""
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[Any]:
    """The official OpenAI client."""
    openai = pytest.importorskip("openai", reason="pip install 'joymigrate[dev]'")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture(scope="session")
def triton(server: Running) -> Iterator[Any]:
    """The official Triton client."""
    http = pytest.importorskip("tritonclient.http", reason="pip install 'joymigrate[dev]'")
    made = http.InferenceServerClient(server.url.removeprefix("http://"))
    yield made
    made.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(*arguments: str, cwd: Path | None = None, **environment: str) -> Any:
    """`joymigrate serve …` as a process, for a `with` block; yields (process, log lines)."""
    line = [sys.executable, "-m", "joymigrate", "serve", *arguments]
    made = subprocess.Popen(
        line, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(made.stdout or ()), daemon=True)
    reader.start()
    try:
        yield made, lines
    finally:
        if made.poll() is None:
            made.send_signal(signal.SIGTERM)
            try:
                made.wait(30)
            except subprocess.TimeoutExpired:
                made.kill()
        reader.join(5)


def wait_ready(
    url: str, made: subprocess.Popen[str], lines: list[str], seconds: float = 120
) -> None:
    """Return once /ready answers 200."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if made.poll() is not None:
            raise AssertionError("".join(lines))
        with contextlib.suppress(OSError):
            if call(url + "/ready")[0] == 200:
                return
        time.sleep(0.05)
    raise AssertionError("".join(lines))


def wait_said(lines: list[str], text: str, seconds: float = 30) -> str:
    """The first log line with `text`; a server answers before its log was read."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = next((line for line in list(lines) if text in line), None)
        if found is not None:
            return found
        time.sleep(0.05)
    raise AssertionError("".join(lines))
