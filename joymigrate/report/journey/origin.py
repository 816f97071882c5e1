"""Where a journey comes from: grade, chip, versions, commit, commands, hashes of the evidence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from joymigrate.report.html import page
from joymigrate.report.html.page import Html, Section, escape
from joymigrate.report.journey.evidence import PROVENANCE, Figure, JourneyFiles
from joymigrate.report.journey.sentences import REHEARSE
from joymigrate.report.journey_words import say

LEDGER = "../ledger.jsonl"
SHOWN = 16  # digits of a hash


def origin(evidence: JourneyFiles) -> Section:
    """All that is needed to judge the report, and to get it again."""
    rows = [(name, value) for name, value in facts(evidence) if value]
    body = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in rows)
    parts = [f'<dl class="facts">{body}</dl>', commands(evidence), hashes(evidence)]
    return Section("origin", say("origin"), Html("".join(parts)), None, say("menu_origin"))


def facts(evidence: JourneyFiles) -> Iterator[tuple[str, Html | None]]:
    """What is known, each with its evidence."""

    def known(file: str, pointer: str) -> Html | None:
        figure = evidence.figure(str, (file, pointer))
        return evidence.html(figure) if figure else None

    document = evidence.document
    yield say("how_known"), escape(say(f"grade_{document['grade']}"))
    yield say("the_chip"), known(PROVENANCE, "/chip/title") or escape(document["chip"])
    yield say("simulated_as"), known(REHEARSE, "/soc")
    yield say("date"), known(PROVENANCE, "/date")
    for name in evidence.at(PROVENANCE, "/versions") or ():
        shown = known(PROVENANCE, f"/versions/{name}")
        yield say("version_of", name=name), shown
    yield say("commit"), known(PROVENANCE, "/git/commit")
    yield say("changed_since"), known(PROVENANCE, "/git/changed_files")
    machine = [known(PROVENANCE, f"/machine/{key}") for key in ("processor", "system")]
    yield say("machine"), Html(" · ".join(one for one in machine if one))


def commands(evidence: JourneyFiles) -> Html:
    """How to get it again, and how to go back."""
    repeat = evidence.at(PROVENANCE, "/repeat")
    made = f"<h3>{escape(say('repeat_all'))}</h3><pre>{escape(repeat)}</pre>" if repeat else ""
    step = evidence.document.get("rewrite_step")
    if step:
        made += f"<h3>{escape(say('go_back'))}</h3><pre>joymigrate rollback {escape(step)}</pre>"
    return Html(made)


def hashes(evidence: JourneyFiles) -> Html:
    """Every file of evidence with its hash, and whether the ledger knows it so."""
    if evidence.folder is None:
        return Html("")
    ledger, recorded = recorded_hashes(evidence)
    rows: list[list[object]] = []
    for one in evidence.document["journey"]:
        for name in one["evidence"]:
            path = evidence.folder / name
            if not path.is_file():
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            place, noted = recorded.get(name, ("", ""))
            figure = Figure(noted, digest[:SHOWN] + "…", ledger if place else "", place)
            state = ("not_in_ledger" if not place else
                     "in_ledger" if noted == digest else "hash_changed")  # fmt: skip
            shown = evidence.html(figure) if noted == digest else escape(digest[:SHOWN] + "…")
            rows.append([evidence.file(name), Html(f"<code>{shown}</code>"), say(state)])
    if not rows:
        return Html("")
    table = page.table([say("evidence"), "SHA-256", ""], rows)
    return page.details(say("hashes"), table)


def recorded_hashes(evidence: JourneyFiles) -> tuple[str, dict[str, tuple[str, str]]]:
    """The ledger's file, and by evidence: (place in the ledger, hash). The latest entry counts."""
    if evidence.folder is None:
        return LEDGER, {}
    found: dict[str, tuple[str, str]] = {}
    prefix = f"{evidence.folder.parent.name}/{evidence.folder.name}/"
    for number, entry in enumerate(entries(evidence)):
        if not str(entry.get("kind", "")).startswith("migrate."):
            continue
        for index, output in enumerate(entry.get("outputs") or ()):
            _, _, name = str(output["path"]).rpartition(prefix)
            found[name] = (f"/{number}/outputs/{index}/sha256", str(output["sha256"]))
    return LEDGER, found


def entries(evidence: JourneyFiles) -> list[dict[str, Any]]:
    """The lines of the ledger that can be read."""
    if evidence.folder is None:
        return []
    try:
        lines = (evidence.folder / LEDGER).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError):
        return []
