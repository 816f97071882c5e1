"""Runs the commands of a documentation page as a reader would, and compares what they print.

A page is one session: its `console` blocks run in order in one shell, which starts in an empty
folder; a block that follows a line with a file's name alone (`` `train.py`: ``) is that file.

    $ command            a command; a line that ends with a backslash goes on
    output               what it prints (both streams), line for line
    … and 3 more         `…` inside a line stands for anything
    …                    a line of its own stands for any number of lines

A command may only fail where the page goes on with `$ echo $?`. Comments before a block:
`<!-- figures vary -->` compares numbers only as being numbers. The page says at its top
`<!-- tested -->` or `<!-- tested: slow -->`.

`python -m tests.pages PAGE...` runs pages and writes what the commands print into them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?(?:^`(?P<file>[^`\n]+)`:\n\n)?"
    r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
END = "\x1e"
SECONDS = 900
# The reader installs into an environment of their own; a test into a folder of its own.
SHELL = """\
exec 2>&1
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
joy_end() {{ local code=$?; printf '\\n{end}%d\\n' "$code"; return "$code"; }}
pip() {{
  [ "$1" = install ] || {{ python -m pip "$@"; return; }}
  shift
  python -m pip install -q --no-deps --no-build-isolation --no-index --target "$SITE" "$@"
}}
"""


@dataclass(slots=True)
class Command:
    """One command of a page, what the page says it prints, and what it printed."""

    line: str
    expected: list[str]
    vary: bool
    span: tuple[int, int]  # of the expected lines in the page's text
    printed: list[str] = field(default_factory=list)
    code: int | None = None


@dataclass(frozen=True, slots=True)
class File:
    """A file that the page shows."""

    path: str
    text: str


def read(text: str) -> list[Command | File]:
    """The files and commands of a page, in order."""
    found: list[Command | File] = []
    for block in BLOCK.finditer(text):
        if block["file"]:
            found.append(File(block["file"], block["text"]))
        elif block["kind"] == "console":
            found += commands(
                block["text"], block.start("text"), "figures vary" in (block["note"] or "")
            )
    return found


def commands(text: str, start: int, vary: bool) -> list[Command]:
    """The commands of one block."""
    found: list[Command] = []
    at, going_on = start, False
    for line in text.splitlines(keepends=True):
        words = line.rstrip("\n")
        if going_on:
            found[-1].line += "\n" + words
            found[-1].span = (at + len(line), at + len(line))
        elif words.startswith("$ "):
            found.append(Command(words[2:], [], vary, (at + len(line), at + len(line))))
        elif found:
            found[-1].expected.append(words)
            found[-1].span = (found[-1].span[0], at + len(line))
        going_on = words.endswith("\\") and (going_on or words.startswith("$ "))
        at += len(line)
    return found


def run(parts: list[Command | File], folder: Path) -> None:
    """Run a page's commands in `folder`; fills in what they print."""
    site = folder / ".site"
    script = [SHELL.format(end=END)]
    work = folder / "work"
    work.mkdir(parents=True)
    for number, part in enumerate(parts):
        if isinstance(part, File):
            kept = folder / f"file-{number}"
            kept.write_text(part.text, encoding="utf-8")
            script.append(f'mkdir -p "$(dirname {part.path})" && cp {kept} {part.path}\n')
            continue
        script.append(f"{part.line}\njoy_end\n")
    beside = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", "".join(script)],
        cwd=work,
        env=environment()
        | {
            "SITE": str(site),
            "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
            "CLONE": str(ROOT),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    pieces = re.split(rf"\n?{END}(\d+)\n", done.stdout)
    for part, printed, code in zip(
        [p for p in parts if isinstance(p, Command)], pieces[::2], pieces[1::2], strict=False
    ):
        part.printed = (
            [line.rstrip() for line in printed.rstrip("\n").split("\n")] if printed else []
        )
        part.code = int(code)


def environment() -> dict[str, str]:
    """A reader's environment: none of the settings that tests or developers have."""
    dropped = ("JOYMIGRATE_", "TORCH_", "PYTHON", "PYTEST_", "NO_COLOR", "FORCE_COLOR")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped)}


def differences(parts: list[Command | File]) -> list[str]:
    """What came out otherwise than the page says."""
    found = []
    ran = [part for part in parts if isinstance(part, Command)]
    for number, part in enumerate(ran):
        follows = ran[number + 1].line if number + 1 < len(ran) else ""
        if part.code is None:
            found.append(f"$ {part.line}\nwas not reached")
        elif part.code != 0 and follows != "echo $?":
            found.append(f"$ {part.line}\nexit code {part.code}:\n" + "\n".join(part.printed))
        elif not matches(part.expected, part.printed, vary=part.vary):
            shown = "\n".join(["the page:", *part.expected, "printed:", *part.printed])
            found.append(f"$ {part.line}\n{shown}")
    return found


def matches(expected: list[str], printed: list[str], *, vary: bool = False) -> bool:
    """Whether the printed lines are those that the page shows."""
    if not expected:
        return not any(line.strip() for line in printed) or not printed
    if expected[0] == "…":
        return (
            any(
                matches(expected[1:], printed[skip:], vary=vary) for skip in range(len(printed) + 1)
            )
            if expected[1:]
            else True
        )
    if not printed:
        return False
    return line_matches(expected[0], printed[0], vary) and (
        matches(expected[1:], printed[1:], vary=vary)
        if expected[1:]
        else not any(line.strip() for line in printed[1:])
    )


def line_matches(expected: str, printed: str, vary: bool) -> bool:
    """Whether a printed line is the one shown."""
    if vary:
        expected, printed = (
            " ".join(NUMBER.sub("#", line).split()) for line in (expected, printed)
        )
    pattern = ".*".join(re.escape(piece) for piece in expected.rstrip().split("…"))
    return re.fullmatch(pattern, printed.rstrip()) is not None


def refreshed(text: str, parts: list[Command | File]) -> str:
    """The page with what the commands print, where it shows something else."""
    for part in reversed([p for p in parts if isinstance(p, Command)]):
        if part.code is not None and not matches(part.expected, part.printed, vary=part.vary):
            shown = "".join(f"{line}\n" for line in part.printed)
            text = text[: part.span[0]] + shown + text[part.span[1] :]
    return text


def refresh(page: Path) -> None:
    """Run a page and write what the commands print into it; nothing where a command failed."""
    text = page.read_text(encoding="utf-8")
    parts = read(text)
    with tempfile.TemporaryDirectory() as scratch:
        run(parts, Path(scratch))
    found = differences(parts)
    print("\n\n".join(found) or f"{page}: as it says")
    if not any("\nexit code" in one or "\nwas not reached" in one for one in found):
        page.write_text(refreshed(text, parts), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        refresh(Path(name))
