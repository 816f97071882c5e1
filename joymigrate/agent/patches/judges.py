"""The judges that run a patched tree: on this host, on the simulated chip, both compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.agent.migration_state import read_object
from joymigrate.agent.patches.guard import PatchRefusal
from joymigrate.errors import JoyError
from joymigrate.journey.context import CompletedCommand, StepContext
from joymigrate.journey.run_failure import explain
from joymigrate.journey.steps import baseline, rehearse, verify

AGAIN = "a rewrite of the patched tree would change it again"
HOST = "on this host it ends with {code}: {said}"
OTHER = "on this host it computes other values than before: {names}"
SAME = "the program gets no further than before: {said}"
SHORTER = "the program stops earlier than before, after {calls} of {before} calls"
LESS = "less runs on the chip than before: {names}"
NOTHING = "the program ran to its end, and not one of its operators on the chip"
APART = "its values part from the original's: {said}"
UNPROVEN = "its values are not decided: {said}"
BITS = (".safetensors", "log.json", "watch.json")  # of a recording: what was computed


@dataclass(frozen=True, slots=True)
class Before:
    """What the tree without the patch does: its recording, and its rehearsal with the stop."""

    recording: Path
    rehearsal: Mapping[str, Any]
    stop: Mapping[str, Any]


def judge_run(at: StepContext, tree: Path, folder: str, before: Before) -> Iterator[PatchRefusal]:
    """Every refusal of the judges in their order; `folder` is below the journey's.

    The first judge that refuses is the last that is asked: what it saw explains the rest.
    """
    for judge in (judge_rewrite, judge_host, judge_chip):
        found = list(judge(at, tree, folder, before))
        yield from found
        if found:
            return


def judge_rewrite(
    at: StepContext, tree: Path, folder: str, before: Before
) -> Iterator[PatchRefusal]:
    """The written tree is one that a rewrite has nothing left to write in."""
    request = at.request
    words = ["rewrite", ".", "--to", request.chip, "--style", request.style, "--check", "-q"]
    done = at.joymigrate(f"{folder}/rewrite.txt", *words, ok=range(256), cwd=tree)
    if done.code:
        yield PatchRefusal("origin-again", "", f"{AGAIN}: {end_of(done)}")


def judge_host(at: StepContext, tree: Path, folder: str, before: Before) -> Iterator[PatchRefusal]:
    """The program on this machine's processor computes, bit for bit, what it did before."""
    bundle = at.path(f"{folder}/host.jmb")
    done = baseline.record_again(at, bundle, f"{folder}/host.txt", tree)
    if not baseline.program_ended_well(done):
        said = HOST.format(code=done.code, said=end_of(done))
        yield PatchRefusal("other-values", "", said)
        return
    apart = differing(read_bits(before.recording), read_bits(bundle))
    if apart:
        apart = differing(read_series(before.recording), read_series(bundle)) or apart
        yield PatchRefusal("other-values", "", OTHER.format(names=", ".join(apart[:4])))


def read_bits(bundle: Path) -> dict[str, str]:
    """The hashes of what a recording holds of values, without places and times."""
    try:
        raw = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise JoyError("a recording can't be read", where=str(bundle)) from None
    return {name: one["sha256"] for name, one in raw["files"].items() if name.endswith(BITS)}


def read_series(bundle: Path) -> Mapping[str, Any]:
    """What a recording watched at every step, by names that people know: the seed of a generator,
    a module's inputs, the loss. Of the first rank."""
    found: Mapping[str, Any] = read_object(bundle / "rank-0" / "watch.json").get("series", {})
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The parts of two recordings that are not the same, in the order of the first."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def judge_chip(at: StepContext, tree: Path, folder: str, before: Before) -> Iterator[PatchRefusal]:
    """The rehearsal gets further with no less work on the chip; at its end its values pass."""
    place = at.path(f"{folder}/rehearse.json")
    words = rehearse.words(at.request, at.chip_here, str(place))
    done = at.joymigrate(f"{folder}/rehearse.txt", *words, ok=range(256), cwd=tree)
    found = read_object(place)
    code = int(found.get("exit_code", done.code) or 0)
    yield from compare_work(before.rehearsal, found)
    if not code:
        yield from compare_refusals(before.rehearsal, found)
        yield from judge_values(at, tree, folder, before)
        return
    stop = explain(at, done, on_chip=True, refusals=found.get("refusals", ()), folder=tree)
    after, said = stop.document(), f"{stop.line} {stop.message}"
    calls = {"calls": found.get("calls", 0), "before": before.rehearsal.get("calls", 0)}
    if calls["calls"] < calls["before"]:
        yield PatchRefusal("no-further", stop.line, SHORTER.format(**calls))
    elif is_no_further(before.stop, after, calls["calls"] > calls["before"]):
        yield PatchRefusal("no-further", stop.line, SAME.format(said=said))


def is_no_further(before: Mapping[str, Any], after: Mapping[str, Any], more: bool) -> bool:
    """Whether a stop is the one before, or another one in its file with no more work done."""
    near = same_file(after["line"], before["line"])
    return near and (after["message"] == before["message"] or not more)


def same_file(one: str, other: str) -> bool:
    """Whether two places lie in one file: an added line moves those below it."""
    return one.rpartition(":")[0] == other.rpartition(":")[0]


def compare_work(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[PatchRefusal]:
    """No kernel of the chip is called less often than before the stop, and a program that runs to
    its end calls some."""
    old, new = before.get("kernels") or {}, after.get("kernels") or {}
    refused = {one.get("kernel") for one in before.get("refusals") or ()}  # to be replaced
    less = [f"{name} {new.get(name, 0)} of {count}" for name, count in old.items()
            if name not in refused and new.get(name, 0) < count]  # fmt: skip
    if less:
        yield PatchRefusal("moved-to-host", "", LESS.format(names=", ".join(less[:4])))
    elif after.get("exit_code") == 0 and not after.get("calls"):
        yield PatchRefusal("moved-to-host", "", NOTHING)


def compare_refusals(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[PatchRefusal]:
    """Of the calls that the chip would refuse some are gone, where there were any."""
    old, new = (sum(row["calls"] for row in one.get("refusals") or ()) for one in (before, after))
    if old and new >= old:
        yield PatchRefusal("no-further", "", SAME.format(said=after["refusals"][0]["message"]))


def judge_values(
    at: StepContext, tree: Path, folder: str, before: Before
) -> Iterator[PatchRefusal]:
    """The program on the simulated chip against the recording of the original."""
    result = at.path(f"{folder}/verdict.json")
    words = verify.words(at.request, at.chip_here, str(before.recording), str(result))
    done = at.joymigrate(f"{folder}/verify.txt", *words, ok=range(256), cwd=tree)
    yield from judge_verdict(read_object(result), end_of(done))


def judge_verdict(found: Mapping[str, Any], said: str) -> Iterator[PatchRefusal]:
    """A verdict that is no pass. One that decides nothing proves nothing: the patch stays in the
    ledger for a person. `said`: the command's last line."""
    verdict = found.get("verdict")
    if verdict == "inconclusive":
        yield PatchRefusal("not-proven", "", UNPROVEN.format(said=found.get("reason") or said))
    elif verdict != "pass":
        apart = found.get("first_divergence") or {}
        place = f"{apart.get('module', '')} {apart.get('metric', '')}".strip()
        yield PatchRefusal("verdict-worse", "", APART.format(said=place or said))


def end_of(done: CompletedCommand) -> str:
    """The last line that a command said."""
    lines = done.text().splitlines()
    return lines[-1][:300] if lines else ""
