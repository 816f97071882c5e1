"""`report PATH`: a project's page, once as a file or live from a server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.cli._answers import Answer
from joymigrate.cli._color import use_color
from joymigrate.cli._output import emit, one_of, talk
from joymigrate.errors import Exit, JoyError
from joymigrate.language import Language, speaking
from joymigrate.report.renderers import FORMATS

LOCAL = ("127.0.0.1", "localhost", "::1")


def live(path: Path, host: str, port: int, lang: str) -> int:
    """Serve the page of the project at `path` until Ctrl-C."""
    from joymigrate.journey.losses import losses
    from joymigrate.report import live as page
    from joymigrate.report.live.server import listening

    if not path.is_dir():
        raise JoyError(
            "a live page shows a project's folder", where=str(path), help="report --serve FOLDER"
        )
    project = page.LiveProject(path, losses)
    server = listening(
        host, port, page.Feed(project.look), lambda shown: journey(path, shown), lang
    )

    def ready(url: str) -> None:
        talk([f"{project.ledger.root} on {url} (Ctrl-C ends it)"])
        if host not in LOCAL:
            talk(["warning: whoever reaches this address can read the project's evidence"])

    page.serve(server, ready)
    return Exit.OK


def still(path: Path, format: str, lang: str, output: Path | None) -> int:
    """The journey of the project at `path`, as a page or as text."""
    one_of(format, FORMATS, "--format of a journey")
    found, folder = journey_of(path)
    with speaking(Language(lang)):
        emit(answer_of(found, folder, output).draw(format), output)
    return Exit.OK


def pack(path: Path, output: Path, lang: str) -> int:
    """The journey at `path` with its evidence, in one zip."""
    from joymigrate.report import archive

    found, folder = journey_of(path)
    with speaking(Language(lang)):
        contents = archive.pack(found, folder, output)
    left = contents["left_out"]
    size = f"{output.stat().st_size / 1e6:.1f} MB"
    lines = [f"wrote {output}: {len(contents['files'])} files, {size}; open index.html"]
    if left:
        lines.append(f"left out {len(left)} files with recorded data; contents.json names them")
    talk(lines)
    return Exit.OK


def summary(path: Path, format: str, lang: str, output: Path | None) -> int:
    """The journey at `path` on one page."""
    from joymigrate.report import documents, lead

    one_of(format, FORMATS, "--format of a summary")
    found, folder = journey_of(path)
    with speaking(Language(lang)):
        emit(documents.show(lead.page(found, folder / "journey.json"), format), output)
    return Exit.OK


def pull_request(path: Path, lang: str, output: Path | None) -> int:
    """The page for the reviewer of the migration at `path`."""
    from joymigrate.ledger import Ledger
    from joymigrate.report import pull_request as page

    if not path.is_dir():
        raise JoyError("--pull-request is about a project", where=str(path), help="name its folder")
    ledger = Ledger.of(path)
    emit(page.write(ledger, document(ledger.home / "journey" / "journey.json") or {}, lang), output)
    return Exit.OK


def journey_of(path: Path) -> tuple[dict[str, object], Path]:
    """The journey of a project, or of its `journey.json`, and its folder."""
    from joymigrate.ledger import Ledger

    folder = Ledger.of(path).home / "journey" if path.is_dir() else path.resolve().parent
    found = document(folder / "journey.json" if path.is_dir() else path)
    if found is None:
        raise JoyError(
            "no journey was made in this project",
            where=str(path),
            help="joymigrate migrate PROJECT makes one; joymigrate status lists the ledger's "
            "steps; joymigrate report --serve shows both live",
        )
    return found, folder


def answer_of(found: Mapping[str, Any], folder: Path, output: Path | None = None) -> Answer:
    """A journey in every format; `folder` holds its evidence, and links of the page lead there from
    where `output` will lie."""
    from joymigrate.report import journey_html, journey_text

    place = (output.parent if output is not None else Path.cwd()).resolve()
    way = Path(os.path.relpath(folder, place)).as_posix()
    link = "" if way == "." else f"{way}/"
    color = output is None and use_color(sys.stdout)
    own = {
        "text": lambda: journey_text.text(found, color=color),
        "md": lambda: journey_text.markdown(found),
        "junit": lambda: journey_text.junit(found),
        "html": lambda: journey_html.render(found, folder, link=link),
    }
    return Answer(found, "", own=own)


def journey(path: Path, lang: str) -> str | None:
    """The journey's page with links into the live server; None while there is no journey."""
    from joymigrate.ledger import Ledger
    from joymigrate.report import journey_html

    folder = Ledger.of(path).home / "journey"
    found = document(folder / "journey.json")
    if found is None:
        return None
    with speaking(Language(lang)):
        return journey_html.render(found, folder, link="/file/.joymigrate/journey/")


def document(path: Path) -> dict[str, object] | None:
    """A journey on disk."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and found.get("schema") == "joymigrate.journey/1"
    return dict(found) if known else None
