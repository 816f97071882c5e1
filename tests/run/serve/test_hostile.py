"""Thousands of requests that nobody should send, to the engine's server and to a gateway before it.

Every one gets an answer below 500 or a closed connection; nothing that a body hides is ever taken
for a request; afterwards the servers answer as before, and are no larger.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import gzip
import json
import os
import random
import re
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'joymigrate[serve]'")

from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.server import Gateway
from joymigrate.run.serve.web.limits import HttpLimits

from .engine.http.conftest import Running, make_model, serving

STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3})", re.M)
HIDDEN = "/v1/hidden"  # in bodies only
SECRET = f"GET {HIDDEN} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
CLIENTS = 20
GOOD = {"prompt": "Hello", "max_tokens": 1}
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/score",
         "/tokenize", "/v2/models/tiny/generate", "/v2/models/tiny/infer")  # fmt: skip
FIELDS = ("prompt", "messages", "input", "max_tokens", "temperature", "top_p", "top_k", "n", "seed",
          "stop", "logit_bias", "logprobs", "stream", "stream_options", "response_format", "tools",
          "guided_regex", "stop_token_ids", "model", "resume", "echo", "min_tokens")  # fmt: skip
VALUES = ("NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "9" * 400, "1e308", "true", "null",
          "[]", "{}", '""', '"\\ud800"', '"\\u0000"', "[[[[]]]]", '{"a":{"b":[]}}', "[null]",
          '"' + "a" * 5000 + '"', "18446744073709551616", "-9223372036854775809", '"(a+)+$"',
          '[{"role":"user","content":"' + "{{7*7}}" + '"}]')  # fmt: skip


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """The head of a request."""
    rows = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""]
    return "\r\n".join(rows).encode("utf-8", "surrogateescape")


def sent(path: str, body: bytes, *lines: str) -> bytes:
    """A whole request."""
    return head(path, f"Content-Length: {len(body)}", *lines) + body


def smuggle(draw: random.Random) -> bytes:
    """Two lengths, odd codings, odd white space: what one server ends earlier than another."""
    chunk = b"0\r\n\r\n" + SECRET
    body = json.dumps(GOOD).encode()
    return draw.choice(
        (
            head(PATHS[0], "Content-Length: 5", "Transfer-Encoding: chunked") + chunk,
            head(PATHS[0], "Content-Length: 0", f"Content-Length: {len(SECRET)}") + SECRET,
            head(PATHS[0], "Content-Length: +5") + body,
            head(PATHS[0], "Content-Length: 5, 5") + body,
            head(PATHS[0], "Content-Length: 0x10") + body,
            head(PATHS[0], "Transfer-Encoding: xchunked") + chunk,
            head(PATHS[0], "Transfer-Encoding: chunked, identity") + chunk,
            head(PATHS[0], "Transfer-Encoding: identity, chunked") + chunk,
            head(PATHS[0], "Transfer-Encoding : chunked") + chunk,
            head(PATHS[0], "Transfer-Encoding:\x0bchunked") + chunk,
            head(PATHS[0], "X: y", " folded: z", "Content-Length: 0") + SECRET,
            head(PATHS[0], "Transfer-Encoding: chunked") + b"FFFFFFFFFFFFFFFFF\r\n" + SECRET,
            head(PATHS[0], "Transfer-Encoding: chunked") + b"-1\r\n" + SECRET,
            head(PATHS[0], "Transfer-Encoding: chunked") + b"5;a=" + b"b" * 9999 + b"\r\nhello\r\n",
            sent(PATHS[0], SECRET),
            f"POST {PATHS[0]} HTTP/1.1\nHost: x\nContent-Length: 0\n\n".encode() + SECRET,
            head("/health", "Content-Length: 0", "\x00: a", method="GET"),
            head("/health", "A\rB: c", method="GET"),
        )
    )


def cut(draw: random.Random) -> bytes:
    """A request that stops somewhere."""
    whole = sent(PATHS[0], json.dumps(GOOD).encode())
    return whole[: draw.randrange(1, len(whole))]


def huge(draw: random.Random) -> bytes:
    """Too much of something."""
    return draw.choice(
        (
            head("/health", "X: " + "a" * draw.choice((9_000, 70_000, 200_000)), method="GET"),
            head("/health", *[f"X-{i}: y" for i in range(20_000)], method="GET"),
            head("/" + "a" * 100_000, method="GET"),
            head(PATHS[0], f"Content-Length: {10**15}") + b"{",
            sent(PATHS[0], b'{"prompt": "' + b"a" * 300_000 + b'"}'),
            head(PATHS[0], "Transfer-Encoding: chunked")
            + b"".join(b"10000\r\n" + b"a" * 65536 + b"\r\n" for _ in range(8)),
            sent(PATHS[0], b"[" * 100_000),
            sent(PATHS[0], b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
            sent(PATHS[0], b'{"prompt": [' + b"1," * 60_000 + b"1]}"),
            sent(PATHS[0], json.dumps({f"k{i}": 1 for i in range(9_000)}).encode()),
        )
    )


def packed(draw: random.Random) -> bytes:
    """Bodies that are larger than they look, or no bodies at all."""
    kind, body = draw.choice(
        (
            ("gzip", bomb(gzip.compress)),
            ("deflate", bomb(zlib.compress)),
            ("gzip", gzip.compress(gzip.compress(b"{}"))),
            ("gzip", gzip.compress(json.dumps(GOOD).encode())[:-5]),
            ("gzip", os.urandom(50)),
            ("br", b"{}"),
            ("zstd", b"{}"),
            ("gzip, gzip", gzip.compress(b"{}")),
        )
    )
    return sent(PATHS[0], body, f"Content-Encoding: {kind}")


@functools.cache
def bomb(compress: Callable[[bytes], bytes]) -> bytes:
    """A small body of 20 MB."""
    return compress(b'{"prompt": "' + b"a" * 20_000_000)


def encoded(draw: random.Random) -> bytes:
    """Texts that are not what they say."""
    text = json.dumps({"prompt": "héllo"}, ensure_ascii=False)
    return draw.choice(
        (
            sent(PATHS[0], b'{"prompt": "\xff\xfe"}'),
            sent(PATHS[0], text.encode("utf-16")),
            sent(PATHS[0], b"\xef\xbb\xbf" + text.encode()),
            sent(PATHS[0], text.encode("latin-1")),
            sent(PATHS[0], b"\x00" * 50),
            sent(PATHS[0], b'{"prompt": "a", "prompt": "b", "max_tokens": 1, "max_tokens": 1}'),
            head("/health", "X-A: \udcff\udcfe", method="GET"),
            head("/health", "Authorization: Bearer \udcff", method="GET"),
            sent(PATHS[0], b"--a\r\n\r\n--a--", "Content-Type: multipart/form-data; boundary=a"),
            sent(PATHS[0], os.urandom(draw.randrange(1, 400))),
        )
    )


def paths(draw: random.Random) -> bytes:
    """Paths that try to be others."""
    tricks = (
        "/v1/../admin/rollout", "/%2e%2e/%2e%2e/etc/passwd", "//v1//models", "/v1/models/%00", "",
        "/v1/models/..%2f..%2fetc", "/v1/models/" + "%25" * 500, "http://other/v1/models", "*",
        "/v1/models?" + "a=b&" * 2000, "/v1/models#x", "/\\..\\..\\x", "/v1/models/\u202e",
        "/v1/models/%ff%fe", "/v2/models/%2e%2e/config", "/admin/../v1/models",
    )  # fmt: skip
    method = draw.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE",
                          "CONNECT", "FOO", "get"))  # fmt: skip
    lines = ((), ("Upgrade: websocket", "Connection: Upgrade"), ("Expect: 100-continue",),
             ("Expect: 200-ok",), ("Content-Length: 0",))  # fmt: skip
    more = draw.choice(lines)
    return head(draw.choice(tricks), *more, method=method)


def valued(draw: random.Random) -> bytes:
    """A field with a value that it should not have."""
    rows = {"prompt": '"Hello"', "max_tokens": "1", "messages": '[{"role":"user","content":"a"}]'}
    rows[draw.choice(FIELDS)] = draw.choice(VALUES)
    rows[draw.choice(FIELDS)] = draw.choice(VALUES)
    body = "{" + ",".join(f'"{name}":{value}' for name, value in rows.items()) + "}"
    return sent(draw.choice(PATHS), body.encode("utf-8", "surrogatepass"))


def piped(draw: random.Random) -> bytes:
    """Many requests at once, with rubbish behind them."""
    one = draw.choice((head("/health", method="GET"), sent(PATHS[0], json.dumps(GOOD).encode())))
    one = one.replace(b"Connection: close\r\n", b"")
    rubbish = draw.choice((b"", b"\x00\x01", b"GET", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
    return one * draw.randrange(2, 20) + rubbish


Both = tuple[Running, list[str], list[str]]
KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "smuggle": smuggle, "cut": cut, "huge": huge, "packed": packed, "encoded": encoded,
    "paths": paths, "valued": valued, "piped": piped,
}  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """(server, addresses of the server and of a gateway before it, the paths that it was asked)."""
    folder = tmp_path_factory.mktemp("hostile")
    limits = HttpLimits(body_bytes=200_000, header_seconds=1.0, body_seconds=1.0)
    with serving(make_model(folder / "tiny"), limits) as running:
        asked: list[str] = []
        record = running.service.__class__.record

        def noted(self: Any, ask: Any, status: int, *, gone: bool = False) -> None:
            asked.append(ask.path)
            record(self, ask, status, gone=gone)

        patch = pytest.MonkeyPatch()
        patch.setattr(running.service.__class__, "record", noted)
        plan = {
            "listen": "127.0.0.1:0",
            "upstreams": {
                "gpu": {"url": running.url, "role": "primary"},
                "npu": {"url": running.url, "role": "standby"},
            },
            "limits": {"body_bytes": 200_000, "header_seconds": 1.0, "body_seconds": 1.0},
            "monitor": {"devices": False, "backends": False},
        }
        gateway = Gateway(settings.parse(plan, folder / "gateway.yaml"), unverified=True)
        running.run(gateway.start())
        yield running, [running.url, f"http://127.0.0.1:{gateway.port}"], asked
        running.run(gateway.stop())
        patch.undo()


def tried(url: str, data: bytes, patience: float = 2.5) -> list[int]:
    """Send bytes; the statuses of all answers until the server closes, or says nothing more."""
    host, _, port = url.removeprefix("http://").partition(":")
    found = b""
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 20) as made:
        made.settimeout(patience)
        with contextlib.suppress(OSError):
            made.sendall(data)  # the writing half stays open: who closes it is gone
        while piece := made.recv(65536):
            found = (found + piece)[-(2**20) :]
    return [int(status) for status in STATUS.findall(found)]


def attack(urls: list[str], count: int, seed: int) -> tuple[Counter[str], list[Any]]:
    """`count` requests from many clients; how many of each kind, and those answered by 5xx."""
    seen: Counter[str] = Counter()
    broken: list[Any] = []

    def client(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        for _ in range(count // CLIENTS):
            kind = draw.choice(tuple(KINDS))
            data = KINDS[kind](draw)
            statuses = tried(draw.choice(urls), data)
            seen[kind] += 1
            seen["answered"] += bool(statuses)
            broken.extend((kind, status, data[:300]) for status in statuses if status >= 500)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3600)
    return seen, broken


def at_rest(server: Running) -> tuple[int, int]:
    """Descriptors and tasks once nothing runs any more."""
    import psutil

    server.idle()

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    found = (10**9, 10**9)
    began = lowest = time.monotonic()
    while time.monotonic() < min(began + 15, lowest + 3):
        now = (psutil.Process().num_fds(), server.run(tasks()))
        if now < found:
            found, lowest = now, time.monotonic()
        time.sleep(0.25)
    return found


def in_use() -> int:
    """Bytes of memory of this process, without what its allocator could give back."""
    import psutil

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def held(both: Both, count: int, seed: int) -> Counter[str]:
    """Attack, and look at what is left."""
    server, urls, asked = both
    attack(urls, min(count, 800), seed)  # caches fill, pools grow
    before, memory = at_rest(server), in_use()
    asked.clear()
    seen, broken = attack(urls, count, seed)
    after, grown = at_rest(server), in_use() - memory
    assert broken == [], broken[:5]
    assert HIDDEN not in asked, "a body was taken for a request"
    assert after[0] <= before[0] + 5, "descriptors stay open"
    assert after[1] <= before[1] + 5, "tasks stay behind"
    assert grown < 60 * 2**20, f"{grown / 2**20:.0f} MiB more after {count} requests"
    for url in urls:
        assert tried(url, sent(PATHS[0], json.dumps(GOOD).encode())) == [200]
    seen["grown_mib"] = round(grown / 2**20)
    return seen


def test_hostile_requests_harm_nobody(both: Both) -> None:
    seen = held(both, 40, seed=1)
    assert sum(seen[kind] for kind in KINDS) == 40


@pytest.mark.slow
def test_five_thousand_hostile_requests_harm_nobody(both: Both) -> None:
    seen = held(both, 5000, seed=2)
    print(dict(seen))
    assert sum(seen[kind] for kind in KINDS) == 5000
