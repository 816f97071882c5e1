"""Our paragraph in a repository's AGENTS.md, between two marks, so that it can be renewed."""

from __future__ import annotations

from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.files import replace_file

FILE = "AGENTS.md"
BEGIN, END = "<!-- joymigrate: begin -->", "<!-- joymigrate: end -->"
TEXT = """\
## Moving this project to another accelerator

Use joymigrate: `joymigrate next` says where the migration stands and the one next step, with the
command that judges it. `joymigrate explain NAME` answers for an API, an operator, a package or an
error code. Success is the state `passed` of `next`, never a run alone; say its grade (rehearsed is
a simulated chip) and what it covers. Don't delete, catch or skip what fails, don't move it to the
CPU, don't change tests, seeds, limits or `.joymigrate/`. After three tries at the same stop ask a
person. `joymigrate report --pull-request` writes the page for the reviewer.
"""


def write(path: Path) -> bool:
    """Write or renew the paragraph; every byte outside of it stays. False: nothing to do."""
    before = read(path)
    block = f"{BEGIN}\n{TEXT}{END}"
    if (BEGIN in before) != (END in before) or before.count(BEGIN) > 1 or before.count(END) > 1:
        raise JoyError(
            "the marks of our paragraph don't make a pair",
            where=str(path),
            help=f"remove the lines {BEGIN} and {END}, then run this again",
        )
    if BEGIN in before:
        head, _, rest = before.partition(BEGIN)
        after = head + block + rest.partition(END)[2]
    else:
        gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
        after = f"{before}{gap}{block}\n"
    if after == before:
        return False
    replace_file(path, after.encode("utf-8"))
    return True


def read(path: Path) -> str:
    """The file; empty where there is none."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise JoyError("not a regular file", where=str(path), help="write into the file itself")
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise JoyError("it is no UTF-8 text", where=f"{path} byte {error.start}") from None
