"""`report PATH`: a project's page, once as a file or live from a server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from joymigrate.cli._output import emit, talk, use_color
from joymigrate.errors import Exit, JoyError

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
    project = page.Project(path, losses)
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
    from joymigrate.ledger import Ledger

    folder = Ledger.of(path).home / "journey"
    found = document(folder / "journey.json")
    if found is None:
        raise JoyError(
            "no journey was made in this project",
            where=str(path),
            help="joymigrate migrate PROJECT makes one; joymigrate status lists the ledger's "
            "steps; joymigrate report --serve shows both live",
        )
    emit(rendered(found, folder, format, lang, output), output)
    return Exit.OK


def rendered(
    found: dict[str, object], folder: Path, format: str, lang: str, output: Path | None
) -> str:
    """A journey's document in a format; links of the page lead from where it will lie."""
    import os

    from joymigrate.report import journey_html, journey_text

    if format == "text":
        color = output is None and use_color("auto", sys.stdout)
        return journey_text.text(found, lang, color=color)
    if format == "md":
        return journey_text.markdown(found, lang)
    if format != "html":
        raise JoyError(f"a journey has no form '{format}'", help="--format html, md or text")
    place = (output.resolve().parent if output is not None else Path.cwd()).resolve()
    way = Path(os.path.relpath(folder, place)).as_posix()
    return journey_html.render(found, folder, lang, link="" if way == "." else f"{way}/")


def journey(path: Path, lang: str) -> str | None:
    """The journey's page with links into the live server; None while there is no journey."""
    from joymigrate.ledger import Ledger
    from joymigrate.report import journey_html

    folder = Ledger.of(path).home / "journey"
    found = document(folder / "journey.json")
    if found is None:
        return None
    return journey_html.render(found, folder, lang, link="/file/.joymigrate/journey/")


def document(path: Path) -> dict[str, object] | None:
    """A journey on disk."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and found.get("schema") == "joymigrate.journey/1"
    return dict(found) if known else None
