"""Where a command's output goes: stdout or `-o FILE`, with colour only where it is wanted."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.files import write_output, write_stdout


def one_of(value: str, names: tuple[str, ...], option: str) -> str:
    """`value` when it is one of `names`; `JoyError` with the nearest name otherwise."""
    if value not in names:
        raise JoyError(
            f"{option} does not know '{value}'.{did_you_mean(value, names)}",
            help=f"one of {', '.join(names)}",
        )
    return value


def split(values: list[str]) -> list[str]:
    """`--select JM101,JM110 --select JM2` as one list."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def emit(text: str, output: Path | None = None) -> None:
    """Write a result to stdout, or to a file in one step. Always UTF-8.

    Names that are not valid UTF-8 leave as `\\udcXX`, which JSON reads back.
    """
    data = text.encode("utf-8", "backslashreplace")
    if output is not None and str(output) != "-":
        write_output(output, data)
        return
    write_stdout(data)


def fit(text: str, output: Path | None = None) -> str:
    """Break long lines of prose between words where they go to a terminal; code stays whole."""
    if (output is not None and str(output) != "-") or not sys.stdout.isatty():
        return text
    width = max(40, shutil.get_terminal_size().columns)
    return "".join(f"{part}\n" for line in text.splitlines() for part in break_line(line, width))


def break_line(line: str, width: int) -> list[str]:
    """A line in pieces of at most `width`; a longer word stays whole, and so does a change."""
    if len(line) <= width or line.lstrip().startswith(("- ", "+ ")):
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


HUSHED = [False]  # what --quiet says, for one command line


def hush(wish: bool) -> None:
    """Carry out `--quiet`: no more notes and no progress; `complain` and errors stay."""
    HUSHED[0] = wish


def talk(lines: Iterable[str]) -> None:
    """Notes for the user beside the result, on stderr; none after `--quiet`."""
    if not HUSHED[0]:
        complain(lines)


def complain(lines: Iterable[str]) -> None:
    """What explains an exit code above 0, on stderr, whatever `--quiet` says."""
    for line in lines:
        print(line.encode("utf-8", "backslashreplace").decode("utf-8"), file=sys.stderr)


class Progress:
    """One line on a terminal's stderr that says how far a command is; silent elsewhere."""

    def __init__(self, what: str, *, on: bool = True) -> None:
        self.what = what
        self.on = on and not HUSHED[0] and sys.stderr.isatty()
        self.next = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Show `done` of `total`, ten times a second at most."""
        now = time.monotonic()
        if self.on and now >= self.next:
            self.next = now + 0.1
            sys.stderr.write(f"\r\033[K{self.what} {done}/{total}")
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.on and self.next:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def user() -> str:
    """Who gives this order, as far as this machine knows."""
    from joymigrate.run.cluster.on_ray.connect import whoami

    return whoami()
