"""The web base: real sockets, real TLS, keys with limits, slow heads, drains, reloads."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.web import tls
from joymigrate.run.serve.web.cors import Cors
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import Ask, Reply, data
from joymigrate.run.serve.web.server import Server, reload_of
from joymigrate.run.serve.web.site import Front


class Echo:
    """A service that says what it was sent; `/slow` takes ten minutes."""

    def __init__(self, limits: HttpLimits | None = None, keys: tuple[Key | str, ...] = ()) -> None:
        self.limits, self.keys, self.draining = limits or HttpLimits(), Keys.of(keys), False
        self.seen: list[tuple[str, int, bool]] = []

    async def answer(self, ask: Ask) -> Reply:
        if ask.path == "/slow":
            await asyncio.sleep(600)
        return data({"path": ask.path, "length": len(ask.body), "called": ask.called})

    def record(self, ask: Ask, status: int, *, gone: bool = False) -> None:
        self.seen.append((ask.path, status, gone))

    async def close(self) -> None:
        pass


def run(
    scenario: Callable[[Server, aiohttp.ClientSession, Echo], Awaitable[None]],
    echo: Echo | None = None,
    front: Front | None = None,
) -> None:
    """A server, a client and a scenario."""

    @contextlib.asynccontextmanager
    async def opened(service: Echo) -> AsyncIterator[tuple[Server, aiohttp.ClientSession]]:
        server = Server(service, "127.0.0.1", 0, front)
        await server.start()
        async with aiohttp.ClientSession() as session:
            try:
                yield server, session
            finally:
                hurried = asyncio.Event()
                hurried.set()
                await server.stop(hurried)

    async def whole() -> None:
        service = echo or Echo()
        async with opened(service) as (server, session):
            await scenario(server, session, service)

    asyncio.run(asyncio.wait_for(whole(), 60))


async def raw(server: Server, sent: bytes, *, wait: float = 10.0) -> bytes:
    """What a server says to bytes; the connection is left open for writing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.site.port)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), wait)
    finally:
        writer.close()


def test_the_request_id_comes_in_and_goes_out() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        named = {"X-Request-Id": "mine-1"}
        async with session.get(server.url + "/a", headers=named) as reply:
            assert reply.headers["X-Request-Id"] == "mine-1"
            assert (await reply.json())["called"] == "mine-1"
        async with session.get(server.url + "/a", headers={"X-Request-Id": "a b"}) as reply:
            assert len(reply.headers["X-Request-Id"]) == 32, "an id with a space is replaced"

    run(scenario)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "])
def test_a_head_that_does_not_end_is_given_up(sent: bytes) -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        said = await raw(server, sent)
        assert said.startswith(b"HTTP/1.1 408 ")
        assert b"the head of the request" in said

    run(scenario, Echo(HttpLimits(header_seconds=0.2)))


def test_the_time_for_which_the_server_stood_still_is_no_clients() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.site.port)
        await asyncio.sleep(0.05)
        held = server.site.connections
        assert held is not None
        time.sleep(0.4)  # the head would have come meanwhile
        assert held.drop_slow_heads(0.3, 0.4) == 0
        assert held.drop_slow_heads(0.0) == 1, "but what it takes from here on counts"
        writer.close()

    run(scenario)


@pytest.mark.dear
def test_a_connection_may_rest_between_requests() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.site.port)
        for _ in range(2):
            writer.write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            while not (await reader.readline()).startswith(b"{"):
                if reader.at_eof() or b'"path"' in reader._buffer:  # type: ignore[attr-defined]
                    await asyncio.sleep(0)
                    reader._buffer.clear()  # type: ignore[attr-defined]
                    break
            await asyncio.sleep(0.5)
        writer.close()

    run(scenario, Echo(HttpLimits(header_seconds=0.2)))


@pytest.mark.dear
def test_a_body_that_does_not_come_is_given_up() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        said = await raw(server, b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab")
        assert said.startswith(b"HTTP/1.1 408 ")

    run(scenario, Echo(HttpLimits(body_seconds=0.2)))


@pytest.mark.parametrize("name", [b"Authorization: Bearer ", b"X-Api-Key: ", b"X-User: "])
def test_bytes_that_are_no_text_in_a_header_are_refused(name: bytes) -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        head = b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        said = await raw(server, head + name + b"\xff\xfe\r\n\r\n")
        assert said[9:12] in (b"400", b"401")

    run(scenario, Echo(keys=("k",)))


def test_a_key_has_a_rate_and_a_number_at_once() -> None:
    keys = Keys.of([Key("a", "team", requests_per_minute=2), Key("b", concurrent=1), "c"])
    rated, single, free = keys.keys
    keys.enter(rated, 0.0)
    keys.enter(rated, 0.0)
    with pytest.raises(HttpRefusal, match="2 requests a minute") as refused:
        keys.enter(rated, 1.0)
    assert refused.value.headers["Retry-After"] == "29"
    keys.enter(rated, 31.0)
    keys.enter(single, 0.0)
    with pytest.raises(HttpRefusal, match="1 requests at once"):
        keys.enter(single, 0.0)
    keys.leave(single, 0)
    keys.enter(single, 0.0)
    for _ in range(100):
        keys.enter(free, 0.0)


def test_a_key_has_tokens_that_are_paid_at_the_end() -> None:
    keys = Keys.of([Key("a", tokens_per_minute=60)])
    (key,) = keys.keys
    keys.enter(key, 0.0)
    keys.leave(key, 90)
    with pytest.raises(HttpRefusal, match="60 tokens a minute") as refused:
        keys.enter(key, 10.0)
    assert refused.value.headers["Retry-After"] == "21"  # 20 are overdrawn, and one is needed
    keys.enter(key, 31.0)
    keys.leave(key, 0)
    keys.enter(key, 1000.0)
    keys.leave(key, 59)
    keys.enter(key, 1000.0)  # it never holds more than a minute's


def test_a_refused_request_gives_no_place_back_that_it_never_had() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        key = {"Authorization": "Bearer k"}
        slow = asyncio.create_task(session.get(server.url + "/slow", headers=key).__aenter__())
        while not echo.keys.uses or not echo.keys.uses["k"].running:
            await asyncio.sleep(0.01)
        for _ in range(3):
            async with session.get(server.url + "/a", headers=key) as reply:
                assert reply.status == 429
                assert (await reply.json())["error"]["code"] == "too_many_at_once"
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        while echo.keys.uses["k"].running:
            await asyncio.sleep(0.01)
        async with session.get(server.url + "/a", headers=key) as reply:
            assert reply.status == 200

    run(scenario, Echo(keys=(Key("k", concurrent=1),)))


def test_a_certificate_that_is_not_valid_is_told_about(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)["server"]
    now, years = time.time(), 200 * 365 * 86_400
    assert "expired" in (tls.expiry(made, now + years) or "")
    assert "valid from" in (tls.expiry(made, now - years) or "")
    assert tls.expiry(tmp_path / "none", now) is None


def test_an_origin_that_no_browser_sends_is_refused() -> None:
    good = Cors.of(["https://chat.example.com/", "*", "null", "http://[::1]:3000", "capacitor://a"])
    assert good.origins[0] == "https://chat.example.com"
    for bad in (
        "chat.example.com",
        "https://",
        "https://a.example/path",
        "https://*.a.example",
        "",
    ):
        with pytest.raises(JoyError, match="no origin"):
            Cors.of([bad])


def test_cors_lets_in_whom_it_names() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        good, bad = {"Origin": "https://chat.example"}, {"Origin": "https://evil.example"}
        asks = {"Access-Control-Request-Method": "POST"}
        async with session.options(server.url + "/a", headers=good | asks) as reply:
            assert reply.status == 204
            assert reply.headers["Access-Control-Allow-Origin"] == good["Origin"]
        async with session.get(server.url + "/a", headers=good) as reply:
            assert reply.status == 401, "a page needs a key like everybody"
            assert reply.headers["Access-Control-Allow-Origin"] == good["Origin"]
        async with session.options(server.url + "/a", headers=bad | asks) as reply:
            assert reply.status == 401
            assert "Access-Control-Allow-Origin" not in reply.headers

    cors = Cors(("https://chat.example",))
    run(scenario, Echo(keys=("k",)), Front(cors=cors))


def test_a_drain_ends_at_its_deadline_with_requests_that_would_go_on() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        slow = asyncio.create_task(session.get(server.url + "/slow").__aenter__())
        while not server.site.active:
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await server.stop()
        assert loop.time() - began < 10, "the request would have taken ten minutes"
        with pytest.raises(aiohttp.ClientError):
            await slow
        assert echo.seen == [("/slow", 499, True)]

    run(scenario, Echo(HttpLimits(drain_seconds=0.3)))


def test_who_was_taken_before_the_end_gets_an_answer_to_what_is_sent_meanwhile() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.site.port)
        stopping = asyncio.create_task(server.stop())
        while not server.site.draining:
            await asyncio.sleep(0.01)
        for part in (b"POST /a HTTP/1.1\r\nHost: a\r\n", b"Content-Length: 2\r\n\r\n", b"{}"):
            await asyncio.sleep(0.02)
            writer.write(part)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        assert echo.seen == [("/a", 200, False)]
        await stopping
        writer.close()

    run(scenario)


@pytest.mark.dear
def test_a_draining_server_still_answers_who_asks_for_its_health() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        slow = asyncio.create_task(session.get(server.url + "/slow").__aenter__())
        while not server.site.active:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(server.stop())
        while not server.site.draining:
            await asyncio.sleep(0.01)
        async with session.get(server.url + "/health") as reply:
            assert reply.status == 200
            assert reply.headers["Connection"] == "close"
        await stopping
        await asyncio.gather(slow, return_exceptions=True)

    run(scenario, Echo(HttpLimits(drain_seconds=1.0)))


def test_a_reload_takes_up_keys_without_a_restart() -> None:
    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        async def status(key: str) -> int:
            named = {"X-Api-Key": key}
            async with session.get(server.url + "/a", headers=named) as reply:
                return reply.status

        assert (await status("old"), await status("new")) == (200, 401)
        reload_of(server)()
        assert (await status("old"), await status("new")) == (401, 200)

    run(scenario, Echo(keys=("old",)), Front(read_keys=lambda: (Key("new"),)))


# TLS


def make_certificates(folder: Path) -> dict[str, Path]:
    """A CA, and a server's and a client's certificate that it signed."""
    pytest.importorskip("cryptography", reason="pip install cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime(2026, 1, 1)
    found: dict[str, Path] = {}

    def make(name: str, signer: tuple[Any, Any] | None) -> tuple[Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer, signing = (subject, key) if signer is None else signer
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + datetime.timedelta(days=36500))
            .add_extension(x509.BasicConstraints(signer is None, None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign(signing, hashes.SHA256())
        )
        found[name] = folder / f"{name}.pem"
        found[name].write_bytes(built.public_bytes(serialization.Encoding.PEM))
        found[name + ".key"] = folder / f"{name}.key"
        found[name + ".key"].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return subject, key

    authority = make("ca", None)
    make("server", authority)
    make("client", authority)
    return found


def test_tls_with_certificates_of_clients(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    ours = tls.Tls(files["server"], files["server.key"], files["ca"])
    theirs = tls.of_client(tls.Tls(files["client"], files["client.key"], files["ca"]))
    nameless = tls.of_client(tls.Tls(ca=files["ca"]))

    async def scenario(server: Server, session: aiohttp.ClientSession, echo: Echo) -> None:
        assert server.url.startswith("https://")
        async with session.get(server.url + "/a", ssl=theirs) as reply:
            assert reply.status == 200
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, OSError)):
            async with session.get(server.url + "/a", ssl=nameless) as reply:
                await reply.read()
        server.site.reload()
        other = aiohttp.ClientSession()
        async with other, other.get(server.url + "/a", ssl=theirs) as reply:
            assert reply.status == 200

    run(scenario, front=Front(tls=ours))


def test_a_certificate_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="no such file"):
        tls.of_server(tls.Tls(tmp_path / "none.pem"))
    (tmp_path / "bad.pem").write_text("nothing")
    with pytest.raises(JoyError, match="cannot be used"):
        tls.of_server(tls.Tls(tmp_path / "bad.pem"))


def test_free_memory_is_given_back_while_a_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from joymigrate.run.serve.web import memory

    calls: list[int] = []
    monkeypatch.setattr(memory, "trim", lambda: calls.append)

    async def until_called() -> None:
        task = asyncio.ensure_future(memory.give_back(seconds=0.001))
        while len(calls) < 2:
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(until_called(), 60))
    assert calls[:2] == [0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_the_c_library_is_asked() -> None:
    from joymigrate.run.serve.web import memory

    found = memory.trim()
    if found is None:
        pytest.skip("this C library has no malloc_trim")
    assert found(0) in (0, 1)
