"""What is installed in a Python environment, as a lock file of pinned requirements."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from packaging.utils import canonicalize_name

from joymigrate.errors import JoyError

# Runs in the environment that is asked, with nothing but its standard library.
QUESTION = """
import json, platform, sys
from importlib import metadata
found = []
for one in metadata.distributions():
    name = one.metadata["Name"]
    if name:
        direct = one.read_text("direct_url.json")
        found.append([name, one.version, json.loads(direct) if direct else None])
print(json.dumps({"python": platform.python_version(), "machine": platform.machine(),
                  "system": platform.system(), "found": found}))
"""
TOOLS = {"pip", "setuptools", "wheel"}
HEAD = "# joymigrate.lock/1: what was installed when this was written"


def lock_installed(program: str) -> str:
    """The text of a `joymigrate.lock`. Packages that lie in a folder (the project itself, in most
    cases) are comments: an image copies them."""
    found = query_python(program)
    lines = {}
    for name, version, direct in found["found"]:
        name = canonicalize_name(name)
        if name not in TOOLS:
            lines[name] = line(name, version, direct or {})
    head = [HEAD, f"# python {found['python']} {found['system']} {found['machine']}"]
    return "\n".join([*head, *(lines[name] for name in sorted(lines))]) + "\n"


def query_python(program: str) -> dict[str, Any]:
    """What a Python says about itself."""
    try:
        done = subprocess.run([program, "-I", "-c", QUESTION], capture_output=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
    except OSError as error:
        raise JoyError(f"cannot start: {error.strerror}", where=program) from None
    except ValueError:
        raise JoyError(
            "this Python did not say what it has",
            where=program,
            help=(done.stderr.strip().splitlines() or ["name another --python"])[-1],
        ) from None
    return found


def line(name: str, version: str, direct: dict[str, Any]) -> str:
    """One package."""
    url = str(direct.get("url", ""))
    if "dir_info" in direct:
        return f"# {name}=={version} lies in a folder"
    if vcs := direct.get("vcs_info"):
        return f"{name} @ {vcs['vcs']}+{url}@{vcs.get('commit_id', '')}"
    return f"{name} @ {url}" if url.startswith("http") else f"{name}=={version}"
