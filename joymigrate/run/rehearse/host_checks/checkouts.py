"""The user's checkouts of the vendor's operator sources: which there are, and of which version."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError

NEEDED = ("opbase", "metadef", "runtime", "ge", "ops-math", "ops-nn")
FURTHER = ("ops-transformer", "ops-cv")  # more operators; and headers that these ask for
HEADERS = ("asc-devkit",)
WHERE = "https://gitcode.com/cann (or a mirror of it), one branch for all, such as 9.0.0"
VERSION = re.compile(r"set_(?:cann_)?package\([^)]*VERSION\s+\"?([0-9][\w.-]*)")


@dataclass(frozen=True, slots=True)
class Checkouts:
    """A folder with one checkout per repository. `versions` maps each to what it says it is."""

    root: Path
    versions: dict[str, str]

    @property
    def operators(self) -> tuple[str, ...]:
        """The repositories that hold operators, in the order in which they are linked."""
        order = ("ops-math", "ops-nn", *FURTHER)
        return tuple(name for name in order if name in self.versions)

    @property
    def label(self) -> str:
        """What a report calls them: each operator repository with its version."""
        return ", ".join(f"{name} {self.versions[name]}" for name in self.operators)


def find_checkouts(folder: Path) -> Checkouts:
    """The checkouts below `folder`; `JoyError` that names what is missing."""
    root = folder.resolve()
    missing = [name for name in NEEDED if not (root / name).is_dir()]
    if missing:
        raise JoyError(
            f"host checks are built from checkouts, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing",
            where=str(root),
            help=f"clone {', '.join(missing)} there from {WHERE}; their licence allows use for "
            "software for the vendor's processors only",
        )
    present = [n for n in (*NEEDED, *FURTHER, *HEADERS) if (root / n).is_dir()]
    return Checkouts(root, {name: version_of(root / name) for name in present})


def version_of(checkout: Path) -> str:
    """The release a checkout declares, with its commit: `9.1.0 (e5c3fa932)`."""
    declared = ""
    for name in ("version.cmake", "cmake/version.cmake"):
        if (checkout / name).is_file():
            found = VERSION.search((checkout / name).read_text(encoding="utf-8", errors="replace"))
            declared = found[1] if found else ""
            break
    return " ".join(part for part in (declared, f"({commit_of(checkout)})") if part)


def commit_of(checkout: Path) -> str:
    """The short commit of a checkout; `unknown` where git can't say."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "--short=9", "HEAD"],
            capture_output=True, text=True, check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
