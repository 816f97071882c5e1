"""Compare the program on the chip with a baseline: the original's, or one from elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from joymigrate.journey.context import StepContext, StepFailed
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.steps import baseline, coverage, rehearse
from joymigrate.journey.tree import SKIPPED
from joymigrate.language import Text
from joymigrate.profile.record import reads_back
from joymigrate.verify.cause import REDUCED
from joymigrate.verify.identity import CLASS
from joymigrate.verify.scope import least_share

RESULT = "verify/verdict.json"
REPLAY_LOG = "verify/replay-log.txt"
SCALER = re.compile(r"GradScaler|loss_scal|fp16|float16|mixed_precision", re.IGNORECASE)
SCALED = ("gradient scale", "scale")  # of gradients, and of the loss itself where it is compared
LEAST_SCALE = 1024  # scalers start at 65,536 and halve where they overflow
SCALE_ROUNDING = 0.01
MOST_FILES = 2000
OPERATORS = "float64, operator by operator"  # a baseline where no module is called
MOST_TOLD = 3  # calls that were not compared
ASKED = "cuda_is_available"  # a trap of a rehearsal
IDLE = "the migrated program computed nothing on the chip"
AGAIN = "verify/again.jmb"  # the baseline recorded a second time
UNSEEDED = "the program starts from other weights or data at every run: set a seed"


def words(request: JourneyRequest, chip_here: bool, bundle: str, path: str) -> list[str]:
    """The command that replays and judges."""
    made = ["verify", "replay", bundle, "--to", request.chip, "--format", "json", "-o", path]
    made += ["--map", str(request.map)] if request.map else []
    made += [] if chip_here else ["--rehearse", *rehearse.devices(request)]
    made += rehearse.in_memory(request)
    return [*made, "--", *request.entry]


def run(at: StepContext) -> StepOutcome:
    """Replay the baseline on the chip, judge. A program is never its own baseline."""
    bundle, of = choose_bundle(at)
    if bundle is None:
        return without(at)
    result = at.path(RESULT)
    result.unlink(missing_ok=True)
    replay = words(at.request, at.chip_here, str(bundle), str(result))
    done = at.joymigrate(REPLAY_LOG, *replay, ok=range(256))
    if not result.is_file():
        what = Text("the replay gave no verdict (exit code {code})", code=done.code)
        raise StepFailed(what, done.tail())
    found = at.load(RESULT)
    verdict, first = found["verdict"], found["first_divergence"]
    idle = None if broke_off(found) else idle_chip(at, found)
    apart = (
        (other_path(at.request.project, found) or restarts(at, found))
        if verdict == "fail" and not idle
        else None
    )
    verdict = "inconclusive" if apart or idle else verdict
    said = Text("{verdict} against {of}", verdict=verdict, of=of)
    if apart or idle:
        said = Text("{said}: {why}", said=said, why=apart or IDLE)
    elif first:
        text = "{said}; first divergence in {module} ({phase})"
        said = Text(text, said=said, module=first["module"], phase=first["phase"])
    elif broke_off(found):
        said = Text("{said}: {why}", said=said, why=found["reason"])
    return StepOutcome(
        "verify",
        StepStatus.DONE,
        said,
        {
            "verdict": verdict,
            "judged": found["verdict"],
            "baseline": of,
            "first_divergence": first,
            "idle": idle,
            "coverage": found["coverage"],
            "covered": found.get("covered", {}),
            "uncovered": found.get("uncovered", []),
            "verified_pct": round(100 * least_share(found.get("covered", {})), 1),
            "stages": [
                {name: one.get(name) for name in ("stage", "verdict", "reason")}
                for one in found.get("stages", [])
            ],
        },
        (RESULT, REPLAY_LOG) if broke_off(found) else (RESULT,),
        verdict=verdict,
        help=idle["said"] if idle else explain_verdict(at, found, apart),
    )


def idle_chip(at: StepContext, found: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Where the compared run used the chip not at all, though the original is not known to use no
    card: the line that most likely decided so and what is said of it, both empty where nothing is
    known."""
    before = at.before.get("baseline")
    unused = before is not None and before.figures.get("card_calls") == 0
    if unused or at.request.chip == found["target"].get("chip"):
        return None
    run = at.before.get("rehearse")
    traps = run.figures.get("found_traps", ()) if run is not None else ()
    asked = [one for one in traps if one["trap"] == ASKED]
    if not asked:
        return {"line": "", "message": "", "said": IDLE}
    first = asked[0]
    text = "{where}: {said}"
    said = Text(text, where=first["where"], said=first["message"])
    if first["remedy"]:
        said = Text("{said}; {remedy}", said=said, remedy=first["remedy"])
    return {"line": first["where"], "message": first["message"], "said": said}


def broke_off(found: Mapping[str, Any]) -> bool:
    """Whether an exception ended the program on the chip, and nothing before it differed."""
    ended = (found.get("target") or {}).get("crash") is not None
    return ended and found["first_divergence"] is None


def choose_bundle(at: StepContext) -> tuple[Path | None, str]:
    """The bundle to compare with and what it is; none without an independent one."""
    found = at.before.get("baseline")
    bundle = baseline.recorded_bundle(at)
    if bundle is None or found is None:
        return None, ""
    if at.request.baseline:
        text = "the given baseline ({device})"
    elif found.figures.get("stand_ins"):
        return bundle, "the original on cpu, by stand-ins for its GPU"
    else:
        text = "the original on this machine's {device}"
    return bundle, Text(text, device=found.figures["device"])


def without(at: StepContext) -> StepOutcome:
    """Nothing to compare with: that is said, not passed over."""
    found = at.before.get("baseline")
    ran = found is not None and found.figures.get("exit_code") == 0
    rehearsed = at.before.get("rehearse")
    worked = rehearsed is not None and bool(rehearsed.figures.get("peak_bytes"))
    used = worked and not (at.gpu_here or (found is not None and found.figures.get("stand_ins")))
    unseen = found is not None and ran and found.verdict == "inconclusive"
    if ran and worked and not used and not unseen and at.path(coverage.TRACE).is_file():
        return judge_operators(at)
    why = (
        "not compared: the original ends well on this machine, and not under our recorder"
        if unseen
        else "not compared: without a device the program ends before it calls a torch module"
        if ran and used
        else "nothing to compare: the program calls no torch module"
        if ran
        else "not compared: there is no baseline but the rewritten program itself"
    )
    return StepOutcome(
        "verify",
        StepStatus.DONE,
        why,
        {"verdict": "inconclusive", "baseline": None, "verified_pct": 0.0},
        verdict="inconclusive",
        help="" if ran and not used else better(at),
    )


def judge_operators(at: StepContext) -> StepOutcome:
    """The operators of a program that calls no torch module: each distinct call, on the chip and in
    float64. What the program makes of them is not compared."""
    ask = ["verify", "ops", "--from", str(at.path(coverage.TRACE)), "--to", at.request.chip]
    ask += ["--no-edges", "--format", "json", "-o", str(at.path(RESULT))]
    ask += ["--subject", at.request.subject, *([] if at.chip_here else ["--rehearse"])]
    at.path(RESULT).parent.mkdir(parents=True, exist_ok=True)
    at.joymigrate(REPLAY_LOG, *ask, ok=(0, 1, 3))
    found = at.load(RESULT)
    counts = {key: found["coverage"][key] for key in ("compared", "recorded")}
    text = "no torch module is called; {compared} of {recorded} operator calls compared: {verdict}"
    why = Text("the program's own values: it calls no torch module")
    return StepOutcome(
        "verify",
        StepStatus.DONE,
        Text(text, **counts, verdict=found["verdict"]),
        {
            "verdict": found["verdict"],
            "baseline": OPERATORS,
            "operators": counts,
            "reads_back": reads_back(at.path(coverage.TRACE)),
            "first_divergence": found["first_divergence"],
            "uncovered": [{"what": "values", "count": 1, "reason": why}],
            "verified_pct": 0.0,
        },
        (RESULT,),
        verdict=found["verdict"],
        help=Text.join("\n", [found["reason"] or "", *found["coverage"]["uncompared"][:MOST_TOLD]]),
    )


def better(at: StepContext) -> str:
    """How to get a better baseline, where that of this journey did not say so already."""
    told = baseline.recording(at.request)
    found = at.before.get("baseline")
    return "" if found is not None and told in found.help else told


def other_path(project: Path, found: Mapping[str, Any]) -> str | None:
    """That the two sides ran different programs, by their own choice: a CPU's and a device's.

    Only against a recording from a CPU. There mixed precision is off, or another dtype is chosen.
    """
    first = found["first_divergence"] or {}
    if (found.get("baseline") or {}).get("devices"):
        return None
    if first.get("cause") in SCALED:
        scale = loss_scale(float(first.get("value") or 0) + 1)
        if scale and scales(project):
            return Text(
                "the program scales its loss by {scale} on the chip and not on a CPU: mixed "
                "precision is on with a device only",
                scale=scale,
            )
    narrow = fewer_digits(found)
    if narrow and is_rounding(first):
        return Text(
            "modules compute in {dtype} on the chip and in float32 on a CPU: mixed precision is on "
            "with a device only",
            dtype=narrow,
        )
    if first.get("stage") == "S1" and first.get("metric") == "dtype":
        return "the program takes another dtype on the chip than on a CPU"
    return None


def is_rounding(first: Mapping[str, Any]) -> bool:
    """Whether the first wrong value is one that rounding to fewer digits makes."""
    if first.get("cause") is None:
        return " as of " in str(first.get("evidence"))
    return bool(first["cause"] == REDUCED)


def fewer_digits(found: Mapping[str, Any]) -> str | None:
    """The 16-bit dtype of outputs that are float32 in the baseline, where there are such."""
    stages = [one for one in found.get("stages", ()) if one["stage"] == "S5"]
    counts = stages[0].get("details", {}).get("narrowed", {}) if stages else {}
    return max(counts, key=counts.__getitem__) if counts else None


def loss_scale(ratio: float) -> int | None:
    """The loss scale that a ratio of gradients is, within what 16 bits round: a power of two that
    no mean over a batch explains."""
    if not math.isfinite(ratio) or ratio < LEAST_SCALE:
        return None
    power = 2 ** round(math.log2(ratio))
    return power if abs(ratio / power - 1) < SCALE_ROUNDING else None


def scales(project: Path) -> bool:
    """Whether the program's source scales losses at all."""
    found = project.rglob("*.py")
    sources = [path for path in found if not SKIPPED & set(path.relative_to(project).parts)]
    return any(SCALER.search(path.read_text("utf-8", "replace")) for path in sources[:MOST_FILES])


def restarts(at: StepContext, found: Mapping[str, Any]) -> str | None:
    """That the baseline itself starts from other weights or batches at every run: recorded once
    more, it is compared with itself."""
    if (found["first_divergence"] or {}).get("stage") != "S1" or at.request.baseline:
        return None
    before = at.before.get("baseline")
    if before is None or before.figures.get("of") != "original":
        return None
    bundle, again = at.path(baseline.BUNDLE), str(at.path(AGAIN))
    baseline.record_again(at, Path(again), "verify/again-log.txt")
    if baseline.readable(at.path(AGAIN)) is None:
        return None
    compare = ["verify", "compare", str(bundle), again, "--format", "json"]
    compare += ["-o", str(at.path("verify/again.json")), "--subject", "again", "--to", "cpu"]
    at.joymigrate("verify/again-compare-log.txt", *compare, ok=(0, 1, 3))
    itself = at.load("verify/again.json")["first_divergence"] or {}
    if itself.get("stage") != "S1":
        return None
    return UNSEEDED


def list_notes(found: Mapping[str, Any]) -> list[str]:
    """What the stages of a verdict note."""
    return [str(note) for stage in found.get("stages", []) for note in stage.get("notes", [])]


def explain_verdict(at: StepContext, found: Mapping[str, Any], apart: str | None) -> str:
    """What the verdict rests on, and how to get a better one."""
    if apart == UNSEEDED:
        return "It takes randomness from the clock or the system: two baselines differ as well."
    if apart:
        first = "Compare both sides in one precision, with an option of the program in --entry; or"
        said = [first, baseline.recording(at.request)]
        others = [note for note in list_notes(found) if note.startswith(CLASS)]
        if others:
            text = "Modules have another class on the chip: {listed}"
            said.append(Text(text, listed=", ".join(note[len(CLASS) :] for note in others[:3])))
        return Text.join("\n", said)
    where = found["first_divergence"]
    if not where:
        return found.get("reason") or ""
    cause = where.get("cause") or where.get("op")
    head = Text("{module}: {cause}", module=where["module"], cause=cause)
    because = where.get("evidence") or tell_number(where, found.get("stages", ()))
    return Text("{head}\n  {said}", head=head, said=because)


def tell_number(where: Mapping[str, Any], stages: Iterable[Mapping[str, Any]]) -> str:
    """The first failure with its number, where no cause is known, and which stages passed."""
    passed = " ".join(one["stage"] for one in stages if one["verdict"] == "pass")
    text = "stage {stage}, {op}: {metric} {value}, limit {limit}; stages that passed: {passed}"
    fields = {name: where.get(name) for name in ("stage", "op", "metric", "value", "limit")}
    return Text(text, **fields, passed=passed or "-")
