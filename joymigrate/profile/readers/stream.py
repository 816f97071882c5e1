"""Objects of a large JSON file one by one, in constant memory.

The standard library's decoder is asked for one object at a time over a window of text, which is as
fast as reading the file whole and needs a few megabytes. It accepts what real traces contain: NaN,
control characters, a list or an object at the top, a file that was cut short, single broken
objects, gzip.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from json.scanner import make_scanner
from pathlib import Path
from typing import IO, Any

from joymigrate.errors import JoyError

WINDOW = 1 << 20  # bytes read at a time
LARGEST = 64 << 20  # characters that one value may have
SPACE = re.compile(r"[ \t\r\n,]*")
NEXT = re.compile(r"[,\[]\s*(?=\{)")
PACKED = 1 << 18  # packed bytes read at a time
GZIP = b"\x1f\x8b"


class Unpacked(io.RawIOBase):
    """The bytes of a gzip file. One that was cut short ends where it was cut, and says so."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.unpacked = gzip.GzipFile(fileobj=file)
        self.cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as one piece goes; 0 at the end."""
        try:
            piece = self.unpacked.read1(len(buffer))
        except (EOFError, OSError, zlib.error):
            self.cut = True
            return 0
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close the file below as well."""
        self.file.close()
        super().close()


def open_bytes(path: Path) -> io.BufferedReader[Any]:
    """The file's bytes, unpacked where it is gzip (whatever it is called)."""
    try:
        file = io.BufferedReader(io.FileIO(path), PACKED)
        if file.peek(2)[:2] == GZIP:
            return io.BufferedReader(Unpacked(file), WINDOW)
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path)) from None
    return file


def was_cut(file: io.BufferedReader[Any]) -> bool:
    """Whether a gzip file ended before its end."""
    return isinstance(file.raw, Unpacked) and file.raw.cut


def head(path: Path, size: int = 65536) -> bytes:
    """The first bytes, unpacked."""
    with open_bytes(path) as file:
        found = file.read(size)
        if not found and was_cut(file):
            raise JoyError("not readable as gzip", where=str(path))
        return found


class TextWindow:
    """The text around the place that is being decoded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = open_bytes(path)
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self.text = ""
        self.at = 0
        self.ended = False
        self.cut = False  # the file ends in the middle of something
        self.skipped = 0  # objects that could not be decoded
        decoder = json.JSONDecoder(strict=False)
        self.decode, self.scan = decoder.raw_decode, make_scanner(decoder)  # type: ignore[arg-type]

    def __enter__(self) -> TextWindow:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        if self.ended:
            return False
        data = self.file.read(WINDOW)
        self.ended = not data
        self.cut |= self.ended and was_cut(self.file)
        self.text = self.text[self.at :] + self.decoder.decode(data, final=not data)
        self.at = 0
        return bool(data)

    def peek(self) -> str:
        """The next character that is no space or comma; empty at the end."""
        while True:
            self.at = SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def value(self) -> Any:
        """The value that begins here. Raises `EOFError` where the file ends inside it."""
        while True:
            self.peek()
            try:
                found, end = self.decode(self.text, self.at)
            except ValueError as error:
                if not cut_short(error, len(self.text)) or len(self.text) > LARGEST:
                    raise
                if not self.more():
                    raise EOFError from None
                continue
            # A number at the window's end may go on behind it.
            if end == len(self.text) and not self.ended and not isinstance(found, (dict, list)):
                self.more()
                continue
            self.at = end
            return found

    def objects(self) -> Iterator[dict[str, Any]]:
        """The objects of the list that begins here."""
        self.at += 1
        while (letter := self.peek()) not in ("", "]"):
            if letter != "{":
                self.skip()
                continue
            yield from self.plain()
            if self.peek() != "{":
                continue
            try:
                yield self.value()  # one that the window cuts, or a broken one
            except EOFError:
                break
            except ValueError:
                self.skip()
        self.cut |= letter != "]"
        self.at += 1

    def plain(self) -> Iterator[dict[str, Any]]:
        """The objects that lie whole in the window, one behind the other."""
        text, at, scan, space = self.text, self.at, self.scan, SPACE.match
        while text.startswith("{", at):
            try:
                found, end = scan(text, at)
            except (ValueError, StopIteration):
                break
            at = space(text, end).end()  # type: ignore[union-attr]
            self.at = at
            yield found

    def skip(self) -> None:
        """Go on at the next object after one that can't be decoded."""
        self.skipped += 1
        while True:
            found = NEXT.search(self.text, self.at + 1)
            if found:
                self.at = found.end()
                return
            self.at = len(self.text)
            if not self.more():
                return

    def members(self) -> Iterator[str]:
        """Keys of the object that begins here. The caller takes each value before going on."""
        self.at += 1
        while (letter := self.peek()) not in ("", "}"):
            if letter != '"':
                raise ValueError(f"no key at {self.text[self.at : self.at + 20]!r}")
            key = self.value()
            if self.peek() != ":":
                raise ValueError(f"no value for {key!r}")
            self.at += 1
            yield key
        self.cut |= letter == ""
        self.at += 1


def cut_short(error: ValueError, length: int) -> bool:
    """Whether a decoding error may come from the end of the window."""
    unended = str(error).startswith("Unterminated string")
    return unended or getattr(error, "pos", 0) >= length - 64
