"""Run the program as it was before the migration: does it work here, and what does it compute?"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from joymigrate.blame.end_files import read_chain
from joymigrate.blame.program import package_of
from joymigrate.blame.signs import REPORT, same
from joymigrate.blame.stop import FrameOwner
from joymigrate.blame.text import lines
from joymigrate.errors import JoyError
from joymigrate.journey import original
from joymigrate.journey.context import CompletedCommand, StepContext
from joymigrate.journey.losses import write_curve
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.run_failure import FailureReason, explain, reason
from joymigrate.journey.tree import find_changes, snapshot
from joymigrate.language import Text
from joymigrate.ledger import Ledger, sha256
from joymigrate.run.door.report import WHAT

BUNDLE = "baseline/baseline.jmb"
LOG = "baseline/log.txt"
PLAIN = "baseline/plain-log.txt"  # without stand-ins, where they did not do
ALONE = "baseline/alone-log.txt"  # the original without our recorder
CURVE = "baseline/losses.jsonl"
COPY = "baseline/original"  # the project without the rewrite, where it was rewritten before
FIRST = "baseline/first"  # the project when no rewrite held in it
FILES = "baseline/files.json"  # what the original consists of, with hashes
SEEN = "stand-ins.json"  # what the stand-ins saw, beside the recording


def words(
    request: JourneyRequest, bundle: str, entry: Sequence[str], stand_ins: bool = False
) -> list[str]:
    """The command that records; by stand-ins for a GPU that is not here."""
    asked = ["--steps", request.steps, *(["--once"] if request.once else [])]
    if stand_ins:
        first = ["baseline", "--record", bundle, "--cards", str(request.devices or 1)]
        first += ["--format", "json", "-o", str(Path(bundle).with_name(SEEN))]
        return [*first, *asked, "--", *entry]
    return ["verify", "record", "--force", "-o", bundle, *asked, "--", *entry]


def stood_in(at: StepContext) -> bool:
    """Whether the original runs by stand-ins: without a GPU, unless its own way on a CPU was named
    or is all that works here."""
    found = at.before.get("baseline")
    if found is not None and found.figures.get("of") == "original":
        return bool(found.figures.get("stand_ins"))
    own_way = at.request.baseline_entry and not at.request.pair
    return not (at.gpu_here or own_way)


def entry_of(request: JourneyRequest) -> tuple[str, ...]:
    """How the original is started on this machine."""
    return request.baseline_entry or request.entry


def run(at: StepContext) -> StepOutcome:
    """Record the original on the GPU of this machine, or its CPU; or take what is given."""
    if at.request.baseline is not None:
        return check_recording(at, at.request.baseline)
    folder, of = sources(at.request, at.folder)
    stand_ins = stood_in(at)
    note_files(at.path(FILES), folder, at.request.project)
    done = record_original(at, folder, stand_ins)
    figures: dict[str, Any] = {"of": None}
    ours = False
    if stand_ins and not program_ended_well(done) and not lacks(at, done, folder):
        plain = record_original(at, folder, stand_ins=False, log=PLAIN)
        ours = fails_to_import(done, plain)
        if program_ended_well(plain) or (ours and lacks(at, plain, folder)):
            stop = explain(at, done, on_chip=False, folder=elsewhere(at, folder))
            figures["stand_ins_stop"] = {"line": stop.line or "?", "message": stop.message}
            done, stand_ins = plain, False
    counted = write_curve(done.log, at.path(CURVE))
    figures |= {"exit_code": done.code, "losses": counted}
    figures["log"] = log = done.log.relative_to(at.folder).as_posix()
    figures |= {"stand_ins": stand_ins} | ({"what": WHAT} if stand_ins else {})
    if stand_ins:
        words_seen = at.load(f"baseline/{SEEN}")["words"]
        figures["card_calls"] = sum(row["calls"] for row in words_seen)
    recorded = readable(at.path(BUNDLE))
    if program_ended_well(done):
        figures |= {"of": "original", "exit_code": 0, "recorded": recorded is not None}
        figures["device"] = device = recorded or ("GPU" if at.gpu_here else "CPU")
        kept = Text("{number} loss{number_es}", number=counted) if recorded else empty(done)
        text = "{of} ran to its end on this machine's {device}; {kept}"
        if stand_ins:
            text = "{of} ran to its end by stand-ins for its GPU; {kept}; {what}"
        told = Text(text, of=of, device=device, kept=kept, what=Text(WHAT))
        if stopped := figures.get("stand_ins_stop"):
            text = "{told}; by stand-ins for its GPU it stopped at {line}: {message}"
            told = Text(text, told=told, **stopped)
        evidence = (log, CURVE, f"{BUNDLE}/manifest.json") if recorded else (log, CURVE)
        return StepOutcome("baseline", StepStatus.DONE, told, figures, evidence, verdict="pass")
    if ends_well_alone(at, ALONE, entry_of(at.request), elsewhere(at, folder), done):
        figures |= {"of": "original", "exit_code": 0, "recorded": False}
        figures["device"] = device = "GPU" if at.gpu_here else "CPU"
        told = Text(
            "{of} ran to its end on this machine's {device}, and not under our recorder: nothing "
            "to compare",
            of=of,
            device=device,
        )
        help_ = Text.join("\n\n", (done.tail(), OURS))
        return StepOutcome(
            "baseline", StepStatus.DONE, told, figures, (LOG,), verdict="inconclusive", help=help_
        )
    return explain_failure(at, done, figures, elsewhere(at, folder), ours)


def record_original(
    at: StepContext, folder: Path, stand_ins: bool, log: str = LOG
) -> CompletedCommand:
    """Run the original and record it."""
    shutil.rmtree(at.path(BUNDLE), ignore_errors=True)
    ask = words(at.request, str(at.path(BUNDLE)), entry_of(at.request), stand_ins)
    return at.joymigrate(log, *ask, ok=range(256), cwd=elsewhere(at, folder))


def record_again(
    at: StepContext, bundle: Path, log: str, cwd: Path | None = None
) -> CompletedCommand:
    """Record a program as the baseline was, to hold one against the other: one run is enough for
    that. Without `cwd` it is the original, where that runs."""
    shutil.rmtree(bundle, ignore_errors=True)
    request = replace(at.request, once=True)
    ask = words(request, str(bundle), entry_of(request), stood_in(at))
    return at.joymigrate(log, *ask, ok=range(256), cwd=cwd or place_of_original(at))


def place_of_original(at: StepContext) -> Path | None:
    """Where the original runs; None for the project."""
    return elsewhere(at, sources(at.request, at.folder)[0])


def program_ended_well(done: CompletedCommand) -> bool:
    """Whether a recorded program ended well, also where it gave nothing to record."""
    return done.code == 0 or (done.code == 2 and "error: nothing was recorded" in done.text())


def ends_well_alone(
    at: StepContext, log: str, entry: Sequence[str], cwd: Path | None, recorded: CompletedCommand
) -> bool:
    """Whether a program that ended badly under the recorder ends well without it: what stopped it
    is ours then. One that wants a GPU is not run again."""
    stop = explain(at, recorded, on_chip=False, folder=cwd)
    if reason(at, recorded, stop) is FailureReason.NEEDS_GPU:
        return False
    return at.plain(log, entry, cwd).code == 0


def lacks(at: StepContext, done: CompletedCommand, folder: Path) -> bool:
    """Whether what stopped a program is missing on this machine with stand-ins or without: anything
    but the GPU."""
    stop = explain(at, done, on_chip=False, folder=elsewhere(at, folder))
    needs_gpu = reason(at, done, stop) is FailureReason.NEEDS_GPU
    return stop.whose is FrameOwner.ENVIRONMENT and not needs_gpu


def fails_to_import(done: CompletedCommand, plain: CompletedCommand) -> bool:
    """Whether a package raised while it was imported, and does not without stand-ins."""
    chain, other = (read_chain(one.notes, one.text()) for one in (done, plain))
    if not chain or (other and same(chain[0], other[0])):
        return False
    return any(package_of(one.file) and one.function == "<module>" for one in chain[0].frames)


def empty(done: CompletedCommand) -> Text:
    """That a program called no torch module here, and what it said last: it may say why."""
    said = (done.lines() or [""])[-1].strip()
    if not said:
        return Text("nothing to compare: it calls no torch module here")
    return Text(
        "nothing to compare: it calls no torch module here, and ends with: {said}", said=said
    )


def explain_failure(
    at: StepContext,
    done: CompletedCommand,
    figures: dict[str, Any],
    folder: Path | None = None,
    ours: bool = False,
) -> StepOutcome:
    """The original did not run: say whose fault that is. `ours`: it is the stand-ins'."""
    stop = explain(at, done, on_chip=False, folder=folder)
    if ours and figures["stand_ins"]:
        how = Text("the same import does not fail without stand-ins")
        stop = replace(stop, whose=FrameOwner.SIMULATION, how_known=how, next=Text(REPORT))
    why, said = reason(at, done, stop), stop.message
    figures |= {"failure": why.value, "said": said, "stop": stop.document()}
    if why is FailureReason.BROKEN:
        told = Text("the program fails before the migration: {said}", said=said)
        help_ = Text.join("\n", lines(stop.document(), log_of(at, done)))
        return StepOutcome(
            "baseline", StepStatus.DONE, told, figures, (LOG,), verdict="fail", help=help_
        )
    told = (
        Text("the original needs a GPU, and there is none here")
        if why is FailureReason.NEEDS_GPU
        else Text("the original ended with exit code {code} here, without a GPU", code=done.code)
    )
    if said:
        text = "{told} ({said}); there is nothing to compare with"
        told = Text(text, told=told, said=said)
    return StepOutcome(
        "baseline",
        StepStatus.DONE,
        told,
        figures,
        (LOG,),
        help=recording(at.request),
    )


def log_of(at: StepContext, done: CompletedCommand) -> str:
    """The log of a command as the project names it."""
    return os.path.relpath(done.log, at.request.project)


OURS = "This is a fault of joymigrate: please report it with these lines."


def recording(request: JourneyRequest) -> str:
    """How to get a baseline from a machine with a GPU."""
    entry = shlex.join(request.entry)
    told = (
        "A baseline of the original can come from a machine with a GPU. There, in the original "
        "sources:",
        "  JOYMIGRATE_SEED=0 PYTHONHASHSEED=0 JOYMIGRATE_DRAWS=1 joymigrate verify record -o "
        "baseline.jmb "
        f"--steps {request.steps} -- {entry}",
        "Copy baseline.jmb here, then:",
        f"  joymigrate migrate . --entry {shlex.quote(entry)} --baseline baseline.jmb",
        "Or name how the original runs on this machine's CPU, with --baseline-entry '…'.",
    )
    return Text.join("\n", told)


def check_recording(at: StepContext, bundle: Path) -> StepOutcome:
    """A recording from elsewhere, held against its hashes."""
    from joymigrate.verify.bundle import open_bundle

    found = open_bundle(bundle)
    command = [str(word) for word in found.manifest.get("command", [])]
    device = device_of(found.ranks[0].program)
    first, last = found.manifest.get("steps", [0, 0])
    same = command[1:] == list(at.request.entry)[1:]
    manifest = bundle / "manifest.json"
    document = {
        "bundle": str(bundle),
        "sha256": sha256((manifest if bundle.is_dir() else bundle).read_bytes()),
        "command": command,
        "device": device,
        "steps": [first, last],
    }
    at.path("baseline").mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False)
    at.path("baseline/given.json").write_text(text, encoding="utf-8")
    told = Text(
        "{name}, recorded on {device}, steps {first} to {last}",
        name=bundle.name,
        device=device,
        first=first,
        last=last,
    )
    other = Text(
        "{told}, by another command: {command}", told=told, command=shlex.join(command[1:])
    )
    return StepOutcome(
        "baseline",
        StepStatus.DONE,
        told if same else other,
        {"of": "given", "device": device, "recorded": True, "same_command": same},
        ("baseline/given.json",),
        verdict="pass",
    )


def list_original(folder: Path, project: Path) -> dict[str, str]:
    """What the original in `folder` consists of, with hashes: folders of data in a copy are links
    into the project, and both sides read them."""
    found, linked = snapshot(folder), snapshot(project)
    return found | {
        p: hashed for p, hashed in linked.items() if (folder / p).is_file() and p not in found
    }


def note_files(note: Path, folder: Path, project: Path) -> None:
    """Write what the original in `folder` consists of: its recording holds as long as that does."""
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(list_original(folder, project)), encoding="utf-8")


def find_original_changes(
    request: JourneyRequest, home: Path, outputs: Collection[str]
) -> list[str] | None:
    """Files of the original that changed since it was recorded; None where nothing tells. Edits of
    rewritten files are none: they belong to the chip's side."""
    try:
        noted = json.loads((home / FILES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if request.baseline is not None:
        return None
    folder, _ = sources(request, home)
    return find_changes(noted, list_original(folder, request.project), outputs)


def sources(request: JourneyRequest, home: Path) -> tuple[Path, str]:
    """Where the original lies, and what to call it; `home` is the journey's folder."""
    project, origin = request.project, request.origin
    if origin is not None:
        named = Text("the original ({name})", name=origin.name)
        return origin.folder, named if origin.name else "the original"
    ledger = Ledger.of(project)
    steps = original.rewrites(ledger, project)
    first = home.with_name("journey") / FIRST  # also for a pair
    if not steps:
        original.keep_first(project, first)
        return project, "the original"
    copy = home / COPY
    original.restore_original(ledger, steps, project, copy, first)
    names = ", ".join(step.id for step in steps)
    return copy, Text("the original (without step {names})", names=names)


def elsewhere(at: StepContext, folder: Path) -> Path | None:
    """The folder where it is not the project."""
    return None if folder == at.request.project else folder


def readable(bundle: Path) -> str | None:
    """The device that a bundle was recorded on; None where nothing was recorded."""
    from joymigrate.verify.bundle import open_bundle

    try:
        found = open_bundle(bundle)
    except JoyError:
        return None
    return device_of(found.ranks[0].program)


def device_of(program: Any) -> str:
    """`NVIDIA H200`, or `CPU`."""
    devices = (program.get("environment") or {}).get("devices") or {}
    return ", ".join(map(str, devices.values())) or "CPU"


def recorded_bundle(at: StepContext) -> Path | None:
    """The baseline that is there to compare with."""
    outcome = at.before.get("baseline")
    if outcome is None or not outcome.figures.get("recorded"):
        return None
    return at.request.baseline or at.path(BUNDLE)
