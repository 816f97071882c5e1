"""A written rehearsal (`joymigrate.rehearsal/1`) as annotations, Markdown or text, for CI.

`rehearse` itself writes text, JSON and HTML; from its JSON these are made afterwards, so that a
job that failed still says why on the lines of a pull request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.report import renderers
from joymigrate.report.blocks import BlockDocument, Chapter, Code, Listing, TableBlock
from joymigrate.report.github import annotate

SCHEMA = "joymigrate.rehearsal/1"
FORMATS = ("github", "md", "text")
# What can end a job: the lists of the document.
SINGULAR = {
    "fallbacks": "fallback",
    "traps": "trap",
    "documented": "documented",
    "unsimulated": "unsimulated",
    "races": "race",
    "unread": "unread",
}
REFUSALS = ("documented",)  # what `refusals` means
GROUNDS = (*SINGULAR, "refusals")


@dataclass(frozen=True, slots=True)
class RehearsalNote:
    """One thing that a rehearsal found; `place` is `file:line`, empty where nobody can say."""

    ground: str
    title: str
    message: str
    place: str = ""


def render(document: Mapping[str, Any], form: str, folder: Path) -> str:
    """The document in a format; places are shown relative to `folder`."""
    notes = [*collect_notes(document, folder)]
    if form != "github":
        return renderers.render(describe(document, notes), form)
    lines = []
    for note in notes:
        file, _, line = note.place.rpartition(":")
        place = {"file": file, "line": line} if file else {}
        text = note.message or note.title
        lines.append(annotate("warning", text, **place, title=note.title))
    return "\n".join([*lines, closing(document, notes)]) + "\n"


def grounds(words: Sequence[str]) -> tuple[str, ...]:
    """What `--fail-on` names; an unknown word raises `JoyError`."""
    for word in words:
        if word not in GROUNDS:
            raise JoyError(
                f"--fail-on knows no '{word}'.{did_you_mean(word, GROUNDS)}",
                help=f"one or several of {', '.join(GROUNDS)}",
            )
    return tuple(one for word in words for one in (REFUSALS if word == "refusals" else (word,)))


def fails(document: Mapping[str, Any], on: Sequence[str], folder: Path) -> bool:
    """Whether the rehearsal found something of the kinds named. Traps count in the user's files."""
    return any(note.ground in on for note in collect_notes(document, folder))


def collect_notes(document: Mapping[str, Any], folder: Path) -> Iterator[RehearsalNote]:
    """Everything that a rehearsal found, the places below `folder` relative to it."""
    for item in document.get("traps") or ():
        place = inside(str(item.get("where") or ""), folder)
        if place is not None:  # a trap in a library is the library's
            yield RehearsalNote("traps", str(item["message"]), str(item.get("remedy") or ""), place)
    for item in document.get("fallbacks") or ():
        places = [p for p in (inside(str(w), folder) for w in item.get("where") or ()) if p]
        calls = f"{item['calls']} call" + ("" if item["calls"] == 1 else "s")
        title = f"{item['op']} runs on the CPU"
        yield RehearsalNote(
            "fallbacks", title, f"the chip has no kernel for it; {calls}", next(iter(places), "")
        )
    for item in document.get("unsimulated") or ():
        yield RehearsalNote(
            "unsimulated", f"{item['op']} has no reference here", "it could not be rehearsed"
        )
    for item in document.get("races") or ():
        place = inside(str(item.get("where") or ""), folder)
        words = f"the earlier one: {item['first_where']}; {item['remedy']}"
        yield RehearsalNote("races", str(item["message"]), words, place or "")
    for item in document.get("only_seen_while_running") or ():
        place = inside(str(item["line"]), folder)
        title = f"{item['what']} was given the origin's word, and was translated there"
        calls = f"only seen while running; {item['calls']} call{'s' * (item['calls'] != 1)}"
        yield RehearsalNote("unread", title, calls, place or "")
    for item in document.get("refusals") or document.get("documented") or ():
        said = item.get("message") or f"{item['kernel']} takes no {item['dtype']}"
        place = inside(str(item.get("where") or ""), folder)
        words = f"{item['op']}: {said}"
        yield RehearsalNote(
            item.get("grade", "documented"), "the chip would refuse this", words, place or ""
        )


def inside(where: str, folder: Path) -> str | None:
    """`file:line` relative to the folder; None for a file outside, empty where it is no place."""
    file, _, line = where.rpartition(":")
    if not file or not line.isdigit():
        return ""
    path = Path(file)
    path = path if path.is_absolute() else folder / path
    if "site-packages" in path.parts or not path.resolve().is_relative_to(folder.resolve()):
        return None
    return f"{path.resolve().relative_to(folder.resolve()).as_posix()}:{line}"


def describe(document: Mapping[str, Any], notes: Sequence[RehearsalNote]) -> BlockDocument:
    """What was found, for a job's page or its log."""
    rows = [(SINGULAR[one.ground], Code(one.place), one.title, one.message) for one in notes]
    peaks = [
        f"peak memory of {device}: {peak / 2**20:.1f} MiB"
        for device, peak in (document.get("peak_memory_bytes") or {}).items()
    ]
    table = TableBlock(("", "where", "what", "remedy"), rows)
    chapters = [Chapter("found", "Found", [table])] if rows else []
    chapters += [Chapter("memory", "Memory", [Listing(peaks)])] if peaks else []
    return BlockDocument(
        headline(document), "No chip took part.", chapters, closing=[closing(document, notes)]
    )


def headline(document: Mapping[str, Any]) -> str:
    """Which chip was simulated, by which package."""
    package = ", ".join(f"{name} {v}" for name, v in (document.get("package") or {}).items())
    return f"Rehearsal on a simulated {document.get('soc')} with {package}"


def closing(document: Mapping[str, Any], notes: Sequence[RehearsalNote]) -> str:
    """How the program ended, and what was found."""
    counts = [
        f"{number} {ground if number > 1 else SINGULAR[ground]}"
        for ground in SINGULAR
        if (number := sum(note.ground == ground for note in notes))
    ]
    found_words = ", ".join(counts) or "nothing to report"
    return f"The program ended with exit code {document.get('exit_code')}; {found_words}."
