"""Reading JSON, and giving a file new content in one step: the old file or the whole new one."""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError


def read_json(path: Path, *, help: str | None = None) -> Any:
    """What a JSON file holds. Raises JoyError where it can't be read, or is none."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path), help=help) from None
    except ValueError as error:
        raise JoyError(f"not JSON: {error}", where=str(path), help=help) from None


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object out of a text. Raises JoyError for anything else; `where` is its place."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise JoyError(f"not JSON: {error}", where=where) from None
    if not isinstance(found, dict):
        raise JoyError("not a JSON object", where=where)
    return found


def read_document(path: Path, schema: str, what: str, *, help: str) -> dict[str, Any]:
    """A JSON document of one schema. Raises JoyError for any other file: it is "not `what`"."""
    found = read_json(path, help=help)
    if not isinstance(found, dict) or found.get("schema") != schema:
        raise JoyError(f"not {what}", where=str(path), help=help)
    return found


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Give `path` new content. A link keeps being one, and permission bits stay as they are.

    `durable`: the content, then the name, are on the disk before this returns. Raises OSError.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # /dev/stdout, a pipe
        path.write_bytes(data)
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if target.exists():
            os.chmod(part, target.stat().st_mode & 0o777)
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(target.parent)


def write_output(path: Path, data: bytes) -> None:
    """Write what the user asked for with `-o`: whole or not at all.

    Raises JoyError where that can't be done.
    """
    if path.is_dir():
        raise JoyError("the output is a folder", where=str(path), help="name a file with -o")
    try:
        replace_file(path, data)
    except OSError as error:
        raise JoyError(
            f"cannot write: {error.strerror}", where=str(path), help="name another file with -o"
        ) from None


def write_stdout(data: bytes) -> None:
    """Write bytes to stdout, after what was printed before; a stdout of text gets UTF-8."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(data.decode("utf-8"))
    else:
        buffer.write(data)
    sys.stdout.flush()


def sync_folder(folder: Path) -> None:
    """Make names in `folder` durable. Folders cannot be flushed on Windows."""
    if sys.platform == "win32":
        return
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Flush what was written to `path`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
