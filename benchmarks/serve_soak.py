"""Do gateway and engines stay the same size? Clients with adapters, images, tools, cancellations.

    python -m benchmarks.serve_soak --minutes 10 --clients 64

Two engines of one tiny text model with a LoRA adapter stand behind a gateway, a third one reads
images, all in processes of their own. Each client asks one of seven kinds after the other; every
tenth stream is left in the middle. Each whole answer is compared with the one that the same
question got alone before. Prints one JSON line; passes (exit 0) when no answer was an error or
another text, memory in the last quarter is at most 5 % above that of the second, and at most five
descriptors more are open at rest than before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil

TOOL = {"type": "function", "function": {"name": "weigh", "parameters": {
    "type": "object", "properties": {"what": {"enum": ["tea", "salt", "sand"]}},
    "required": ["what"], "additionalProperties": False}}}  # fmt: skip
WORDS = {"guided_regex": "[a-e]{3,9} [0-9]{2,6}"}
KINDS: dict[str, dict[str, Any]] = {
    "text": {"temperature": 0, "max_tokens": 12, **WORDS},
    "stream": {"temperature": 0, "max_tokens": 24, "stream": True, **WORDS},
    "seeded": {"temperature": 1.1, "seed": 7, "max_tokens": 24, "stream": True, **WORDS},
    "adapter": {"model": "terse", "temperature": 0, "max_tokens": 16, "stream": True, **WORDS},
    "tool": {"temperature": 0, "max_tokens": 40, "tools": [TOOL], "tool_choice": "required"},
    "tool stream": {"temperature": 0, "max_tokens": 40, "tools": [TOOL], "stream": True,
                    "tool_choice": "required"},
    "image": {"temperature": 0, "max_tokens": 6, "ignore_eos": True},
}  # fmt: skip
QUESTIONS = 6
LEFT = 0.1  # share of the streams that are left in the middle
REST_SECONDS = 8.0


def models(folder: Path) -> tuple[Path, Path, Path]:
    """A text model, its adapter, and a model that sees."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.run.serve.engine.http.conftest import TEMPLATE, make_model, make_tokenizer
    from tests.run.serve.engine.http.test_images import MARKS
    from tests.run.serve.engine.test_vision import make_vision

    text = make_model(folder / "text")
    base: Any = AutoModelForCausalLM.from_pretrained(text)
    adapted: Any = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=32))
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.5)
    adapted.save_pretrained(folder / "terse")
    sight = folder / "sight"
    make_tokenizer(sight)
    words = AutoTokenizer.from_pretrained(sight)
    words.add_special_tokens({"additional_special_tokens": MARKS})
    words.chat_template = TEMPLATE.replace("<image>", "".join((MARKS[1], MARKS[0], MARKS[2])))
    words.save_pretrained(sight)
    image, start, end = words.convert_tokens_to_ids(MARKS)
    make_vision("qwen2_5_vl", sight, len(words), (image, start, end))
    return text, folder / "terse", sight


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[tuple[str, psutil.Process]]:
    """`joymigrate serve …` and where it listens."""
    made = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "joymigrate", "serve", *arguments],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=dict(os.environ),
    )  # fmt: skip
    assert made.stderr is not None
    said: list[str] = []
    try:
        for line in made.stderr:
            said.append(line)
            if "listening on" in line or "http://127.0.0.1" in line:
                break
        else:
            raise SystemExit("".join(said[-10:]))
        url = next(word for word in line.split() if word.startswith("http://")).rstrip("/.,")
        drain = asyncio.get_running_loop().run_in_executor(None, made.stderr.read)
        yield url, psutil.Process(made.pid)
        made.terminate()
        del drain
    finally:
        if made.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                made.wait(20)
        made.kill()


def question(kind: str, number: int, pictures: list[str]) -> dict[str, Any]:
    """One of a few questions of a kind."""
    text = f"question {number}"
    content: Any = text
    if kind == "image":
        picture = {"type": "image_url", "image_url": {"url": pictures[number % len(pictures)]}}
        content = [{"type": "text", "text": text}, picture]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **KINDS[kind]}


def read(raw: bytes, stream: bool) -> str:
    """What was said, or `error: …`."""
    if not stream:
        message = json.loads(raw)["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return str(message.get("content") or "") + (json.dumps(calls) if calls else "")
    text, done = "", False
    for event in raw.split(b"\n\n"):
        done = done or event == b"data: [DONE]"
        if not event.startswith(b"data: {"):
            continue
        parsed = json.loads(event[6:])
        if parsed.get("error"):
            return f"error: {parsed['error']['message']}"
        for choice in parsed["choices"]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                text += call["function"].get("name") or ""
                text += call["function"].get("arguments") or ""
    return text if done else "error: no end"


class Soak:
    """The clients, what each kind of question got alone, and what went wrong."""

    def __init__(self, urls: dict[str, str], pictures: list[str]) -> None:
        self.urls, self.pictures = urls, pictures
        self.alone: dict[tuple[str, int], str] = {}
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def ask(self, session: aiohttp.ClientSession, kind: str, number: int) -> str:
        """A whole answer."""
        body = question(kind, number, self.pictures)
        url = self.urls["image" if kind == "image" else "text"] + "/v1/chat/completions"
        async with session.post(url, json=body) as reply:
            raw = await reply.read()
            if reply.status != 200:
                return f"error: {reply.status} {raw[:200]!r}"
        return read(raw, bool(body.get("stream")))

    async def leave(self, session: aiohttp.ClientSession, kind: str, number: int) -> None:
        """Begin to read a stream, and go."""
        body = question(kind, number, self.pictures)
        async with session.post(self.urls["text"] + "/v1/chat/completions", json=body) as reply:
            await reply.content.readany()
            reply.close()
        self.seen["left"] += 1

    async def client(self, session: aiohttp.ClientSession, seed: int, until: float) -> None:
        """Ask until the time is over."""
        rng = random.Random(seed)
        while time.monotonic() < until:
            kind, number = rng.choice(list(KINDS)), rng.randrange(QUESTIONS)
            try:
                if KINDS[kind].get("stream") and rng.random() < LEFT:
                    await self.leave(session, kind, number)
                    continue
                found = await self.ask(session, kind, number)
            except aiohttp.ClientError as error:
                found = f"error: {type(error).__name__}: {error}"
            good = found == self.alone[kind, number]
            self.seen[kind if good else f"{kind}: wrong"] += 1
            if not good and len(self.wrong) < 20:
                self.wrong.append(f"{kind} {number}: {found!r} != {self.alone[kind, number]!r}")


async def load(soak: Soak, options: argparse.Namespace, watched: dict[str, psutil.Process]) -> Any:
    """Answers alone, then all clients, then rest."""
    sizes: dict[str, list[float]] = {name: [] for name in watched}
    connector = aiohttp.TCPConnector(limit=0, force_close=False)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        for kind in KINDS:
            for number in range(QUESTIONS):
                soak.alone[kind, number] = await soak.ask(session, kind, number)
        bad = {key: text for key, text in soak.alone.items() if text.startswith("error")}
        if bad:
            raise SystemExit(f"alone: {bad}")
        print("answers alone are known, the clients begin", file=sys.stderr, flush=True)
        before = {name: one.num_fds() for name, one in watched.items()}
        until = time.monotonic() + options.minutes * 60
        clients = [asyncio.create_task(soak.client(session, seed, until))
                   for seed in range(options.clients)]  # fmt: skip
        while not all(one.done() for one in clients):
            for name, one in watched.items():
                sizes[name].append(one.memory_info().rss / 2**20)
            await asyncio.wait(clients, timeout=5)
        await asyncio.gather(*clients)
    await asyncio.sleep(REST_SECONDS)
    after = {name: one.num_fds() for name, one in watched.items()}
    rows = {}
    for name, taken in sizes.items():
        quarter = max(1, len(taken) // 4)
        second = statistics.median(taken[quarter : 2 * quarter] or taken)
        last = statistics.median(taken[-quarter:])
        rows[name] = {"rss_mib": [round(second, 1), round(last, 1)],
                      "descriptors": [before[name], after[name]],
                      "flat": last <= 1.05 * second and after[name] <= before[name] + 5
                      }  # fmt: skip
    return rows


async def run(options: argparse.Namespace) -> int:
    from tests.run.serve.engine.http.test_images import data_url
    from tests.run.serve.engine.test_vision import picture

    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        text, adapter, sight = await asyncio.to_thread(models, folder)
        engine = ["--device", "cpu", "--threads", "1", "--port", "0", "--name", "tiny",
                  "--pretouch"]  # fmt: skip
        one, first = stack.enter_context(process(str(text), *engine, "--lora", f"terse={adapter}"))
        two, second = stack.enter_context(process(str(text), *engine, "--lora", f"terse={adapter}"))
        three, third = stack.enter_context(process(str(sight), *engine))
        upstreams = {"one": {"url": one, "role": "primary", "token_ids": "ask"},
                     "two": {"url": two, "role": "standby", "token_ids": "ask"}}  # fmt: skip
        config = {"listen": "127.0.0.1:0", "upstreams": upstreams, "monitor": {"devices": False},
                  "limits": {"first_byte_seconds": 120, "idle_seconds": 120},
                  "health": {"timeout_seconds": 30},
                  "rollout": {"steps": [50, 100], "min_step_seconds": 1e6,
                              "max_step_seconds": 1e7, "max_slowdown": 0}}  # fmt: skip
        path = folder / "gateway.yaml"
        path.write_text(json.dumps(config))
        gate, fourth = stack.enter_context(process("--config", str(path), "--unverified"))
        pictures = [data_url(picture(seed, 60, 50)) for seed in range(QUESTIONS)]
        soak = Soak({"text": gate, "image": three}, pictures)
        watched = {"primary": first, "standby": second, "vision": third, "gateway": fourth}
        rows = await load(soak, options, watched)
        async with aiohttp.ClientSession() as session, session.get(gate + "/admin/rollout") as told:
            state = await told.json()
    wrong = sum(count for name, count in soak.seen.items() if name.endswith("wrong"))
    print(json.dumps({"minutes": options.minutes, "clients": options.clients,
                      "load": os.getloadavg(), "seen": dict(soak.seen), "wrong": soak.wrong,
                      "processes": rows, "state": state["state"],
                      "last": state["events"][-1]["text"]}))  # fmt: skip
    return 0 if not wrong and all(row["flat"] for row in rows.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=64)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
