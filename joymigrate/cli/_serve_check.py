"""`serve MODEL_DIR --check`: the preflight on the terminal, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joymigrate.cli._answers import Answer, write_answer
from joymigrate.cli._serve_model import ServeOptions, engine_options
from joymigrate.cli._serve_options import PreflightOptions
from joymigrate.errors import Exit
from joymigrate.evidence import grade_line

if TYPE_CHECKING:
    from joymigrate.run.serve.engine.preflight import Preflight

MARKS = {"ok": "ok", "warn": "--", "fail": "!!"}


def check(start: ServeOptions, asked: PreflightOptions) -> int:
    """Look at everything; exit 1 when the start would fail."""
    from joymigrate.run.serve.engine.check import check as look
    from joymigrate.run.serve.engine.preflight import StartRequest

    options, chip = engine_options(start)
    wanted = StartRequest(
        start.model, options, chip, asked.sku, start.server.host, start.server.port,
        start.language.template, start.language.generation, start.language.override,
    )  # fmt: skip
    found = look(wanted)
    write_answer(Answer(found.to_json(), lines(found) + "\n"), asked.format, asked.output)
    return Exit.OK if found else Exit.FOUND


def lines(found: Preflight) -> str:
    """One line per check, the remedy below it."""
    shown = [f"{found.model} on {found.chip or 'this machine'}"]
    for one in found.findings:
        known = f" ({one.grade})" if one.grade else ""
        shown.append(f"  {MARKS[one.status]} {one.name}: {one.found}{known}")
        if one.remedy and one.status != "ok":
            shown.append(f"       {one.remedy}")
    if any(found.grades().values()):
        shown.append(grade_line(found.grades()))
    shown.append("ready to serve" if found else "would not serve: mend what is marked !!")
    return "\n".join(shown)
