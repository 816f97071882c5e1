"""Two bundles → verdict and document, with the chip's tolerances, for the commands that judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.cli._verdicts import VerdictPlace

if TYPE_CHECKING:
    from joymigrate.verify.bundle import Bundle
    from joymigrate.verify.model import Verdict


def where(
    to: str | None, subject: str | None, checkpoint: str | None, made: Bundle, rehearsed: bool
) -> VerdictPlace:
    """The place of the verdict: the chip that the target ran on, else the CPU.

    What ran on the CPU is about the CPU, whatever `--to` says.
    """
    from joymigrate import chips

    if to == "cpu":
        return VerdictPlace("cpu", "measured", subject, checkpoint)
    facts = made.ranks[0].program.get("environment", {})
    used = facts.get("devices") or {}
    chip = chips.target(to)
    if chip.device not in used:
        return VerdictPlace("cpu", "measured", subject, checkpoint)
    grade = "rehearsed" if rehearsed or facts.get("rehearsal") else "measured"
    return VerdictPlace(chip.name, grade, subject, checkpoint)


def judge(
    baseline: Bundle,
    made: Bundle,
    place: VerdictPlace,
    mapping: Path | None,
    code: int = 0,
    *,
    strict: bool = False,
) -> tuple[dict[str, Any], Verdict]:
    """The verdict and its document."""
    from joymigrate.verify import scope
    from joymigrate.verify.align import read_map
    from joymigrate.verify.compare import compare
    from joymigrate.verify.model import verdict_json
    from joymigrate.verify.tolerance import Tolerance

    verdict = compare(
        baseline,
        made,
        Tolerance.of(None if place.chip == "cpu" else place.chip),
        names=read_map(mapping) if mapping else None,
        exit_code=code,
    )
    verdict = scope.strict(verdict) if strict else verdict
    document: Mapping[str, Any] = verdict_json(verdict)
    return {**document, "rehearsal": verdict.rehearsal or place.rehearsal}, verdict
