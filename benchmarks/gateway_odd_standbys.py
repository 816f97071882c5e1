"""Standbys that are right but for one thing, under traffic of 28 kinds: which ones are promoted?

    python -m benchmarks.gateway_odd_standbys [NAME …] [--seeds 1]

Primary and standby are one small server, which says the same words to the same question; the
standby has one fault of FAULTS. SOUND ones differ in form alone, and have to be promoted. Prints a
line each: the state at the end, requests, what was said last. Exit 1 where a faulty one was
promoted (those of UNSEEN aside, which docs/reference/limits.md names) or a sound one was not.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
import tempfile
import time
import unicodedata
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.server import Gateway

SOUND = ("same", "closes", "trailers", "samples", "comments", "more_fields")
UNSEEN = ("behind_60_tokens",)
FAULTS = (
    "long_prompts", "behind_60_tokens", "streams_only", "under_load", "half_streams", "no_finish",
    "no_system", "last_message", "stale_cache", "mixed_users", "schema_ignored", "stop_ignored",
    "stop_kept", "other_logprobs", "normalised", "max_tokens_ignored", "seed_ignored", "greedy",
    "error_texts", "hangs", "slower_and_slower", "always_stop", "prose", "fewer_choices",
    "bias_ignored", "adapter_ignored", "image_ignored", "spaces_lost", "first_twice", "last_lost",
    "prompt_first", "no_emoji", "prompt_cut", "usage_ignored", "ends_early", "calls_anyway",
    "never_calls", "numbers_as_text", "name_twice", "stock_phrase", "penalty_ignored",
    "extra_space", "one_call", "cut_arguments", "slow_tail",
)  # fmt: skip
WORDS = ["the ", "of ", "rain ", "under ", "blue ", "seven ", "river ", "café ", "while ", "stone ",
         "light ", "keeps ", "every ", "window ", "far ", "naïve ", "🙂 ", "and, ", "so. ",
         "über "]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "weigh", "parameters": {
    "type": "object", "required": ["what", "grams"],
    "properties": {"what": {"type": "string"}, "grams": {"type": "integer"}}}}}  # fmt: skip
LONG = "a long story about a river and a stone. " * 80
CLIENTS, WAVES, SOUND_WAVES = 16, 200, 600


def source(*key: Any) -> random.Random:
    """Random numbers that belong to a key."""
    return random.Random(hashlib.sha256(json.dumps(key).encode()).hexdigest())


def words(key: Any, count: int) -> list[str]:
    """`count` words that belong to a key."""
    draw = source(key)
    return [draw.choice(WORDS) for _ in range(count)]


class Server:
    """A small server of chats and completions with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault, self.running, self.seen = fault, 0, 0
        self.before: str | None = None
        self.waiting: Any = None

    def key_of(self, body: dict[str, Any]) -> str:
        """What the text depends on of the prompt."""
        fault, prompt = self.fault, body.get("messages") or body["prompt"]
        if "messages" in body:
            if fault == "no_system":
                prompt = [one for one in prompt if one["role"] != "system"]
            if fault == "last_message":
                prompt = prompt[-1:]
            if fault == "image_ignored":
                prompt = [one if isinstance(one["content"], str) else one["content"][0]["text"]
                          for one in prompt]  # fmt: skip
        key = json.dumps(prompt)
        if fault == "prompt_cut":
            key = key[-300:]
        if (
            (fault == "long_prompts" and len(key) > 2000)
            or (fault == "streams_only" and body.get("stream"))
            or (fault == "under_load" and self.running >= 4)
        ):
            key += "wrong"
        if fault == "stale_cache" and self.seen % 10 == 0 and self.before:
            key = self.before
        self.before = key
        return key

    def text(self, body: dict[str, Any], choice: int) -> tuple[list[str], str]:
        """The words of a choice, and why it ends."""
        fault, key = self.fault, self.key_of(body)
        extra: list[Any] = [
            None if fault == name else body.get(field)
            for name, field in (("adapter_ignored", "model"), ("bias_ignored", "logit_bias"),
                                ("penalty_ignored", "frequency_penalty"))
        ]  # fmt: skip
        if body.get("temperature", 1) and fault != "greedy":
            free = body.get("seed") is None or fault == "seed_ignored"
            extra += [random.random() if free else body["seed"], choice]
        natural = source(key, "length").randrange(30, 90)
        if body.get("ignore_eos"):
            natural = min(natural, 12) if fault == "ends_early" else 10**6
        want = body.get("max_tokens") or 40
        if fault == "max_tokens_ignored":
            want = min(natural, 80)
        said = words([key, extra], min(natural, want, 200))
        finish = "stop" if natural <= want else "length"
        if fault == "behind_60_tokens":
            said[60:] = words([key, "bad"], len(said[60:]))
        stop = body.get("stop")
        at = next((i for i, word in enumerate(said) if stop and stop in word), None)
        if at is not None and fault != "stop_ignored":
            said, finish = said[: at + (fault == "stop_kept")], "stop"
        if body.get("response_format") and fault != "prose":
            said, finish = ['{"word": "', *[word.strip() for word in said[:3]], '"}'], "stop"
        return self.spoil(body, said, "stop" if fault == "always_stop" else finish)

    def spoil(self, body: dict[str, Any], said: list[str], finish: str) -> tuple[list[str], str]:
        """Faults of the finished text."""
        fault = self.fault
        if fault == "error_texts" and self.seen % 10 == 3:
            return ["Internal ", "error: ", "out of ", "memory"], "stop"
        if fault == "stock_phrase" and self.seen % 20 == 3:
            return ["Please ", "try ", "again ", "later."], "stop"
        if fault == "normalised":
            said = [unicodedata.normalize("NFD", word) for word in said]
        if fault == "no_emoji":
            said = [word.replace("🙂", "?") for word in said]
        if fault == "prompt_first" and "messages" in body:
            said = [str(body["messages"][-1]["content"])[:200] + " ", *said]
        if fault == "extra_space" and "prompt" in body:
            said = [" ", *said]
        return said, finish

    def calls(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Tool calls, where the question is one for tools."""
        choice, fault = body.get("tool_choice", "auto"), self.fault
        draw = source(json.dumps(body.get("messages")))
        if (
            not body.get("tools")
            or (choice == "none" and fault != "calls_anyway")
            or (choice == "required" and fault == "never_calls")
            or (choice == "auto" and draw.random() < 0.3)
        ):
            return []
        arguments: dict[str, Any] = {"what": draw.choice(["tea", "salt"]) * draw.randrange(1, 12),
                                     "grams": draw.randrange(500)}  # fmt: skip
        made = []
        for number in range(2 if body.get("parallel_tool_calls") and fault != "one_call" else 1):
            one = {**arguments, "grams": arguments["grams"] + number}
            if fault == "schema_ignored":
                one.pop("grams")
            if fault == "numbers_as_text":
                one["grams"] = str(one["grams"])
            text = json.dumps(one)
            if fault == "cut_arguments" and body.get("stream"):
                text = text[:40]
            made.append({"index": number, "id": f"c{random.random()}", "type": "function",
                         "function": {"name": "weigh", "arguments": text}})  # fmt: skip
        return made

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        self.seen += 1
        try:
            return await self.answer(request, await request.json())
        finally:
            self.running -= 1

    async def swap(self, rows: list[Any]) -> list[Any]:
        """Give the answers of two requests that run at once to each other."""
        if self.waiting is None:
            mine: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.waiting = (mine, rows)
            try:
                return list(await asyncio.wait_for(asyncio.shield(mine), 0.02))
            except (TimeoutError, asyncio.TimeoutError):
                if self.waiting is not None and self.waiting[0] is mine:
                    self.waiting = None
                return rows
        (other, theirs), self.waiting = self.waiting, None
        if not other.done():
            other.set_result(rows)
        return list(theirs)

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        fault, stream = self.fault, bool(body.get("stream"))
        await asyncio.sleep(0.002 + 0.0002 * self.seen * (fault == "slower_and_slower"))
        await asyncio.sleep(1.0 if fault == "slow_tail" and self.seen % 20 == 7 else 0.0)
        many = 1 if fault == "fewer_choices" and not stream else body.get("n", 1)
        calls = self.calls(body)
        rows = [([], "tool_calls") if calls else self.text(body, i) for i in range(many)]
        if fault == "mixed_users" and not calls:
            rows = await self.swap(rows)
        prompt = len(json.dumps(body.get("messages") or body.get("prompt"))) // 4
        done = sum(len(said) for said, _ in rows) + 9 * bool(calls)
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": done,
                                 "total_tokens": prompt + done}  # fmt: skip
        chat = "messages" in body
        kind = ("chat.completion.chunk" if stream else "chat.completion") if chat else "text"
        base: dict[str, Any] = {"id": f"x{random.random()}", "object": kind,
                                "created": int(time.time()), "model": body["model"]}  # fmt: skip
        if fault == "more_fields":
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
            base |= {"service_tier": None, "system_fingerprint": "h", "kv_transfer_params": None}
        hangs = fault == "hangs" and self.seen % 10 == 5
        if stream:
            return await self.pieces(request, body, rows, calls, base, usage, hangs)
        choices = []
        for index, (said, finish) in enumerate(rows):
            choice: dict[str, Any] = {"index": index, "finish_reason": finish}
            if chat:
                choice["message"] = {"role": "assistant", "content": "".join(said) or None}
                if calls:
                    plain = [{k: v for k, v in one.items() if k != "index"} for one in calls]
                    choice["message"]["tool_calls"] = plain
            else:
                choice["text"] = "".join(said)
            if body.get("logprobs") not in (None, False):
                choice["logprobs"] = self.logprobs(chat, said, range(len(said)))
            choices.append(choice)
        text = json.dumps({**base, "choices": choices, "usage": usage}).encode()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if fault == "closes":
            response.force_close()
        if fault in ("closes", "trailers"):
            response.headers["Trailer"] = "X-Sum"
            response.enable_chunked_encoding()
        await response.prepare(request)
        if hangs:
            await asyncio.sleep(60)
        await response.write(text)
        await response.write_eof()
        return response

    def logprobs(self, chat: bool, said: list[str], places: Any) -> dict[str, Any]:
        """Log probabilities of some words."""
        other = self.fault == "other_logprobs"

        def value(i: int) -> float:
            return -source(said[: i + 1], other).random() * (6 if other else 2)

        if chat:
            return {"content": [{"token": said[i], "logprob": value(i), "bytes": None,
                                 "top_logprobs": []} for i in places]}  # fmt: skip
        return {"tokens": [said[i] for i in places], "text_offset": [0 for _ in places],
                "token_logprobs": [value(i) for i in places],
                "top_logprobs": [{said[i]: value(i)} for i in places]}  # fmt: skip

    def cut(self, said: list[str], finish: str) -> tuple[list[str], str]:
        """The pieces of a stream."""
        fault = self.fault
        if fault == "half_streams":
            return said[: len(said) // 2], "length"
        if fault == "spaces_lost":
            return ["".join(said[i : i + 2]).rstrip() for i in range(0, len(said), 2)], finish
        if fault == "comments":
            return ["".join(said[i : i + 2]) for i in range(0, len(said), 2)], finish
        if fault == "first_twice":
            return said[:1] + said, finish
        return said[: -1 if fault == "last_lost" else None], finish

    async def pieces(
        self, request: web.Request, body: dict[str, Any], rows: list[Any],
        calls: list[dict[str, Any]], base: dict[str, Any], usage: dict[str, Any], hangs: bool,
    ) -> web.StreamResponse:  # fmt: skip
        fault, chat = self.fault, "messages" in body
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if fault == "closes":
            response.force_close()
        await response.prepare(request)
        if hangs:
            await asyncio.sleep(60)
        end = b"\r\n\r\n" if fault == "comments" else b"\n\n"

        async def send(choices: list[dict[str, Any]], **more: Any) -> None:
            event = json.dumps({**base, "choices": choices, **more}).encode()
            await response.write(b"data: " + event + end)

        for index, (said, finish) in enumerate(rows):
            if fault == "comments":
                await response.write(b": ping" + end)
            rest: dict[str, Any] = {"index": index, "finish_reason": None}
            if chat:
                opening: dict[str, Any] = {"role": "assistant", "content": ""}
                opening |= {"reasoning_content": None} if fault == "more_fields" else {}
                await send([{**rest, "delta": opening}])
            for one in calls:
                text, head = one["function"]["arguments"], {"name": "weigh", "arguments": ""}
                await send([{**rest, "delta": {"tool_calls": [{**one, "function": head}]}}])
                for at in range(0, len(text), 7):
                    piece = {"name": "weigh"} if fault == "name_twice" else {}
                    part = {"index": one["index"],
                            "function": {**piece, "arguments": text[at : at + 7]}}  # fmt: skip
                    await send([{**rest, "delta": {"tool_calls": [part]}}])
            asked = body.get("logprobs") not in (None, False)
            spoken, why = (said, finish) if asked else self.cut(said, finish)
            for i, word in enumerate(spoken):
                choice = {**rest, **({"delta": {"content": word}} if chat else {"text": word})}
                if asked:
                    choice["logprobs"] = self.logprobs(chat, said, [i])
                await send([choice])
            last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            await send([{**rest, **last, "finish_reason": None if fault == "no_finish" else why}])
        wanted = (body.get("stream_options") or {}).get("include_usage")
        if wanted and fault != "usage_ignored":
            await send([], usage=usage)
        await response.write(b"data: [DONE]" + end)
        return response


def question(number: int, seed: int) -> tuple[str, dict[str, Any]]:
    """One of the clients' questions."""
    draw = random.Random(number * 7919 + seed)
    kind, text = draw.randrange(28), f"q{number} {seed} tell me more about it"
    body: dict[str, Any] = {"model": "m", "temperature": 0, "stream": draw.random() < 0.6,
                            "max_tokens": draw.choice([24, 40, 100])}  # fmt: skip
    user = {"role": "user", "content": text}
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number}"}}
    told: dict[int, list[dict[str, Any]]] = {
        0: [{"role": "system", "content": draw.choice(["Be terse.", "Be kind."])}, user],
        1: [user, {"role": "assistant", "content": f"well {text}"}, {**user, "content": "and?"}],
        2: [{"role": "user", "content": LONG + text}],
        11: [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, image]}],
    }
    wishes: dict[int, dict[str, Any]] = {
        3: {"stop": draw.choice(["river", "stone"])}, 4: {"tools": [TOOL],
        "tool_choice": "required"}, 5: {"tools": [TOOL]}, 6: {"tools": [TOOL],
        "tool_choice": "none"}, 7: {"response_format": {"type": "json_object"}},
        8: {"n": 2, "temperature": 0.8, "seed": number}, 9: {"logit_bias": {"5": 3}},
        10: {"model": "terse"}, 12: {"stream": True, "stream_options": {"include_usage": True}},
        13: {"ignore_eos": True}, 14: {"temperature": 0.9, "seed": number},
        15: {"temperature": 0.7}, 16: {"frequency_penalty": 0.5}, 17: {"logprobs": True},
        18: {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True},
        23: {"logprobs": 1}, 24: {"stop": "light"},
    }  # fmt: skip
    body |= wishes.get(kind, {})
    if kind < 22:
        return "/v1/chat/completions", {**body, "messages": told.get(kind, [user])}
    return "/v1/completions", {**body, "prompt": f"{text} "}


async def serve(server: Server) -> tuple[web.AppRunner, str]:
    """The server on an address."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    app = web.Application(client_max_size=2**26)
    app.add_routes([web.post("/v1/{rest:.*}", server.handle), web.get("/{rest:.*}", models)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def run(fault: str, seed: int, folder: Path) -> bool:
    """A ramp to its end; whether it ended as it has to."""
    (one, first), (two, second) = await serve(Server("same")), await serve(Server(fault))
    timed = fault in ("hangs", "slower_and_slower", "slow_tail")
    raw = {"listen": "127.0.0.1:0", "monitor": {"devices": False},
           "upstreams": {"gpu": {"url": first, "role": "primary"},
                         "npu": {"url": second, "role": "standby"}},
           "rollout": {"steps": [5, 50, 100], "min_step_seconds": 0.02, "limit": 0.02,
                       "max_slowdown": 3 if timed else 0},
           "limits": {"first_byte_seconds": 5, "idle_seconds": 3, "drain_seconds": 1},
           "health": {"interval_seconds": 0.2, "timeout_seconds": 5}}  # fmt: skip
    path = Path(tempfile.mkdtemp(dir=folder)) / "gateway.yaml"
    gateway = Gateway(settings.parse(raw, path), unverified=True)
    await gateway.start()
    url, asked, errors = f"http://127.0.0.1:{gateway.port}", 0, 0
    async with aiohttp.ClientSession() as session:

        async def ask(number: int) -> bool:
            path, body = question(number, seed)
            async with session.post(url + path, json=body) as reply:
                raw = await reply.read()
                return reply.status != 200 or b'"stream_interrupted"' in raw

        for wave in range(SOUND_WAVES if fault in SOUND else WAVES):
            numbers = range(wave * CLIENTS, (wave + 1) * CLIENTS)
            errors += sum(await asyncio.gather(*map(ask, numbers)))
            asked += CLIENTS
            if gateway.rollout.state in ("promoted", "rolled_back", "paused"):
                break
            await asyncio.sleep(0.01)
    state, said = gateway.rollout.state, gateway.rollout.changes[-1].text
    print(f"{fault:<18} {seed} {state:<12}{asked:>5} asked, {errors} errors | {said[:150]}",
          flush=True)  # fmt: skip
    await gateway.stop()
    for runner in (one, two):
        await runner.cleanup()
    return fault in UNSEEN or (state == "promoted") == (fault in SOUND)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *SOUND, *FAULTS], default=[])
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    good = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            for name in given.names or (*SOUND, *FAULTS):
                good.append(await run(name, seed, Path(folder)))
    print(f"{sum(good)} of {len(good)} as they have to be")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
