"""The server's log on stderr: lines for people, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

NAME = "joymigrate.serve"
FORMATS = ("text", "json")


class TextLines(logging.Formatter):
    """`2026-01-31 12:00:00 POST /v1/completions 200 model=m seconds=0.1`."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields: dict[str, Any] = getattr(record, "fields", {})
        shown = {k: v for k, v in fields.items() if k not in ("method", "path", "status")}
        more = "".join(
            f" {key}={plain(value)}" for key, value in shown.items() if value is not None
        )
        line = f"{stamp} {printable(record.getMessage())}{more}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One object per line: time, level, message, and the request's fields."""

    def format(self, record: logging.LogRecord) -> str:
        made: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            made["traceback"] = self.formatException(record.exc_info)
        return json.dumps(made, ensure_ascii=True, default=str)


def plain(value: Any) -> str:
    """A value for a line."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return ",".join(map(str, value)) if isinstance(value, list) else printable(str(value))


def printable(text: str) -> str:
    """A client's text cannot start a new line of the log."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


class Stderr(logging.Handler):
    """Writes to what stderr is now: somebody may have put another stream in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def open_log(form: str, *, quiet: bool = False, verbose: bool = False) -> logging.Logger:
    """The logger of this process's server."""
    log = logging.getLogger(NAME)
    log.handlers.clear()
    handler = Stderr()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    return log
