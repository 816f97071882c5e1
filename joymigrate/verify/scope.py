"""What a verdict covers of the program and what it leaves out: counts and reasons. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.align import parents
from joymigrate.verify.bundle import Rank
from joymigrate.verify.findings import Findings
from joymigrate.verify.model import Outcome, RecordCoverage, StageResult, Verdict
from joymigrate.verify.module_stage import ModuleStage
from joymigrate.verify.rest_stage import NOT_REPEATED

KINDS = {"inputs": "input", "loss": "loss", "gradients": "gradients", "state": "state"}
KINDS |= {"outputs": "output"}


def of(
    ours: Rank,
    theirs: Rank,
    replayed: ModuleStage,
    coverage: RecordCoverage,
    found: Findings,
) -> tuple[dict[str, dict[str, int]], tuple[dict[str, Any], ...]]:
    """(covered, uncovered) of one comparison."""
    log = ours.json("log.json")
    left = [*found.uncovered]
    whole: dict[str, dict[str, int]] = {}
    steps = program_steps(log)
    have = [step for step in ours.steps if step in theirs.steps]
    whole["steps"] = {"compared": len(have), "of": max(steps, len(have))}
    if steps > len(have):
        reason = (
            "after the recorded steps: modes, schedules, data, random numbers, losses and sizes of "
            "updates; the rest at every power of two"
        )
        left.append({"what": "steps", "count": steps - len(have), "reason": reason})
    for part in ("run", "printed", "files"):
        whole[part] = {"compared": found.compared[part], "of": found.recorded[part]}
    wanted, there = modes_of(ours, theirs)
    whole["modes"] = {"compared": len(wanted & there), "of": len(wanted)}
    for mode in sorted(wanted - there):
        left.append({"what": "modes", "count": 1, "reason": f"not replayed: {mode}"})
    whole["calls"] = {"compared": coverage.compared, "of": coverage.recorded}
    for name in coverage.uncompared:
        left.append({"what": "calls", "count": 1, "reason": f"not compared: {name}"})
    for part, kind in KINDS.items():
        whole[part] = {"compared": found.compared[kind], "of": found.recorded[kind]}
    updates = sum(number + 1 for number in log.get("updates", {}).values())
    there_too = sum(number + 1 for number in theirs.json("log.json").get("updates", {}).values())
    whole["update"] = {"compared": min(updates, there_too), "of": updates}
    left += never(whole, log)
    for place, kind, inside in outermost(*(s.program.get("graphs", {}) for s in (ours, theirs))):
        reason = f"inside of {place}, which runs as one graph ({kind}): compared where it begins"
        left.append({"what": "modules", "count": inside, "reason": reason})
    for count, reason in replayed.uncompared():
        left.append({"what": "values of modules", "count": count, "reason": reason})
    for place, count in Counter(place for place, _ in sorted(replayed.unrepeated)).items():
        left.append({"what": f"inputs of {place}", "count": count, "reason": NOT_REPEATED})
    for error in replayed.errors:
        left.append({"what": "calls", "count": 1, "reason": str(error)})
    left += [{"what": "gradients", "count": 1, "reason": str(note)} for note in replayed.notes]
    for module in replayed.uncopied:
        reason = "a copy of it does not do what it does: its calls can't be judged by copies"
        left.append({"what": f"copies of {module}", "count": 1, "reason": reason})
    notes = [rank.program.get("notes", []) for rank in (ours, theirs)]
    left += [{"what": "baseline", "count": 1, "reason": str(note)} for note in notes[0]]
    alone = [note for note in notes[1] if note not in notes[0]]
    left += [{"what": "target", "count": 1, "reason": str(note)} for note in alone]
    return whole, tuple(left)


def fewer_digits(stages: Iterable[StageResult]) -> Iterator[dict[str, Any]]:
    """Results that the target computes in 16 bits, and the baseline in float32: they are judged by
    the rounding of the fewer digits."""
    for made in stages:
        for kind, count in made.details.get("narrowed", {}).items():
            text = "in {kind} here and in float32 in the baseline: judged by the rounding of {kind}"
            yield {"what": "digits", "count": count, "reason": Text(text, kind=kind)}


def never(whole: Mapping[str, Mapping[str, int]], log: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parts of which nothing was recorded though the program has them."""
    made = []
    if log.get("backward") and not whole["loss"]["of"]:
        made.append({"what": "loss", "count": log["backward"], "reason": "none was recorded"})
    if not log:
        reason = "the baseline was recorded by an older joymigrate"
        made.append({"what": "program", "count": 1, "reason": reason})
    return made


def outermost(
    ours: Mapping[str, Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, int]]:
    """(place, kind of graph, modules inside) of both sides' graphs that are in no other."""
    both = {**theirs, **ours}
    for place, fact in sorted(both.items()):
        root, _, path = place.partition(":")
        if not any(f"{root}:{other}" in both for other in parents(path)):
            yield place, str(fact["kind"]), int(fact["modules"])


def program_steps(log: Mapping[str, Any]) -> int:
    """Steps of the whole program: updates, else backward passes, else calls of its models."""
    updates = log.get("updates", {})
    if updates:
        return max(int(number) + 1 for number in updates.values())
    return int(log.get("backward", 0)) or sum(int(run[3]) for run in log.get("calls", []))


def modes_of(ours: Rank, theirs: Rank) -> tuple[set[str], set[str]]:
    """Modes that models were called in, and those that a replay has judged."""
    table = ours.json("forced.json").get("lessons", [])
    done = theirs.json("replay.json").get("lessons", [])
    wanted, there = (
        {f"{e['root']}{'.' * bool(path)}{path} {e['number']}" for e, path in paths}
        for paths in (
            [(e, e["path"]) for e in table],
            [(e, e.get("path", "")) for e in done if not e["error"]],
        )
    )
    return wanted, there


def strict(verdict: Verdict) -> Verdict:
    """The same verdict, inconclusive where it would pass and leaves something out."""
    if verdict.verdict is not Outcome.PASS or not verdict.uncovered:
        return verdict
    parts = ", ".join(sorted({str(item["what"]) for item in verdict.uncovered}))
    reason = Text("--strict, and the verdict leaves something out: {parts}", parts=parts)
    return replace(verdict, verdict=Outcome.INCONCLUSIVE, reason=reason)


def least_share(covered: Mapping[str, Mapping[str, int]]) -> float:
    """The smallest share of what was recorded that was compared, 0 to 1: 0 where nothing was
    recorded. Steps and printed numbers do not count."""
    shares = [
        part["compared"] / part["of"]
        for name, part in covered.items()
        if part["of"] and name not in ("steps", "printed")
    ]
    return min(shares, default=0.0)
