"""The board as a page with filters, as Markdown, as CSV, and as the JSON of a badge."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.board import rows
from benchmarks.board.outcome import AREAS, Observed, Outcome, area, tried
from benchmarks.board.programs import Program
from joymigrate.report.csv import safe
from joymigrate.report.html import page

FORMS = ("html", "markdown", "csv", "badge")
TONES = {
    Outcome.PASSES: "safe",
    Outcome.CHIP: "plain",
    Outcome.OURS: "report",
    Outcome.OWN: "plain",
    Outcome.UNDECIDED: "unsafe",
}
COLUMNS = (
    "name", "repository", "commit", "licence", "family", "command", "chosen_before", "outcome",
    "cause", "first_outcome", "first_cause", "tries", "date", "tool", "edits_safe", "edits_unsafe",
    "by_hand", "files_changed", "operators", "calls", "judged", "calls_pct", "lacking", "fallbacks",
    "traps", "verify", "compared", "recorded", "losses", "most_apart", "seconds",
)  # fmt: skip
BEGIN = "<!-- python -m benchmarks.board report --update benchmarks/RESULTS.md -->"
END = "<!-- end -->"
BETWEEN = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
SCRIPT = Path(__file__).with_name("board.js")


def write(given: argparse.Namespace, listed: Sequence[Program]) -> int:
    """Write the forms that were asked for; without one, Markdown on stdout."""
    found = list(rows.load(given.results).values())
    texts = {"html": html, "markdown": markdown, "csv": table, "badge": badge}
    asked = [form for form in FORMS if getattr(given, form)]
    for form in asked:
        getattr(given, form).write_text(texts[form](found, listed), encoding="utf-8")
    if given.against:
        there = rows.load(given.against)
        print("\n".join(releases(found, there)))
    if given.update:
        old = given.update.read_text(encoding="utf-8")
        if not BETWEEN.search(old):
            raise ValueError(f"{given.update} has no {BEGIN} … {END}")
        told = "\n".join(figures(found, listed))
        new = BETWEEN.sub(lambda _: f"{BEGIN}\n\n{told}\n\n{END}", old)
        given.update.write_text(new, encoding="utf-8")
    if not (asked or given.update or given.against):
        print(markdown(found, listed), end="")
    return 0


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row with one value per column."""
    outcome, cause = rows.judged(row, "final")
    first, why = rows.judged(row, "first")
    sites, verify = row.get("sites", {}), row.get("verify", {})
    covered, losses = row.get("coverage", {}), row.get("losses", {})
    plain = {key: row[key] for key in COLUMNS if key in row and key not in ("losses",)}
    return {
        **plain,
        "outcome": outcome.value,
        "cause": cause,
        "first_outcome": first.value,
        "first_cause": why,
        "date": row["final"]["date"],
        "tool": row["final"]["tool"],
        "edits_safe": sites.get("safe"),
        "edits_unsafe": sites.get("unsafe"),
        "by_hand": sites.get("report"),
        "files_changed": row.get("changed"),
        "judged": judged_calls(row),
        "calls_pct": covered.get("calls_pct"),
        "lacking": " ".join(covered.get("lacking", ())),
        "fallbacks": " ".join(row.get("fallbacks", ())),
        "traps": len(row["traps"]) if "traps" in row else None,
        "verify": verify.get("verdict"),
        "compared": verify.get("compared"),
        "recorded": verify.get("recorded"),
        "losses": losses.get("chip"),
        "most_apart": losses.get("most_apart"),
        "seconds": sum(row.get(side, {}).get("seconds", 0) for side in SIDES),
    }


SIDES = ("original", "direct", "agnostic")


def judged_calls(row: Mapping[str, Any]) -> int | None:
    """Calls whose arguments the chip's documents or recorded answers judged, of `calls`."""
    judged = row.get("judged")
    return None if judged is None else int(judged["calls"]) - int(judged["nobody"])


def counted(found: Sequence[Mapping[str, Any]], which: str) -> Counter[Outcome]:
    """Programs by outcome of their "first" or "final" try."""
    return Counter(rows.judged(row, which)[0] for row in found)


def compared(found: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """(programs held against their original, programs that ran to their end on both sides)."""
    seen = [row["final"]["seen"] for row in found]
    ran = [
        one for one in seen if all(one[side]["code"] == 0 and not one[side]["stopped"]
                                   for side in SIDES)
    ]  # fmt: skip
    return sum(bool(one["compared"] or one.get("tests")) for one in ran), len(ran)


def markdown(found: Sequence[Mapping[str, Any]], listed: Sequence[Program]) -> str:
    """The figures, then every row."""
    return "\n".join([*figures(found, listed), "", *programs(found)]) + "\n"


def figures(found: Sequence[Mapping[str, Any]], listed: Sequence[Program]) -> Iterator[str]:
    """How many programs ended how, first and final."""
    first, final = counted(found, "first"), counted(found, "final")
    held, ran = compared(found)
    families = len({row["family"] for row in found})
    before = sum(bool(row["chosen_before"]) for row in found)
    last = max((row["final"]["date"] for row in found), default="never")
    yield f"{len(found)} of {len(listed)} listed programs were run, of {families} families."
    yield f"{before} of them were chosen before any was tried. Last run: {last}."
    yield ""
    yield "| outcome | first try | now |"
    yield "|---|---|---|"
    for outcome in Outcome:
        yield f"| {outcome.value} | {first[outcome]} | {final[outcome]} |"
    yield ""
    yield f"{ran} programs ran to their end on the CPU and, in both styles, on the simulated chip;"
    yield f"results of {held} of them were held against those of the original."
    passed = [row for row in found if rows.judged(row, "final")[0] is Outcome.PASSES]
    calls = sum(int(row.get("calls", 0)) for row in passed)
    seen = sum(judged_calls(row) or 0 for row in passed)
    yield f"In those that pass, documents or recorded answers judged the arguments of {seen}"
    yield f"of {calls} calls. The others ran on the simulated chip alone: nobody vouches for them."
    yield ""
    yield from areas(found)


def areas(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How many of the programs that reached a part of the tool are our defect there."""
    yield "| part of the tool | programs that reached it, first try | our defect there | now |"
    yield "|---|---|---|---|"
    sides = {
        which: [Observed.read(row[which]["seen"]) for row in found] for which in ("first", "final")
    }
    held = [row for row in found if "coverage" in row]
    silent = [str(row["name"]) for row in held if overlooked(row)]
    for part in AREAS:
        if part == "coverage":
            now = rate(len(silent), len(held))
            yield f"| coverage | {len(held)} (last try) | not kept | {now} |"
            continue
        reached = {which: sum(tried(one)[part] for one in seen) for which, seen in sides.items()}
        lost = {which: sum(area(one) == part for one in seen) for which, seen in sides.items()}
        cells = (rate(lost[which], reached[which]) for which in sides)
        yield f"| {part} | {reached['first']} | {' | '.join(cells)} |"
    yield ""
    yield "Coverage is held against the rehearsal: is an operator that went back to the CPU there"
    yield f"the chip's own by its word? In: {', '.join(silent) or 'no program'}."


def overlooked(row: Mapping[str, Any]) -> set[str]:
    """Operators that went back to the CPU in the rehearsal and that coverage gives the chip."""
    named = {overload.partition(".")[0] for overload in row["coverage"]["lacking"]}
    return {op for op in row.get("fallbacks", ()) if op.partition(".")[0] not in named}


def releases(
    here: Sequence[Mapping[str, Any]], there: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Each program that has rows of two releases, and where their ends differ."""
    both = [row for row in here if row["name"] in there]
    with_ = (versions(both), versions(there.values()))
    yield f"| program | {' | '.join(with_)} | verify | losses apart | % of calls the chip's own |"
    yield "|---|---|---|---|---|---|"
    for row in both:
        sides = [flat(row), flat(there[row["name"]])]
        ends = [one["outcome"] + (f": {one['cause']}" if one["cause"] else "") for one in sides]
        told = [
            f"{one['verify'] or '-'} {one['compared']} of {one['recorded']}"
            if one["verify"] else tests(side) or "-"
            for one, side in zip(sides, (row, there[row["name"]]), strict=True)
        ]  # fmt: skip
        apart = ["-" if one["most_apart"] is None else one["most_apart"] for one in sides]
        own = ["-" if one["calls_pct"] is None else f"{one['calls_pct']:.1f}" for one in sides]
        cells = [row["name"], *ends, *(", ".join(map(str, pair)) for pair in (told, apart, own))]
        yield "| " + " | ".join(short(str(cell)) for cell in cells) + " |"


def versions(found: Iterable[Mapping[str, Any]]) -> str:
    """The releases that rows were made with, as one title."""
    seen = {" + ".join(" ".join(one) for one in row["final"].get("with", {}).items())
            for row in found}  # fmt: skip
    return ", ".join(sorted(seen - {""})) or "not kept"


def rate(part: int, of: int) -> str:
    """`3 (2.5 %)`."""
    return f"{part} ({100 * part / of:.1f} %)" if of else "-"


def programs(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line per program."""
    yield (
        "| program | family | outcome now | first try | operators of the chip | arguments judged "
        "| verify | losses |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for row in found:
        one = flat(row)
        ends = [one["outcome"] + (f": {one['cause']}" if one["cause"] else "")]
        same = (one["first_outcome"], one["first_cause"]) == (one["outcome"], one["cause"])
        ends.append("the same" if same else f"{one['first_outcome']}: {one['first_cause']}")
        share = "-" if one["calls_pct"] is None else f"{one['calls_pct']:.1f} % of the calls"
        seen = row.get("coverage", {}).get("operators", 0)
        if seen and 2 * seen < one["operators"]:  # its trace ends after the first steps
            share += f" of {seen} operators; {one['operators']} ran"
        verify = f"{one['verify']}; {one['compared']} of {one['recorded']}" if one["verify"] else ""
        verify = verify or tests(row)
        losses = f"{one['losses']}, {one['most_apart']} apart" if one["losses"] else "-"
        if row.get("own_loader"):  # the replay got the original's batches; the losses are of others
            verify += " on the original's batches"
            losses += " (other data)"
        judged = "-" if one["judged"] is None else f"{one['judged']} of {one['calls']} calls"
        cells = [
            f"{one['name']} ({one['repository']} {one['commit'][:7]})", one["family"], *ends,
            share, judged, verify or "-", losses,
        ]  # fmt: skip
        yield "| " + " | ".join(short(cell) for cell in cells) + " |"


def tests(row: Mapping[str, Any]) -> str:
    """Of a library's own tests: how many of those that pass on the CPU pass on the chip."""
    counts = row.get("tests", {}).get("counts", {})
    asked = sum(n for key, n in counts.items() if not key.endswith("on the CPU"))
    return f"{counts.get('same', 0)} of {asked} tests" if counts else ""


def short(text: str, most: int = 160) -> str:
    """Text of one table cell: one line, no bars, not too long."""
    line = " ".join(text.split()).replace("|", "/").replace("<", "&lt;").replace("`", "'")
    return line if len(line) <= most else line[: most - 1] + "…"


def table(found: Sequence[Mapping[str, Any]], listed: Sequence[Program]) -> str:
    """A header and one line per program."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in found:
        one = flat(row)
        values = [one.get(key) for key in COLUMNS]
        writer.writerow(
            ["" if value is None else safe(str(value)) if isinstance(value, str) else value
             for value in values]
        )  # fmt: skip
    return text.getvalue()


def badge(found: Sequence[Mapping[str, Any]], listed: Sequence[Program]) -> str:
    """The JSON that shields.io's endpoint badge reads: red where a defect of ours is left."""
    final = counted(found, "final")
    said = {
        "schemaVersion": 1,
        "label": "on a simulated NPU",
        "message": f"{final[Outcome.PASSES]} of {len(listed)} pass",
        "color": "red" if final[Outcome.OURS] else "blue",
    }
    return json.dumps(said) + "\n"


def html(found: Sequence[Mapping[str, Any]], listed: Sequence[Program]) -> str:
    """One page: figures, then the table with filters by family, outcome and cause."""
    final = counted(found, "final")
    held, ran = compared(found)
    shown = page.tiles(
        [
            page.Tile(f"{len(found)}", "programs", f"{len(listed)} listed"),
            *(page.Tile(f"{final[one]}", one.value, "", TONES[one]) for one in Outcome),
            page.Tile(f"{held} / {ran}", "held against the original"),
        ]
    )
    parts = [page.BarPart(final[one], one.value, TONES[one]) for one in Outcome]
    summary = page.Html(shown + page.bar(parts, legend=True))
    sections = [
        page.Section("summary", "Summary", summary),
        page.Section("programs", "Programs", page.Html(choices(found) + lines(found)), len(found)),
    ]
    return page.Page(
        title="Public programs on the simulated chip",
        subtitle="programs that others wrote; nothing here was seen on a real chip",
        sections=sections,
        footer="python -m benchmarks.board report",
        scripts=[str(SCRIPT)],
    ).render()


def choices(found: Sequence[Mapping[str, Any]]) -> page.Html:
    """The filters."""
    families = sorted({str(row["family"]) for row in found})
    return page.filters(
        page.choice("family", "family", [("", "all"), *((one, one) for one in families)]),
        page.choice("outcome", "outcome", [("", "all"), *((o.value, o.value) for o in Outcome)]),
        page.search("cause", "cause, program, operator"),
        page.Html('<output id="shown"></output>'),
    )


def lines(found: Sequence[Mapping[str, Any]]) -> page.Html:
    """The table of all programs, each with what it rests on."""
    body, keys = [], []
    for row in found:
        one = flat(row)
        tone = TONES[Outcome(one["outcome"])]
        link = f"https://github.com/{one['repository']}/tree/{one['commit']}"
        name = page.Html(
            f'<a href="{page.escape(link)}">{page.escape(one["name"])}</a>'
            + page.details("command", page.code(f"`{one['command']}`"))
            + page.details("evidence", page.notes(evidence(row)))
        )
        first = "the same" if one["first_outcome"] == one["outcome"] else one["first_outcome"]
        share = "" if one["calls_pct"] is None else f"{one['calls_pct']:.1f} %"
        verify = f"{one['verify']} {one['compared']} of {one['recorded']}" if one["verify"] else ""
        verify = verify or tests(row)
        body.append(
            [name, one["family"], page.badge(one["outcome"], tone), one["cause"], first, share,
             verify, "" if one["most_apart"] is None else one["most_apart"]]
        )  # fmt: skip
        keys.append(f"{one['family']}|{one['outcome']}")
    head = ("program", "family", "outcome", "cause", "first try", "calls", "verify", "losses apart")
    return page.table(head, body, keys=keys)


def evidence(row: Mapping[str, Any]) -> Iterator[str]:
    """What a row rests on, in words."""
    yield f"licence {row['licence']}, commit {row['commit']}"
    for side in SIDES:
        if side in row:
            run = row[side]
            yield f"{side}: exit code {run['code']}, {run['seconds']} s; {run.get('error', '')}"
    grades = row.get("grades", {})
    if grades:
        yield "operators by grade: " + ", ".join(f"{key} {n}" for key, n in grades.items())
    if judged_calls(row) is not None:
        yield f"arguments judged: {judged_calls(row)} of {row['calls']} calls"
    for key in ("fallbacks", "traps", "refused", "unsimulated"):
        if row.get(key):
            yield f"{key}: " + "; ".join(str(one) for one in row[key])
    for kind, said in row.get("tests", {}).get("messages", {}).items():
        named = "; ".join(f"{number} x {message}" for message, number in said.items())
        yield f"tests that fail on the chip alone ({Outcome[kind].value}): {named}"
        which = row["tests"].get("names", {}).get(kind)
        if which:
            yield f"of them: {', '.join(which)}"
    if row.get("note"):
        yield f"note: {row['note']}"
