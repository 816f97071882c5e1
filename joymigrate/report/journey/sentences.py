"""What each step found, as sentences whose every figure knows its evidence.

The same sentences serve the page, where figures are links, and the terminal, where they are text.
"""

from __future__ import annotations

from collections.abc import Callable

from joymigrate.report.journey.evidence import (
    COUNT,
    FINE_PERCENT,
    FINE_SECONDS,
    GIB,
    KIB,
    MIB,
    PERCENT,
    POINTS,
    RATE,
    SECONDS,
    SIGNIFICANT,
    Figure,
    JourneyStep,
)
from joymigrate.report.journey.peak_memory import MEMORY
from joymigrate.report.journey.peak_memory import sentences as held
from joymigrate.report.journey.phrase import WORDS, Phrase
from joymigrate.report.labels import Labels

SCAN, REWRITE = "scan/scan.json", "rewrite/rewrite.json"
REHEARSE, COVERAGE = "rehearse/rehearse.json", "coverage/coverage.json"
ADVICE, VERDICT = "advice/advice.json", "verify/verdict.json"
LOSS, SPEED, ANSWER = "train/loss.json", "train/speed.json", "serve/answer.json"
NEEDS_GPU = "needs a GPU"  # how a journey says that the original can't run here


def short(step: JourneyStep) -> Phrase | None:
    """What a step found, in one line; None where only the step's own words say it."""
    if step.raw["status"] == "stopped":
        return gate(step)
    if step.raw["status"] != "done":
        return None
    form = SHORT.get(step.name)
    phrase = form(step) if form else None
    return phrase if phrase is not None and phrase.whole else None


def describe_step(step: JourneyStep) -> list[Phrase]:
    """What a step found, in full."""
    made = FOUND.get(step.name)
    return [one for one in made(step) if one.whole] if made else []


def gate(step: JourneyStep) -> Phrase | None:
    """Which limit holds the journey."""
    held = step.raw["figures"].get("held")
    if not held or f"gate_{held['gate']}" not in WORDS:
        return None
    if step.raw["figures"].get("stop"):
        return None  # the step's own words say where it stopped
    key = f"gate_{held['gate']}"
    form = POINTS if held["gate"] == "automatic" else SIGNIFICANT
    figures = {
        name: step.own(form, "figures", "held", name)
        for name in ("found", "limit")
        if f"{{{name}}}" in WORDS.template(key)
    }
    return Phrase(key, figures)


def short_scan(step: JourneyStep) -> Phrase:
    figures = {
        "sites": step.figure(COUNT, "sites"),
        "safe": step.figure(COUNT, "safe", SCAN, "/summary/safe"),
        "by_hand": step.figure(COUNT, "by_hand", SCAN, "/summary/report"),
    }
    if step.raw["figures"].get("unsafe"):
        review = step.figure(COUNT, "unsafe", SCAN, "/summary/unsafe")
        return Phrase("short_scan_review", {**figures, "unsafe": review})
    return Phrase("short_scan", figures)


def edits(step: JourneyStep) -> dict[str, Figure | None]:
    names = ("edits", "files")
    return {name: step.figure(COUNT, name, REWRITE, f"/summary/{name}") for name in names}


def short_baseline(step: JourneyStep) -> Phrase:
    figures = step.raw["figures"]
    if figures.get("failure") == NEEDS_GPU:
        return Phrase("short_needs_gpu")
    if figures.get("stand_ins") and figures.get("recorded") is not False:
        return Phrase("short_stand_ins")
    given = figures.get("of") == "given"
    device = {"device": step.figure(str, "device")}
    if figures.get("recorded") is False:
        return Phrase("short_empty", device)
    if figures.get("stand_ins_stop"):
        device["said"] = step.figure(str, "stand_ins_stop/message")
        return Phrase("short_own_way", device)
    return Phrase("short_given" if given else "short_baseline", device)


def short_rewrite(step: JourneyStep) -> Phrase:
    if not step.raw["figures"].get("edits"):
        return Phrase("short_nothing")
    return Phrase("short_rewrite", edits(step))


def short_rehearse(step: JourneyStep) -> Phrase:
    if "fallbacks" not in step.raw["figures"]:
        return Phrase("short_chip")
    figures = {"fallbacks": step.figure(COUNT, "fallbacks"), "peak": peak(step)}
    return Phrase("short_rehearse", figures)


def peak(step: JourneyStep) -> Figure | None:
    """The most memory of one device."""
    at = step.evidence
    peaks = [
        (bytes_, (REHEARSE, f"/peak_memory_bytes/{name}"))
        for name, bytes_ in (at.at(REHEARSE, "/peak_memory_bytes") or {}).items()
    ] or [
        (bytes_, (MEMORY, f"/processes/{number}/peak_bytes/{name}"))
        for number, one in enumerate(at.at(MEMORY, "/processes") or ())
        for name, bytes_ in one["peak_bytes"].items()
    ]
    places = [place for _, place in sorted(peaks, key=lambda pair: -pair[0])[:1]]
    return step.evidence.figure(memory_form(step), *places, step.place("figures", "peak_bytes"))


def memory_form(step: JourneyStep) -> Callable[[object], str]:
    """GiB for much memory, MiB or KiB for little."""
    peak_bytes = step.raw["figures"].get("peak_bytes") or 0
    return GIB if peak_bytes >= 2**30 else MIB if 10 * peak_bytes >= 2**20 else KIB


def short_coverage(step: JourneyStep) -> Phrase:
    return Phrase("short_coverage", {name: share(step, name) for name in ("calls", "ops")})


def share(step: JourneyStep, name: str) -> Figure | None:
    """A share of what the program uses that the chip runs."""
    return step.figure(PERCENT, f"share/{name}", COVERAGE, f"/share/{name}")


def recorded_on(step: JourneyStep) -> str:
    """Where the operators were recorded, as the ending of a key of words: times are of there."""
    ends = {"the chip": "_chip", "the simulated chip": "_simulated"}
    return ends.get(str(step.raw["figures"].get("recorded_on")), "")


def short_advice(step: JourneyStep) -> Phrase:
    return Phrase("short_advice", {"advice": step.figure(COUNT, "advice")})


def comparison(step: JourneyStep) -> dict[str, Figure | None]:
    names = ("compared", "recorded")
    figures = {
        name: step.figure(COUNT, f"coverage/{name}", VERDICT, f"/coverage/{name}") for name in names
    }
    return {**figures, "verdict": step.figure(str, "verdict")}


def against(step: JourneyStep) -> list[Phrase]:
    """What the chip was compared with."""
    noted = str(step.raw["figures"].get("baseline") or "")
    for key in ("of_original", "of_rewritten", "of_given"):
        head, _, end = WORDS.template(key, "en").partition("{device}")
        if noted.startswith(head) and noted.endswith(end):
            device = noted[len(head) : len(noted) - len(end)]
            return [Phrase("against", words={"of": key, "device": device})]
    return []


def short_verify(step: JourneyStep) -> Phrase:
    return Phrase("short_verify", comparison(step))


def short_train(step: JourneyStep) -> Phrase:
    figures = {
        "losses": step.figure(COUNT, "losses/1", LOSS, "/curve/n"),
        "verdict": step.figure(str, "verdict"),
    }
    return Phrase("short_train", figures)


def serving(step: JourneyStep) -> dict[str, Figure | None]:
    return {
        "ready": step.figure(SECONDS, "ready_s"),
        "tokens": step.figure(COUNT, "tokens", ANSWER, "/usage/completion_tokens"),
        "took": step.figure(FINE_SECONDS, "answer_s"),
    }


def short_serve(step: JourneyStep) -> Phrase:
    return Phrase("short_serve", serving(step))


def describe_scan(step: JourneyStep) -> list[Phrase]:
    at = step.evidence
    figures = {
        "sites": step.figure(COUNT, "sites", SCAN, "/readiness/sites"),
        "safe": step.figure(COUNT, "safe", SCAN, "/summary/safe"),
        "unsafe": step.figure(COUNT, "unsafe", SCAN, "/summary/unsafe"),
        "by_hand": step.figure(COUNT, "by_hand", SCAN, "/summary/report"),
    }
    if step.raw["figures"].get("rewritten"):
        before = step.figure(COUNT, "rewritten")
        automatic = step.figure(POINTS, "automatic_pct")
        return [Phrase("found_scan_again", {**figures, "automatic": automatic, "before": before})]
    name = "automatic_with_unsafe" if at.document.get("unsafe") else "automatic"
    figures |= {
        "files": at.figure(COUNT, (SCAN, "/readiness/files")),
        "scanned": step.figure(COUNT, "files", SCAN, "/files/scanned"),
        "automatic": at.figure(PERCENT, (SCAN, f"/readiness/{name}")),
    }
    return [Phrase("found_scan", figures)]


def effort(step: JourneyStep) -> Phrase:
    """How much work is left, as the scan estimates it."""
    minutes = step.evidence.figure(Labels().duration, (SCAN, "/readiness/minutes"))
    return Phrase("found_effort", {"minutes": minutes})


def describe_baseline(step: JourneyStep) -> list[Phrase]:
    if step.raw["figures"].get("failure") == NEEDS_GPU:
        return [Phrase("found_needs_gpu")]
    if step.raw["figures"].get("of") != "original":
        return []
    if step.raw["figures"].get("recorded") is False:
        return [Phrase("found_empty", {"device": step.figure(str, "device")})]
    losses = {"losses": step.figure(COUNT, "losses")}
    if step.raw["figures"].get("stand_ins"):
        return [Phrase("found_stand_ins", losses)]
    return [Phrase("found_baseline", {"device": step.figure(str, "device"), **losses})]


def describe_rewrite(step: JourneyStep) -> list[Phrase]:
    if not step.raw["figures"].get("edits"):
        return [Phrase("found_nothing")]
    style = (
        [Phrase("found_style_agnostic")] if step.evidence.document["style"] == "agnostic" else []
    )
    return [Phrase("found_rewrite", edits(step)), *style]


def describe_rehearsal(step: JourneyStep) -> list[Phrase]:
    at = step.evidence
    if "fallbacks" not in step.raw["figures"]:
        chip = [Phrase("found_chip", {"code": step.figure(COUNT, "exit_code")})]
        return [*chip, Phrase("found_chip_peak", {"peak": peak(step)}), *held(step)]
    figures = {
        "code": step.figure(str, "exit_code", REHEARSE, "/exit_code"),
        "soc": at.figure(str, (REHEARSE, "/soc")),
        "calls": at.figure(COUNT, (REHEARSE, "/calls")),
        "fallbacks": step.figure(COUNT, "fallbacks"),
        "peak": peak(step) or Figure(0, "0 MiB"),
        "memory": at.figure(GIB, (REHEARSE, "/memory_bytes")),
    }
    names = (("vendor", "vendor_cpp"), ("reference", "reference"), ("alias", "cpu_alias"))
    ways = {a: at.figure(PERCENT, (REHEARSE, f"/checked_by/{b}")) for a, b in names}
    return [Phrase("found_rehearse", figures), *held(step), Phrase("found_checked", ways)]


def describe_coverage(step: JourneyStep) -> list[Phrase]:
    where = recorded_on(step)
    names = ("ops", "calls") if where == "_simulated" else ("ops", "calls", "time")
    figures = {name: share(step, name) for name in names}
    operators = step.figure(COUNT, "operators")
    return [Phrase(f"found_coverage{where}", {**figures, "operators": operators})]


def describe_advice(step: JourneyStep) -> list[Phrase]:
    levels = (("errors", "error"), ("warnings", "warning"), ("notes", "note"))
    figures = {a: step.evidence.figure(COUNT, (ADVICE, f"/summary/{b}")) for a, b in levels}
    return [Phrase("found_advice", figures)]


def describe_verdict(step: JourneyStep) -> list[Phrase]:
    at = step.evidence
    modules = step.figure(PERCENT, "coverage/modules", VERDICT, "/coverage/modules")
    phrases = [Phrase("found_verify", {**comparison(step), "modules": modules}), *against(step)]
    first = step.raw["figures"].get("first_divergence")
    if first:
        figures = {
            name: at.figure(form, (VERDICT, f"/first_divergence/{name}"))
            for name, form in (
                ("module", str),
                ("phase", str),
                ("step", str),
                ("value", SIGNIFICANT),
                ("limit", SIGNIFICANT),
            )
        }
        phrases.append(Phrase("found_first", figures))
    return phrases


def describe_training(step: JourneyStep) -> list[Phrase]:
    at = step.evidence
    values = "/curve/values/loss"
    phrases = []
    if "verdict" in step.raw["figures"]:
        figures = {
            "losses": step.figure(COUNT, "losses/1", LOSS, "/curve/n"),
            "mean": at.figure(FINE_PERCENT, (LOSS, f"{values}/mean_relative")),
            "most": at.figure(FINE_PERCENT, (LOSS, f"{values}/max_relative")),
            "limit": at.figure(PERCENT, (LOSS, "/curve/limit_pass")),
            "verdict": step.figure(str, "verdict"),
        }
        phrases += [Phrase("found_train", figures), *against(step)]
    rate = at.figure(RATE, (SPEED, "/baseline/steps_per_s"))
    chip = at.figure(RATE, (SPEED, "/chip/steps_per_s"))
    if chip:
        phrases.append(Phrase("found_speed_both", {"chip": chip, "rate": rate}))
    else:
        phrases.append(Phrase("found_speed", {"rate": rate}))
    printed = at.figure(RATE, (SPEED, "/baseline/printed/median"))
    unit = at.at(SPEED, "/baseline/printed/unit") or ""
    phrases.append(Phrase("found_printed", {"printed": printed}, {"unit": unit}))
    return phrases


def describe_serving(step: JourneyStep) -> list[Phrase]:
    return [Phrase("found_serve", serving(step))]


SHORT: dict[str, Callable[[JourneyStep], Phrase]] = {
    "scan": short_scan,
    "baseline": short_baseline,
    "rewrite": short_rewrite,
    "rehearse": short_rehearse,
    "coverage": short_coverage,
    "advice": short_advice,
    "verify": short_verify,
    "train": short_train,
    "serve": short_serve,
}
FOUND: dict[str, Callable[[JourneyStep], list[Phrase]]] = {
    "scan": describe_scan,
    "baseline": describe_baseline,
    "rewrite": describe_rewrite,
    "rehearse": describe_rehearsal,
    "coverage": describe_coverage,
    "advice": describe_advice,
    "verify": describe_verdict,
    "train": describe_training,
    "serve": describe_serving,
}
