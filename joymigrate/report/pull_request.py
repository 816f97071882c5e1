"""One Markdown page for the reviewer of a migration: what changed and why, what was run where, what
was not looked at. Rules' edits, agents' patches and people's own edits alike."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joymigrate import chips
from joymigrate.chips import Chip
from joymigrate.language import Language, bracket
from joymigrate.ledger import Ledger, Step
from joymigrate.ledger.ledger import StepState
from joymigrate.report.renderers.md import escape
from joymigrate.rewrite.rules import load

MOST = 12  # rows of one table
RAN = ("baseline", "rehearse", "coverage", "verify", "train", "serve")
PLACES = {
    "baseline": "this machine's processor",
    "rehearsed": "the simulated chip: the vendor's package, no hardware",
    "measured": "the chip",
}
TITLE = "Move {project} from {origin} to {chip}"
NOTHING = "Nothing was changed."
NOT_RUN = "Nothing was run: no journey was made in this project."
MADE = "written as a whole"
EDITED = "edited by hand behind the last step"
BACK = "Way back: `joymigrate rollback {step}`."
AGAIN = "Run it again: `{command}`"
REST = "{count} more"
NO_CHIP = "Nothing was measured on the chip itself."
BY_HAND = "{place}: {rule}, left to people: {message}"
UNREACHED = "{place}: rewritten, and no run reached it"
UNCOMPARED = "{count} × {what}: {reason}"
LACKING = "{name} did not decide: {said}"


def write(ledger: Ledger, journey: Mapping[str, Any], lang: str = "en") -> str:
    """The page of a project; `journey` is its document, empty where none was made."""
    say = Language(lang, journey.get("texts"))
    states = [one for one in ledger.states() if one.writes and not one.rolled_back_by]
    made = [one for one in states if not one.step.undoes]
    chip = chips.get(journey["chip"]) if journey else chip_of(made)
    project = ledger.root.name
    lines = [
        f"# {say(TITLE, project=escape(project), origin=chips.origin().title, chip=chip.title)}",
        "",
        f"## {say('What changed and why')}",
        "",
        *list_changes(ledger, made, chip, say),
        "",
        f"## {say('What was run where')}",
        "",
        *list_runs(journey, say),
        "",
        f"## {say('What was not looked at')}",
        "",
        *(f"- {one}" for one in list_gaps(journey, say)),
    ]
    if made:
        lines += ["", say(BACK, step=made[0].step.id)]
    return "\n".join(lines) + "\n"


def chip_of(made: Sequence[StepState]) -> Chip:
    """The chip that the latest change is for."""
    named = [one.step.chip for one in made if one.step.chip]
    return chips.target(named[-1] if named else None)


def list_changes(
    ledger: Ledger, made: Sequence[StepState], chip: Chip, say: Language
) -> Iterator[str]:
    """A row for each rule that wrote something, each patch from outside, each later edit."""
    rows = []
    for state in made:
        if "author" in state.step.details:
            rows.append(patch_row(state.step, say))
            continue
        rows += rule_rows(ledger, state.step, chip, say)
    edited = list(dict.fromkeys(path for state in made for path in state.edited))
    rows += [[f"`{path}`", say(EDITED), ""] for path in edited]
    yield from table([say("where"), say("what"), say("why")], rows, say) or [say(NOTHING)]


def rule_rows(ledger: Ledger, step: Step, chip: Chip, say: Language) -> list[list[str]]:
    """What one rewrite did, a row for each rule."""
    try:
        raw = (ledger.folder(step.id) / "edits.json").read_bytes()
        edits = json.loads(raw)["edits"]
    except (OSError, ValueError, KeyError):
        return [[", ".join(f"`{one.path}`" for one in step.outputs), step.kind, ""]]
    rules = load(chip, chips.origin())
    rows = []
    for rule, count in Counter(one["rule"] for one in edits).most_common():
        mine = [one for one in edits if one["rule"] == rule]
        first = next((one for one in mine if one["before"]), mine[0])
        files = list(dict.fromkeys(one["path"] for one in mine))
        known = rules.get(rule)
        where = ", ".join(f"`{path}`" for path in files[:3]) + (" …" if files[3:] else "")
        what = f"{count} × {code(first['before'])} → {code(first['after'])}"
        title = f"{rule}: {say(known.title)}" if known else rule
        rows.append([where, what, title])
    named = {one["path"] for one in edits}
    made = [one.path for one in step.outputs if one.path not in named]
    return rows + [[f"`{path}`", say(MADE), ""] for path in made]


def patch_row(step: Step, say: Language) -> list[str]:
    """A patch from outside, with what judged it."""
    details = step.details
    files = ", ".join(f"`{one.path}`" for one in step.outputs)
    judges = ", ".join(say(str(one)) for one in details.get("judges", ()))
    author = escape(str(details.get("author", "")))
    return [files, f"{escape(str(details.get('item', '')))}{bracket(author, say)}", judges]


def list_runs(journey: Mapping[str, Any], say: Language) -> Iterator[str]:
    """A row for each step that ran, with the place, and how to run it again."""
    if not journey:
        yield say(NOT_RUN)
        return
    rows = []
    for one in journey["journey"]:
        if one["name"] not in RAN or one["status"] in ("skipped", "pending"):
            continue
        place = PLACES["baseline" if one["name"] == "baseline" else journey["grade"]]
        if one["name"] == "coverage":
            place = say("lists of operators")
        mark = one["verdict"] or one["status"]
        rows.append([one["name"], say(place), mark, escape(say(one["summary"]))])
    head = [say("step"), say("where"), say("verdict"), say("found")]
    yield from table(head, rows, say)
    yield ""
    yield say(AGAIN, command=repeat_command(journey))


def repeat_command(journey: Mapping[str, Any]) -> str:
    """The command line that takes this journey again."""
    words = ["joymigrate", "migrate", "."]
    words += ["--entry", shlex.join(journey["entry"])] if journey["entry"] else []
    words += ["--to", journey["chip"]] + (["--unsafe"] if journey["unsafe"] else [])
    words += ["--style", journey["style"]] if journey["style"] != "agnostic" else []
    words += ["--baseline", journey["baseline"]] if journey["baseline"] else []
    base = journey["baseline_entry"]
    return shlex.join(words + (["--baseline-entry", shlex.join(base)] if base else []))


def list_gaps(journey: Mapping[str, Any], say: Language) -> Iterator[str]:
    """What no run and no comparison looked at."""
    if not journey or journey["grade"] != "measured":
        yield say(NO_CHIP)
    for one in journey.get("journey", ()):
        figures, name = one["figures"], one["name"]
        if name == "rewrite":
            yield from shorten([say(BY_HAND, place=f"`{site['path']}:{site['line']}`",
                                    rule=site["rule"], message=say(site["message"]))
                                for site in figures.get("sites") or ()], say)  # fmt: skip
        if name == "rehearse":
            yield from shorten(
                [say(UNREACHED, place=f"`{place}`") for place in figures.get("not_run") or ()], say
            )
        if name == "verify":
            yield from shorten([say(UNCOMPARED, count=row["count"], what=say(row["what"]),
                                    reason=say(row["reason"]))
                                for row in figures.get("uncovered") or ()], say)  # fmt: skip
        if one["status"] in ("skipped", "pending") or one["verdict"] == "inconclusive":
            yield say(LACKING, name=name, said=say(one["summary"]))


def shorten(lines: list[str], say: Language) -> list[str]:
    """The first lines, and how many more there are."""
    return [*lines[:MOST], *([say(REST, count=len(lines) - MOST)] if lines[MOST:] else [])]


def table(head: list[str], rows: list[list[str]], say: Language) -> list[str]:
    """A Markdown table; empty without rows."""
    if not rows:
        return []
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    lines += [f"| {' | '.join(one.replace('|', chr(92) + '|') for one in row)} |" for row in rows]
    more = ["", say(REST, count=len(rows) - MOST)] if rows[MOST:] else []
    return [*lines[: MOST + 2], *more]


def code(text: str) -> str:
    """One line of code, cut where it is long."""
    line = " ".join(text.split()).replace("`", "'")
    return f"`{line[:59]}…`" if len(line) > 60 else f"`{line}`" if line else "·"
