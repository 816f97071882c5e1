"""One program the whole way: original, scan, both rewrites, rehearsal, coverage, verify."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.board import limited, packages, suite
from benchmarks.board.outcome import NEEDS_GPU, Attempt, Observed, attempt, shorten
from benchmarks.board.programs import DATA, Program
from benchmarks.public_projects import rewritten
from joymigrate.errors import JoyError
from joymigrate.journey import losses
from joymigrate.journey.steps.verify import other_path
from joymigrate.model import Style, Tier

ROOT = Path(__file__).parents[2]
HIDDEN = Path(__file__).with_name("hidden")  # what is not to be found
DIED = re.compile(r"the program ended with exit code [1-9]\d*")
ROUNDING = 1e-2  # losses of other kernels after some steps; the figure itself stands in the row
QUOTED = 300  # characters of an error that a row quotes
BATCHES = "1GiB"  # of loaders, for programs that shuffle on a device only
JOYMIGRATE = (sys.executable, "-m", "joymigrate")


def lay(program: Program, sources: Path | None, folder: Path) -> Path:
    """A copy of the program's part of its checkout, with its data; ValueError without one."""
    target = folder / "original"
    if sources is not None:
        source = sources / program.checkout / program.folder
        if not source.is_dir():
            raise ValueError(f"no checkout of {program.repository} at {source}")
        leave = shutil.ignore_patterns(".git", ".joymigrate")
        shutil.copytree(source, target, ignore=leave, symlinks=True)
    else:
        whole = folder / "checkout"
        url = f"https://github.com/{program.repository}"
        subprocess.run(["git", "clone", "-q", "--no-checkout", url, str(whole)], check=True)
        subprocess.run(["git", "checkout", "-q", program.commit], cwd=whole, check=True)
        shutil.rmtree(whole / ".git")
        shutil.move(str(whole / program.folder), target)
    if program.data:
        name, *words = shlex.split(program.data)
        subprocess.run([sys.executable, str(DATA / f"{name}.py"), *words], cwd=target, check=True)
    return target


def travel(program: Program, sources: Path | None, folder: Path) -> tuple[Observed, dict[str, Any]]:
    """What was observed, and the figures of the row. Every run happens in a copy under `folder`."""
    copies = folder / "run" / "copies"  # programs look for data in ../data and ../../data
    copies.mkdir(parents=True)
    original = lay(program, sources, copies)
    direct, agnostic = copies / "direct", copies / "agnostic"
    shutil.copytree(original, direct, symlinks=True)
    shutil.copytree(original, agnostic, symlinks=True)
    row: dict[str, Any] = {}
    wrong = rewrite_both(direct, agnostic, row)

    if program.suite:
        return run_suite(program, original, direct, wrong, folder, row), row
    words = shlex.split(program.baseline or program.command)
    bundle = folder / "base.jmb"
    ask = ["verify", "record", "--force", "-o", str(bundle), "--steps", "0-2"]
    ask += ["--batches", BATCHES, "--", *words]
    ended = run(program, ask, original, folder / "original.log")
    first = attempt(ended.code, ended.text, ended.stopped)
    row["original"] = figures(first, ended)
    if wrong or not (first.well or goes_on(first)):
        nothing, alone = Attempt(1), ""
        if not (wrong or first.well or first.stopped):
            plain = run(program, words, original, folder / "plain.log", plain=True)
            by_itself = attempt(plain.code, plain.text, plain.stopped)
            if by_itself.well:
                died = DIED.search(ended.text)
                alone = died[0] if died else first.error
            else:  # its own words, not those of the recorder
                first = by_itself
                row["original"] = figures(first, plain)
        lacks = missing(sources, program) if sources is not None and not first.well else ()
        return Observed(first, nothing, nothing, tuple(wrong), recording=alone, lacks=lacks), row

    on_chip = chip_run(program, direct, folder, row)
    compared: dict[str, str] = {}
    if first.well and on_chip.well:
        compare_losses(folder, compared, row)
    recorded = bundle if first.well else None  # half a recording is nothing to hold against
    again, repeats = replay(program, agnostic, original, recorded, folder, compared, row)
    on_given_batches(compared, row)
    refused = tuple(str(one) for one in row.get("refused", ()))
    seen = Observed(
        original=first,
        direct=on_chip,
        agnostic=again,
        refused=refused,
        compared=compared,
        repeats=repeats,
        operators=int(row.get("operators", 0)),
        phase=phase_of(row.get("verify", {}).get("first_divergence") or {}),
        reason=str(row.get("verify", {}).get("reason") or ""),
    )
    return seen, row


def missing(sources: Path, program: Program) -> tuple[str, ...]:
    """Files that the repository names at this commit and the checkout does not hold: a mirror may
    leave out the largest."""
    checkout = sources / program.checkout
    asked = ["git", "ls-tree", "-r", "--name-only", "HEAD"]
    done = subprocess.run(asked, cwd=checkout, capture_output=True, text=True)
    return tuple(name for name in done.stdout.splitlines() if not (checkout / name).exists())


def run_suite(
    program: Program,
    original: Path,
    direct: Path,
    wrong: list[str],
    folder: Path,
    row: dict[str, Any],
) -> Observed:
    """A library's own tests: as they are on the CPU, the direct style on the simulated chip."""
    reports = [folder / f"{side}.xml" for side in ("original", "direct")]
    words = suite.asks(program.baseline or program.command, reports[0])
    ended = run(program, words, original, folder / "original.log", plain=True)
    first = attempt(ended.code, ended.text, ended.stopped)
    row["original"] = figures(first, ended)
    report = folder / "rehearse.json"
    words = suite.asks(program.chip or program.command, reports[1])
    ask = ["rehearse", "-q", "--format", "json", "-o", str(report), "--", *words]
    ended = run(program, ask, direct, folder / "direct.log")
    on_chip = attempt(ended.code, ended.text, ended.stopped)
    row["direct"] = figures(on_chip, ended)
    if report.is_file():
        read_rehearsal(json.loads(report.read_text(encoding="utf-8")), row)
    sides = [suite.read(one) for one in reports]
    if first.stopped or on_chip.stopped or not sides[0]:
        return Observed(first, on_chip, on_chip, tuple(wrong))
    row["tests"] = suite.compare(*sides)
    counts = row["tests"]["counts"]
    touched = int(row.get("calls", 0)) >= max(1, counts.get("same", 0))
    return Observed(first, on_chip, on_chip, tuple(wrong), tests=counts, touched=touched)


def phase_of(first: Mapping[str, Any]) -> str:
    """Where values differ first; a gradient that is missing at an input is no other data."""
    given = first.get("stage") == "S1" and "batch" in str(first.get("op"))
    if given:  # to a model, or handed out by a loader: no phase of a step
        return "input"
    lost = "gradient" in str(first.get("evidence"))
    return "gradient" if lost else str(first.get("phase") or "")


def read_first(verdict: Path) -> Mapping[str, Any]:
    """The first divergence of a verdict, empty where there is none."""
    found: Mapping[str, Any] = json.loads(verdict.read_text(encoding="utf-8"))
    return found.get("first_divergence") or {}


def goes_on(original: Attempt) -> bool:
    """Whether the chip is tried although the original did not end well: it wants a GPU."""
    return not original.stopped and bool(NEEDS_GPU.search(original.error))


def rewrite_both(direct: Path, agnostic: Path, row: dict[str, Any]) -> list[str]:
    """Rewrite both copies in place, twice; what went wrong."""
    wrong: list[str] = []
    for style, root in ((Style.DIRECT, direct), (Style.AGNOSTIC, agnostic)):
        try:
            found, files, broken = rewritten(root, style, unsafe=False)
            second = rewritten(root, style, unsafe=False)[1]
        except (JoyError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            wrong.append(f"{style.value}: {type(error).__name__}: {error}")
            continue
        wrong += [f"{style.value}: {name} cannot be read any more" for name in broken]
        wrong += [f"{style.value}: a second rewrite changes more"] * bool(second)
        if style is Style.DIRECT:
            counts = Counter(finding.tier for finding in found.findings)
            row["sites"] = {tier.value: counts[tier] for tier in Tier}
            row["files"] = found.scanned
            row["changed"] = files
    return wrong


def chip_run(program: Program, project: Path, folder: Path, row: dict[str, Any]) -> Attempt:
    """The direct style on the simulated chip, its operators recorded as it runs."""
    report, trace = folder / "rehearse.json", folder / "trace.jsonl.gz"
    inner = [*JOYMIGRATE, "profile", "record", "-o", str(trace), "--"]
    ask = ["rehearse", "-q", "--format", "json", "-o", str(report), "--", *inner]
    ended = run(
        program,
        [*ask, *shlex.split(program.chip or program.command)],
        project,
        folder / "direct.log",
    )
    found = attempt(ended.code, ended.text, ended.stopped)
    row["direct"] = figures(found, ended)
    if report.is_file():
        read_rehearsal(json.loads(report.read_text(encoding="utf-8")), row)
    if trace.is_file():
        target = folder / "coverage.json"
        ask = ["profile", "coverage", str(trace), "--to", "ascend", "--format", "json"]
        run(program, [*ask, "-o", str(target)], folder, folder / "coverage.log")
        if target.is_file():
            covered = json.loads(target.read_text(encoding="utf-8"))
            lacking = ("cpu_fallback", "missing", "unknown")
            row["coverage"] = {
                "calls_pct": round(100 * float(covered["share"]["calls"]), 2),
                "operators": len(covered["ops"]),
                "lacking": sorted({o["op"] for o in covered["ops"] if o["status"] in lacking}),
            }
    return found


def read_rehearsal(found: dict[str, Any], row: dict[str, Any]) -> None:
    """The figures of a rehearsal's report that a row keeps."""
    row["operators"] = found["operators"]
    row["calls"] = found["calls"]
    row["grades"] = found["grades"]
    row["judged"] = found["arguments_judged"]
    row["fallbacks"] = sorted({str(one.get("op")) for one in found["fallbacks"]})
    row["traps"] = [
        f"{one['trap']} {shorten(one.get('where', ''))}".strip() for one in found["traps"]
    ]
    row["unsimulated"] = [str(one.get("op", one)) for one in found["unsimulated"]]
    row["refused"] = [
        " ".join(str(one.get("message") or one.get("op")).split())[:QUOTED]
        for one in found["refusals"]
    ]


def replay(
    program: Program,
    agnostic: Path,
    original: Path,
    bundle: Path | None,
    folder: Path,
    compared: dict[str, str],
    row: dict[str, Any],
) -> tuple[Attempt, bool | None]:
    """The agnostic style on the simulated chip, held against the original's recording if any.

    Where the two differ, the original is replayed on the CPU as well: does it repeat itself?
    """
    words = shlex.split(program.chip or program.command)
    log = folder / "agnostic.log"
    if bundle is None or not bundle.exists():
        ended = run(program, ["rehearse", "-q", "--", *words], agnostic, log)
        found = attempt(ended.code, ended.text, ended.stopped)
        row["agnostic"] = figures(found, ended)
        return found, None
    verdict = folder / "verdict.json"
    ask = ["verify", "replay", str(bundle), "--to", "ascend", "--format", "json", "-o"]
    again = agnostic.with_name("given")  # a program may leave files that change its next run
    shutil.copytree(agnostic, again, symlinks=True)
    ended = run(program, [*ask, str(verdict), "--rehearse", "--", *words], agnostic, log)
    if verdict.is_file() and phase_of(read_first(verdict)) == "input":
        row["own_loader"] = "other data"  # and so it was not used
        more = ["--give-batches", "--rehearse", "--", *words]
        ended = run(program, [*ask, str(verdict), *more], again, folder / "given.log")
    if not verdict.is_file():
        found = attempt(ended.code or 1, ended.text, ended.stopped)
        row["agnostic"] = figures(found, ended)
        return found, None
    judged = json.loads(verdict.read_text(encoding="utf-8"))
    crash = (judged.get("target") or {}).get("crash")
    found = attempt(1 if crash else 0, f"{ended.text}\n{crash or ''}", ended.stopped)
    row["agnostic"] = figures(found, ended)
    row["verify"] = {
        "verdict": judged["verdict"],
        "compared": judged["coverage"]["compared"],
        "recorded": judged["coverage"]["recorded"],
        "first_divergence": judged["first_divergence"],
        "reason": str(judged["reason"] or "")[:QUOTED],
        "grade": judged["grade"],
    }
    printed = (judged.get("covered") or {}).get("printed") or {}
    row["verify"]["printed"] = printed
    apart = other_path(agnostic, judged) if judged["verdict"] == "fail" else None
    if apart:
        row["verify"] |= {"verdict": "inconclusive", "reason": str(apart)}
    elif judged["verdict"] == "fail":
        compared["modules"] = "differs"
    elif judged["coverage"]["compared"] and judged["verdict"] == "pass":
        compared["modules"] = "same"
    repeats = None
    if "differs" in compared.values():
        control = folder / "control.json"
        words = shlex.split(program.baseline or program.command)
        ask = ["verify", "replay", str(bundle), "--to", "cpu", "--format", "json", "-o"]
        run(program, [*ask, str(control), "--", *words], original, folder / "control.log")
        if control.is_file():
            said = json.loads(control.read_text(encoding="utf-8"))["verdict"]
            row["control"] = said
            repeats = None if said == "inconclusive" else said == "pass"
    return found, repeats


def compare_losses(folder: Path, compared: dict[str, str], row: dict[str, Any]) -> None:
    """Hold the losses that both sides printed against one another."""
    sides = []
    for name in ("original", "direct"):
        text = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        sides.append([value for _, value in losses.losses(text.splitlines())])
    ours, theirs = sides
    if not ours and not theirs:
        return
    apart = math.inf
    if len(ours) == len(theirs):
        apart = max(
            (abs(a - b) / max(abs(a), abs(b), 1e-3) for a, b in zip(ours, theirs, strict=True)),
            default=0.0,
        )
    row["losses"] = {"original": len(ours), "chip": len(theirs)}
    if math.isfinite(apart):
        row["losses"]["most_apart"] = float(f"{apart:.3g}")
    compared["losses"] = "same" if apart <= ROUNDING else "differs"


def on_given_batches(compared: dict[str, str], row: Mapping[str, Any]) -> None:
    """Losses of a program whose loader makes other data on the chip say nothing; its replay on the
    baseline's batches does."""
    if row.get("own_loader") and compared.get("modules") == "same":
        compared.pop("losses", None)


def run(
    program: Program, words: list[str], cwd: Path, log: Path, *, plain: bool = False
) -> limited.Ended:
    """One joymigrate command within the program's limits; `plain`: the program by itself."""
    environment = {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        "JOYMIGRATE_SEED": "0",
        "PYTHONHASHSEED": "0",
        "JOYMIGRATE_DRAWS": "1",
        "MPLBACKEND": "agg",
        "HF_HUB_OFFLINE": "1",
        **program.environment,
    }
    if plain:  # as on a machine without the chip's package
        environment["JOYMIGRATE_SWITCH"] = "joymigrate.chips.presence:hide_driverless"
    added = str(packages.folder(program.packages)) if program.packages else ""
    own, outer = environment.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")
    starts = str(ROOT / "joymigrate" / "run" / "rehearse" / "start") if plain else ""
    paths = (starts, own, added, str(HIDDEN), str(ROOT), outer)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return limited.run(
        words if plain else [*JOYMIGRATE, *words],
        cwd,
        log,
        seconds=program.seconds,
        gib=program.gib,
        environment=environment,
    )


def figures(found: Attempt, ended: limited.Ended) -> dict[str, Any]:
    """One run in a row."""
    kept: dict[str, Any] = {"code": found.code, "seconds": round(ended.seconds, 1)}
    if found.stopped:
        kept["stopped"] = found.stopped
    if found.error:
        kept["error"] = found.error[:QUOTED]
        kept["where"] = found.where
    return kept
