"""The live page's server: GET only, one page, its changes as server-sent events, its evidence.

It binds to one address, answers nobody who asks under another name (DNS rebinding), and has
nothing that writes.
"""

from __future__ import annotations

import ipaddress
import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from joymigrate.errors import JoyError
from joymigrate.language import Language, languages, speaking
from joymigrate.report.live import files
from joymigrate.report.live.feed import Feed
from joymigrate.report.live.parts import page

QUIET_S = 15.0  # a stream without news says so, so that both ends know the other is there
MOST_STREAMS = 64  # a browser beyond them asks every few seconds
REQUEST_S = 30.0
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FRAMES = "frame-ancestors 'none'"
# Evidence is shown, but may load nothing and knows nothing of this server.
SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    f"script-src 'unsafe-inline'; img-src data:; {FRAMES}"
)


class Live(ThreadingHTTPServer):
    """The server with what its answers need.

    `report(lang)` renders the whole report, None while there is no journey.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: tuple[str, int],
        feed: Feed,
        report: Callable[[str], str | None],
        lang: str = "en",
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.feed, self.report, self.lang, self.name = feed, report, lang, address[0]
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/"

    def knows(self, host: str | None) -> bool:
        """Whether a request's Host header names this server: a number, `localhost`, its --host.

        A page of a stranger that made its own name point here still says that name.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", self.name.lower()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error of this program."""
        import sys

        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Live
    protocol_version = "HTTP/1.1"
    server_version = "joymigrate"
    sys_version = ""
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Answer with a page, its state, its changes, or a file."""
        if not self.server.knows(self.headers.get("Host")):
            self.refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
            return
        asked = urlsplit(self.path)
        lang = parse_qs(asked.query).get("lang", [self.server.lang])[0]
        lang = lang if lang in languages() else self.server.lang
        if asked.path == "/":
            with speaking(Language(lang)):
                shown = page(self.server.feed.seen)
            self.send(shown.encode(), "text/html; charset=utf-8")
        elif asked.path == "/state.json":
            self.send(json.dumps(self.state(lang, {})).encode(), "application/json")
        elif asked.path == "/events":
            self.stream(lang)
        elif asked.path == "/report":
            self.whole(lang)
        elif asked.path.startswith("/file/"):
            self.file(unquote(asked.path[len("/file/") :]))
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "nothing is here")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Nothing here writes."""
        self.close_connection = True  # what the body says was not read
        self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this page only shows", Allow="GET, HEAD")

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def whole(self, lang: str) -> None:
        """The journey's report as it is now."""
        text = self.server.report(lang)
        if text is None:
            self.refuse(HTTPStatus.NOT_FOUND, "no journey yet")
            return
        self.send(text.encode("utf-8", "backslashreplace"), "text/html; charset=utf-8")

    def file(self, path: str) -> None:
        """One evidence file."""
        project = self.server.feed.seen
        named = [file for row in project.rows for file in row.evidence]
        real = files.resolve_file(Path(project.root), path, named)
        handle = None if real is None else files.open_evidence(real)
        if real is None or handle is None:
            self.refuse(HTTPStatus.NOT_FOUND, "no such evidence")
            return
        with handle:
            size = handle.seek(0, 2)
            handle.seek(0)
            self.head(HTTPStatus.OK, files.kind(real), size, SANDBOX)
            if self.command != "HEAD":
                # The file may grow meanwhile; what was promised is sent.
                shutil.copyfileobj(BoundedReader(handle, size), self.wfile)

    def stream(self, lang: str) -> None:
        """Changes, as they come, until the browser or this server goes."""
        if not self.server.streams.acquire(blocking=False):
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many streams")
            return
        try:
            self.close_connection = True
            self.head(HTTPStatus.OK, "text/event-stream; charset=utf-8", None)
            if self.command != "HEAD":
                self.tell(lang)
        finally:
            self.server.streams.release()

    def tell(self, lang: str) -> None:
        """Write the state once, then what changes."""
        feed, known, version = self.server.feed, dict[str, str](), 0
        while not feed.closed:
            if feed.version == version:
                self.wfile.write(b": still here\n\n")
            else:
                state = self.state(lang, known)
                version, known = state["version"], {**known, **state["parts"]}
                line = json.dumps(state, ensure_ascii=False)
                self.wfile.write(f"id: {version}\ndata: {line}\n\n".encode())
            self.wfile.flush()
            feed.wait(version, QUIET_S)

    def state(self, lang: str, known: dict[str, str]) -> dict[str, Any]:
        """The parts that differ from those that are known."""
        version, parts = self.server.feed.parts(lang)
        return {
            "schema": "joymigrate.live/1",
            "version": version,
            "now": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "parts": {key: text for key, text in parts.items() if known.get(key) != text},
        }

    def send(self, body: bytes, kind: str) -> None:
        """A whole answer."""
        self.head(HTTPStatus.OK, kind, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: HTTPStatus, why: str, **headers: str) -> None:
        """An answer that says no, and why."""
        body = f"{why}\n".encode()
        self.head(status, "text/plain; charset=utf-8", len(body), **headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def head(
        self, status: HTTPStatus, kind: str, length: int | None, policy: str = FRAMES, **more: str
    ) -> None:
        """Status and headers."""
        self.send_response(status)
        headers = {**SAFE, "Content-Type": kind, "Content-Security-Policy": policy, **more}
        if length is None:
            headers["Connection"] = "close"
        else:
            headers["Content-Length"] = str(length)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not worth a line on the terminal."""


class BoundedReader:
    """The first `size` bytes of a file, for `copyfileobj`."""

    def __init__(self, file: Any, size: int) -> None:
        self.file, self.left = file, size

    def read(self, most: int = -1) -> bytes:
        """The next bytes."""
        data: bytes = self.file.read(min(self.left, most if most >= 0 else self.left))
        self.left -= len(data)
        return data


def serve(server: Live, ready: Callable[[str], None]) -> None:
    """Show the page until Ctrl-C or SIGTERM."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        server.feed.start()
        ready(server.url)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        server.feed.close()
        server.server_close()


def listening(
    host: str, port: int, feed: Feed, report: Callable[[str], str | None], lang: str
) -> Live:
    """The server, bound; an address that can't be had is one clear error."""
    try:
        return Live((host, port), feed, report, lang)
    except OSError as error:
        raise JoyError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            help="choose another --port; 0 takes a free one",
        ) from None
