"""A journey with its evidence in one zip: the links of its page work wherever it is unpacked.

    index.html      the page; every link leads into the zip
    summary.html    one page for whoever decides
    journey/…       the evidence, as it lies in the project's `.joymigrate`
    contents.json   the sha256 of every file, and what was left out

Recorded tensors (`*.safetensors`, packed recordings) are data of the user and large: they stay out
unless the page links to them, and `contents.json` names them.
"""

from __future__ import annotations

import hashlib
import html
import io
import json
import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.report import journey_html, lead
from joymigrate.report.documents.show import show

FOLDER = "journey"
LINK = re.compile(r'href="([^"#:]+)(?:#[^"]*)?"')
DATA = (".safetensors", ".pt", ".pth", ".bin", ".npy", ".npz", ".jmb")
WHEN = (1980, 1, 1, 0, 0, 0)  # the same journey makes the same zip
SCHEMA = "joymigrate.archive/1"


def pack(document: Mapping[str, Any], folder: Path, output: Path) -> dict[str, Any]:
    """Write the zip; what it holds. Raises `JoyError` where a link of the page leads nowhere."""
    page = journey_html.render(document, folder, link=f"{FOLDER}/")
    wanted = set(links(page))
    files, left_out = evidence(folder, wanted, output)
    missing = sorted(wanted - {name for name, _ in files})
    if missing:
        raise JoyError(
            f"the page links to {len(missing)} files that are not there: {missing[0]}",
            where=str(folder),
            help="run `joymigrate migrate` again: it writes its evidence anew",
        )
    summary = show(lead.page(document, folder / "journey.json"), "html")
    members = [("index.html", page.encode()), ("summary.html", summary.encode())]
    members += [(name, path.read_bytes()) for name, path in files]
    contents = {
        "schema": SCHEMA,
        "files": [
            {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in members
        ],
        "left_out": [
            {"path": name, "bytes": path.stat().st_size, "reason": "recorded data of yours"}
            for name, path in left_out
        ],
    }
    members.append(("contents.json", (json.dumps(contents, indent=1) + "\n").encode()))
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name, WHEN), data, zipfile.ZIP_DEFLATED)
    replace_file(output, memory.getvalue())
    return contents


def links(page: str) -> Iterator[str]:
    """The files that a page links to, relative to it. `journey/..` is the page's own folder."""
    for match in LINK.finditer(page):
        yield posixpath.normpath(unquote(html.unescape(match[1])))


def evidence(
    folder: Path, wanted: set[str], output: Path
) -> tuple[list[tuple[str, Path]], list[tuple[str, Path]]]:
    """The files of a journey, (name in the zip, path): those that are packed, those left out."""
    packed: list[tuple[str, Path]] = []
    left_out: list[tuple[str, Path]] = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        name = f"{FOLDER}/{path.relative_to(folder).as_posix()}"
        if path.resolve() == output.resolve() or path.name == "lock":
            continue
        data = any(part.endswith(DATA) for part in path.relative_to(folder).parts)
        (left_out if data and name not in wanted else packed).append((name, path))
    names = {name for name, _ in packed}
    for name in sorted(wanted - names):
        path = folder.parent / name
        if not name.startswith("..") and path.is_file():
            packed.append((name, path))
    return packed, left_out
