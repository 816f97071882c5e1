"""What became of a program, decided by rule from what was observed. Nothing here looks at names.

The rules, the first that fits decides:

1. the rewrite raised, made a file unreadable, or found more to do the second time: our defect;
2. the original ends badly under the recorder and well without it: our defect, but undecided where
   all that the recorder says is that it saw no step;
3. a limit of time or memory stopped a run: undecided; it ends badly on the CPU, and not for want of
   a GPU: the program's own, but undecided where it asks for a file of its repository that our
   checkout lacks;
4. a run on the chip ended badly. The message or the innermost frame says whose: the chip refused
   the call, the vendor registered no kernel for it, or the vendor's own Python raised: it stops as
   a real chip would. Our own code raised,
   the simulated chip lacks a function of the chip's library, or the program still asks for CUDA:
   our defect. A difference between the two styles, of which one
   ends well: our defect. Else undecided;
5. a result differs from the original's. The original, replayed on the CPU, differs from itself as
   well: undecided, the program does not repeat itself. The first difference is in what goes into
   the model, before anything was computed: undecided, the program takes other data where there is
   a device (it shuffles, or loads in another process). Such a program is first run again on the
   original's batches, and judged by that; its own loader then is not. Else: our defect;
6. calls were refused although the program went on: stops as a real chip would;
7. nothing ran on the chip, or nothing was compared: undecided;
8. else it passes.

A library's own tests are held against the CPU test by test. Each that passes there and fails on the
chip is classed by rule 4, and the worst class is that of the suite. Where the chip skips more than
a tenth of them, or got fewer operator calls than tests, it is undecided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)
ERROR = re.compile(
    r"^(?:\[?rank\d+\]?:?\s*)?((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Found|Warning))"
    r"(?:: (.*))?$",
    re.MULTILINE,
)
# What starts other processes ends with an error of its own; theirs stands above it.
LAUNCHER = re.compile(r"^torch\.distributed\.elastic\.|ProcessRaisedException")
FOLDERS = re.compile(r"(?:/[\w.+-]+){2,}/")
NEEDS_GPU = re.compile(
    r"not compiled with CUDA|No CUDA GPUs|Found no NVIDIA|cuda.*is not available|"
    r"torch\._C' has no attribute '_cuda_|"
    r"CUDA is not available|requires? (?:a )?(?:GPU|CUDA)|Invalid device id|NCCL",
    re.IGNORECASE,
)
ASKS_CUDA = re.compile(
    r"not compiled with CUDA|Found no NVIDIA|No CUDA GPUs|libcuda", re.IGNORECASE
)
# The last two: the vendor's own dispatcher knows the operator and has no kernel for it, not even
# on the CPU; torch's finds none that the vendor registered.
REFUSED = re.compile(
    r"error code is \d{6}|\bEZ\d{4}\b|\bERR(?!99999)\d{5}\b|joymigrate: refused|documents? |"
    r"Expected all tensors to be on the same device|"
    r"operator '[\w:.]+' is not currently supported on the \w+ backend(?! and will)|"
    r"Could not run '[\w:.]+' with arguments from the '\w*PrivateUse1' backend"
)
# The vendor's package writes the code of its own refusal in the line below the message; ERR99999
# stands below every exception that it does not know.
CODE_BELOW = re.compile(r"\A\n\[ERROR\] .*\b(ERR\d{5} .*)$", re.MULTILINE)
RAN = 0.9  # of the tests that pass on the CPU, for a suite to be judged by those that ran
NOTHING = re.compile(r"nothing was recorded|the program ended before its first step")
SIMULATION = re.compile(
    r"Failed to find function \w*|undefined symbol: acl\w*|HCCL function error: \S*hcclCommInitAll"
)
VENDOR = re.compile(r"/torch_npu/")
OURS = re.compile(r"^/joymigrate/")
RECORDER = re.compile(r"joymigrate's own recorder failed at ([\w.]+):\d+: (.*)")


class Outcome(Enum):
    """The five ends."""

    PASSES = "passes"
    CHIP = "stops as a real chip would"
    OURS = "our defect"
    OWN = "the program's own"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run: `error` is its last error line, `where` the file of the innermost frame."""

    code: int
    stopped: str = ""
    error: str = ""
    where: str = ""

    @property
    def well(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.code == 0 and not self.stopped


@dataclass(frozen=True, slots=True)
class Observed:
    """What one program's journey left behind. `compared` names what was held against the original:
    each of "modules", "losses", "printed" with "same" or "differs"; `refused` are the messages of
    calls that the chip refuses, `repeats` whether the original agrees with itself (None: not
    asked), `operators` how many distinct operators ran on the chip, `phase` where the first
    difference stands ("input", "forward", …), `reason` why a verdict could not be given."""

    original: Attempt
    direct: Attempt
    agnostic: Attempt
    rewrite: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    compared: Mapping[str, str] = field(default_factory=dict)
    repeats: bool | None = None
    operators: int = 0
    phase: str = ""
    tests: Mapping[str, int] = field(default_factory=dict)  # of a suite: tests by their end
    recording: str = ""  # the error of an original that ends well where nothing records it
    reason: str = ""
    lacks: tuple[str, ...] = ()  # files of the repository that the checkout lacks
    # Of a suite: whether the chip got at least a call for each test that passes; None: not asked.
    touched: bool | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Observed:
        """What `dataclasses.asdict` wrote."""
        runs = {name: Attempt(**given[name]) for name in ("original", "direct", "agnostic")}
        texts = {name: tuple(given[name]) for name in ("rewrite", "refused")}
        texts["lacks"] = tuple(given.get("lacks", ()))
        return cls(**{**given, **runs, **texts})


def attempt(code: int, text: str, stopped: str = "") -> Attempt:
    """A run with its last error and the place of it, read from what it printed."""
    if code == 0 and not stopped:
        return Attempt(code)
    if recorder := RECORDER.search(text):  # a launcher's traceback stands below it
        return Attempt(
            code,
            stopped,
            f"the recorder failed: {recorder[2]}",
            f"/joymigrate/verify/{recorder[1]}",
        )
    frames = FRAME.findall(text)
    said = []
    for found in ERROR.finditer(text):
        code_below = CODE_BELOW.search(text[found.end() : found.end() + 500])
        named = f" ({code_below[1]})" if code_below else ""
        said.append(": ".join(part for part in found.groups() if part) + named)
    theirs = [error for error in said if not LAUNCHER.search(error)]
    error = (theirs or said or [""])[-1]
    place = shorten(frames[-1][0]) if frames else ""
    return Attempt(code, stopped, FOLDERS.sub("…/", error or last_line(text)), place)


def shorten(path: str) -> str:
    """A file without the folders of this machine: they change, and are nobody's business."""
    for mark, kept in (
        ("/site-packages/", "/"),
        ("/copies/", ""),
        ("/joymigrate/", "/joymigrate/"),
    ):
        if mark in path:
            return kept + path.rpartition(mark)[2]
    return path.rpartition("/")[2]


def last_line(text: str) -> str:
    """The last line that is not blank."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def judge(seen: Observed) -> tuple[Outcome, str]:
    """The outcome and its cause, in the order of the rules above."""
    if seen.rewrite:
        return Outcome.OURS, f"rewrite: {seen.rewrite[0]}"
    if NOTHING.search(seen.recording):
        return Outcome.UNDECIDED, "the recorder saw no step: it computes nothing without a device?"
    if seen.recording:
        return Outcome.OURS, f"under the recorder alone: {seen.recording}"
    if seen.tests:
        return judge_tests(seen.tests, seen.touched)
    original = seen.original
    needs_gpu = bool(NEEDS_GPU.search(original.error))
    if original.stopped:
        return Outcome.UNDECIDED, f"limit of {original.stopped}: the original on the CPU"
    for style, run in (("direct", seen.direct), ("agnostic", seen.agnostic)):
        if run.stopped:
            return Outcome.UNDECIDED, f"limit of {run.stopped}: {style} on the chip"
    lacking = [name for name in seen.lacks if name.rpartition("/")[2] in original.error]
    if lacking:
        return Outcome.UNDECIDED, f"our checkout lacks {lacking[0]}"
    if not original.well and not needs_gpu:
        return Outcome.OWN, f"the original ends badly: {original.error}"
    bad = [
        (style, run)
        for style, run in (("direct", seen.direct), ("agnostic", seen.agnostic))
        if not run.well
    ]
    if bad:
        return blame(seen, bad)
    apart = [what for what, said in seen.compared.items() if said == "differs"]
    if apart:
        if seen.repeats is False:
            return Outcome.UNDECIDED, "the original does not repeat itself"
        if seen.phase == "input":
            return Outcome.UNDECIDED, (
                "its inputs differ: other data where there is a device, or results fed back"
            )
        return Outcome.OURS, f"wrong result: {', '.join(apart)}"
    if seen.refused:
        return Outcome.CHIP, f"refused: {seen.refused[0]}"
    if not seen.operators:
        return Outcome.UNDECIDED, "nothing ran on the chip"
    if "same" not in seen.compared.values():
        why = "the original needs a GPU" if needs_gpu else "nothing was compared"
        return Outcome.UNDECIDED, f"{why}: {seen.reason}" if seen.reason else why
    return Outcome.PASSES, ""


AREAS = ("scan and rewrite", "rehearse", "coverage", "verify")


def area(seen: Observed) -> str:
    """Which part of the tool an outcome that is our defect falls to, by the rules above; empty for
    the other outcomes.

    A result that differs falls to `verify`, which says so: whether what it judged was wrong, or it
    alone, only a reader can tell. A suite's tests fail in the rehearsal. No rule asks `coverage`.
    """
    if judge(seen)[0] is not Outcome.OURS:
        return ""
    if seen.rewrite:
        return "scan and rewrite"
    if seen.recording:
        return "verify"
    bad = [run for run in (seen.direct, seen.agnostic) if not run.well]
    if seen.tests or any(SIMULATION.search(run.error) for run in bad):
        return "rehearse"
    ours = next((run.where for run in bad if OURS.match(run.where)), "")
    if ours:
        return "verify" if ours.startswith("/joymigrate/verify/") else "rehearse"
    return "scan and rewrite" if bad else "verify"


def tried(seen: Observed) -> dict[str, bool]:
    """Which parts of the tool a program reached."""
    ran = any(run.well or run.error or run.stopped for run in (seen.direct, seen.agnostic))
    recorded = not seen.tests and (seen.original.well or bool(seen.recording))
    return {"scan and rewrite": True, "rehearse": ran, "verify": recorded}


def blame(seen: Observed, bad: list[tuple[str, Attempt]]) -> tuple[Outcome, str]:
    """Who stopped a run on the chip."""
    style, run = bad[0]
    cause = f"{style}: {run.error}"
    kind = blame_one(run)
    if kind is Outcome.CHIP and VENDOR.search(run.where) and not REFUSED.search(run.error):
        return kind, f"{cause} (the vendor's {run.where.rpartition('/torch_npu/')[2]})"
    if kind is Outcome.UNDECIDED and len(bad) == 1:
        return Outcome.OURS, f"one style only: {cause}"
    return kind, cause


def blame_one(run: Attempt) -> Outcome:
    """Whose a failure on the chip is, by its message and its innermost frame."""
    recorder = run.error.startswith("the recorder failed: ")
    if recorder or ASKS_CUDA.search(run.error) or SIMULATION.search(run.error):
        return Outcome.OURS
    if REFUSED.search(run.error) or VENDOR.search(run.where):
        return Outcome.CHIP
    return Outcome.OURS if OURS.search(run.where) else Outcome.UNDECIDED


def judge_tests(counts: Mapping[str, int], touched: bool | None) -> tuple[Outcome, str]:
    """The outcome of a library's own tests: that of the worst one which passes on the CPU."""
    passed = counts.get("same", 0)
    asked = sum(n for key, n in counts.items() if not key.endswith("on the CPU"))
    if not asked:
        return Outcome.OWN, "no test passes on the CPU"
    share = f"{passed} of {asked} tests that pass on the CPU pass"
    for kind in (Outcome.OURS, Outcome.UNDECIDED, Outcome.CHIP):
        if counts.get(kind.name):
            return kind, f"{share}; {counts[kind.name]} of this class"
    if touched is False:
        return Outcome.UNDECIDED, f"{share}, and the chip got fewer calls than that"
    if counts.get("missing"):
        return Outcome.UNDECIDED, f"{share}; {counts['missing']} did not run"
    if passed < asked * RAN:
        return Outcome.UNDECIDED, f"{share}; the others are skipped"
    return Outcome.PASSES, "" if passed == asked else share
