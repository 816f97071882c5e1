"""A door over HTTP: every path of one address is answered by one function."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from joymigrate.errors import JoyError

Answer = tuple[int, str, str]  # status, type of content, text
JSON = "application/json"


def open_door(host: str, port: int, answer: Callable[[str, bytes], Answer]) -> ThreadingHTTPServer:
    """A server that answers (path, body) in threads of its own; its caller shuts it down."""

    class DoorHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, kind, text = answer(self.path.split("?")[0], body)
            data = text.encode("utf-8", "backslashreplace")
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Who asks again and again is not worth a line each time."""

    try:
        server = ThreadingHTTPServer((host, port), DoorHandler)
    except OSError as error:
        raise JoyError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
