"""A training run on the chip beside the original's: the loss curves must agree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from joymigrate.journey.context import DRAWN, CompletedCommand, StepContext, StepFailed
from joymigrate.journey.losses import write_curve
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.speed import SCHEMA, speed
from joymigrate.journey.steps import baseline, rehearse, verify
from joymigrate.language import Text
from joymigrate.verify.text_numbers import columns

BASE, CHIP = "train/baseline-log.txt", "train/chip-log.txt"
AGAIN = "train/again-log.txt"
JUDGED = "train/loss.json"


def words(request: JourneyRequest, chip_here: bool) -> list[str]:
    """The command that trains on the chip."""
    entry = request.train or request.entry
    if chip_here:
        return ["run", "--to", request.chip, "--", *entry]
    options = [*rehearse.devices(request), *rehearse.in_memory(request)]
    return ["rehearse", "--to", request.chip, *options, "--", *entry]


def judging(curves: Sequence[str], path: str) -> list[str]:
    """The command that compares the baseline's curve and the chip's."""
    return ["verify", "loss", *curves, "--format", "json", "-o", path]


def run(at: StepContext) -> StepOutcome:
    """Compare what the program prints as its loss on both sides, which draw the same random
    numbers; curves that part are held against how far the baseline parts from itself."""
    found = compare_runs(at)
    if found.verdict != "fail":
        return found
    found = replace(found, evidence=(*found.evidence, DRAWN))
    lone = sorted(set(at.path(DRAWN).read_text(encoding="utf-8").split()))
    if lone:
        why = Text("each device draws its own numbers in {operators}", operators=", ".join(lone))
        return leave_undecided(found, why)
    if not repeats(at):
        return leave_undecided(found, "the baseline parts from itself in the same way; set a seed")
    return found


def leave_undecided(outcome: StepOutcome, why: str) -> StepOutcome:
    """A failed comparison that says nothing about the chip."""
    return replace(
        outcome,
        verdict="inconclusive",
        summary=against(outcome.figures, Text("inconclusive: {why}", why=why)),
        figures={**outcome.figures, "verdict": "inconclusive"},
        help="",
    )


def repeats(at: StepContext) -> bool:
    """Whether a second run of the baseline prints the same losses, within what the gate allows."""
    done, _ = here(at, AGAIN)
    if done is None or not write_curve(done.log, at.path("train/again.jsonl")):
        return True
    curves = [str(at.path(f"train/{name}.jsonl")) for name in ("baseline", "again")]
    ask = judging(curves, str(at.path("train/again.json")))
    at.joymigrate(
        "train/again-loss-log.txt", *ask, "--subject", "again", "--to", "cpu", ok=(0, 1, 3)
    )
    return bool(at.load("train/again.json")["verdict"] == "pass")


def compare_runs(at: StepContext) -> StepOutcome:
    """The runs, and the verdict on their curves."""
    base, of = here(at)
    if base is None:
        return StepOutcome(
            "train",
            StepStatus.DONE,
            Text("not compared: {why}", why=of),
            {"losses": [0, 0], "baseline": None},
            verdict="inconclusive",
        )
    chip = there(at)
    if chip.code != 0:
        what = Text("the run on the chip ended with {code}", code=chip.code)
        raise StepFailed(what, chip.tail())
    counts = [
        write_curve(done.log, at.path(f"train/{name}.jsonl"))
        for name, done in (("baseline", base), ("chip", chip))
    ]
    figures = {"losses": counts, "baseline": of, **write_speed(at, base, chip)}
    logs = ("train/speed.json", BASE, CHIP)
    if not any(counts) and (told := tell_compared(at, base, chip)):
        return StepOutcome("train", StepStatus.SKIPPED, told, figures, logs)
    if not all(counts):
        return StepOutcome(
            "train",
            StepStatus.DONE,
            Text("both runs ended well; {why}", why=nothing(counts)),
            figures,
            logs,
            verdict="inconclusive",
        )
    return judge_curves(at, of, counts, figures, logs)


def tell_compared(at: StepContext, base: CompletedCommand, chip: CompletedCommand) -> Text | None:
    """What `verify` compared in place of losses: every loss and update of the recorded steps; or
    the operators of a program whose other numbers, but times and sizes, are printed equally. Where
    it takes results to the host, some of them has to be among these numbers."""
    found = at.before.get("verify")
    if found is None or found.verdict != "pass":
        return None
    if found.figures["baseline"] == verify.OPERATORS:
        text = "no loss is printed; verify compared the operators, and other printed numbers agree"
        here, there = list_printed(base), list_printed(chip)
        shown = any(not one.is_integer() for numbers in here.values() for one in numbers)
        same = all(there.get(key) == numbers for key, numbers in here.items())
        return Text(text) if same and (shown or not found.figures["reads_back"]) else None
    covered = found.figures.get("covered", {})
    parts = [covered.get(name, {}) for name in ("loss", "update")]
    if not covered or any(one.get("compared") != one.get("of") for one in parts):
        return None
    text = "no loss is printed; verify compared all that it recorded in {number} step{number_s}"
    return Text(text, number=covered["steps"]["compared"])


def list_printed(done: CompletedCommand) -> dict[str, list[float]]:
    """The numbers that a program printed, by the words around them, without what it measured."""
    found = columns(done.lines())
    kept = {str(column.key): numbers for column, numbers in found.items() if not column.measures}
    return {key: [one.value for one in numbers] for key, numbers in kept.items()}


def judge_curves(
    at: StepContext, of: str, counts: list[int], figures: dict[str, Any], logs: tuple[str, ...]
) -> StepOutcome:
    """The verdict on the two curves."""
    curves = [str(at.path(f"train/{name}.jsonl")) for name in ("baseline", "chip")]
    ask = judging(curves, str(at.path(JUDGED)))
    at.joymigrate("train/loss-log.txt", *ask, *about(at), ok=(0, 1, 3))
    found = at.load(JUDGED)
    verdict = found["verdict"]
    return StepOutcome(
        "train",
        StepStatus.DONE,
        against(figures, verdict),
        {**figures, "verdict": verdict, "loss": found.get("loss")},
        ("train/baseline.jsonl", "train/chip.jsonl", JUDGED, *logs),
        verdict=verdict,
        help="the curves lie in train/; joymigrate verify bisect narrows it down",
    )


def against(figures: Mapping[str, Any], verdict: str) -> Text:
    """How many losses of either side, and what came of them."""
    base, chip = figures["losses"]
    return Text(
        "{chip} loss{chip_es} against {base} of {of}: {verdict}",
        chip=chip,
        base=base,
        of=figures["baseline"],
        verdict=verdict,
    )


def about(at: StepContext) -> list[str]:
    """What the verdict is about, for the ledger: as `verify replay` calls it."""
    grade = "measured" if at.chip_here else "rehearsed"
    return ["--to", at.request.chip, "--subject", at.request.subject, "--grade", grade]


def nothing(counts: list[int]) -> str:
    """Why there is nothing to compare."""
    if not any(counts):
        return "the program prints no loss to compare (a line with `loss 1.23`)"
    return f"only {'the chip' if counts[1] else 'the baseline'}'s run printed losses"


def here(at: StepContext, log: str = BASE) -> tuple[CompletedCommand | None, str]:
    """The run of the original on this machine. Where its time says nothing, that of the baseline:
    it drew the same numbers."""
    found = at.before.get("baseline")
    if found is None or found.figures.get("of") is None:
        return None, "there is no baseline but the rewritten program itself"
    stand_ins = baseline.stood_in(at)
    entry = at.request.train or baseline.entry_of(at.request)
    known = found.figures.get("log")
    if known and log == BASE and not (at.request.train or at.gpu_here or at.chip_here):
        done = reuse(at, known, log)
    else:
        done = at.plain(log, entry, baseline.place_of_original(at), at.path(DRAWN), stand_ins)
    of = Text("the original on this machine's {device}", device="GPU" if at.gpu_here else "CPU")
    if stand_ins:
        of = Text.of("the original on cpu, by stand-ins for its GPU")
    if done.code == 0:
        return done, of
    text = "without a GPU the program ends with {code} on this machine"
    return None, Text(text, code=done.code)


def there(at: StepContext) -> CompletedCommand:
    """The run on the chip. What was rehearsed already is not rehearsed twice: its time says
    nothing, and its losses are there."""
    if at.before.get("rehearse") is not None and not (at.chip_here or at.request.train):
        return reuse(at, rehearse.LOG, CHIP, int(at.before["rehearse"].figures["exit_code"]))
    ask = words(at.request, at.chip_here)
    return at.joymigrate(CHIP, *ask, ok=range(256), draws=at.path(DRAWN))


def reuse(at: StepContext, known: str, log: str, code: int = 0) -> CompletedCommand:
    """A run that an earlier step made, kept under the name of this one."""
    at.path(log).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(at.path(known), at.path(log))
    return CompletedCommand("", code, at.path(log))


def write_speed(at: StepContext, base: CompletedCommand, chip: CompletedCommand) -> dict[str, Any]:
    """`train/speed.json`: how fast both sides went. The time of a simulated chip means nothing."""
    sides = {"baseline": speed(base.losses), "chip": speed(chip.losses) if at.chip_here else None}
    found = {"schema": SCHEMA, "rehearsal": not at.chip_here, **sides}
    at.path("train/speed.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return {f"{name}_steps_per_s": side["steps_per_s"] for name, side in sides.items() if side}
