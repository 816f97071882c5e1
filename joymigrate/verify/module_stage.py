"""S3 and S4: what the target's modules made of the baseline's inputs, against float64."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.calls import cause_of, same_value
from joymigrate.verify.cause import of_operator, suspect
from joymigrate.verify.cut import Cut
from joymigrate.verify.display import Display
from joymigrate.verify.judge import Judge
from joymigrate.verify.model import Cause, Difference, Phase, RecordStatus
from joymigrate.verify.tolerance import EPSILON, Tolerance
from joymigrate.verify.tolerance_file import JudgeLimits

NOTHING: Mapping[str, Any] = {}
MOST_UNSHAKEN = 10.0  # times an own error in the program's type that was measured without noise
FREEDOM = 30.0  # degrees of freedom of the prior for values on equal inputs
UNTOLD = 0.05  # an own error of the baseline's above which a value can hardly be told


@dataclass(slots=True)
class JudgedDifference:
    """A difference with what its cause is told from."""

    difference: Difference
    place: str  # root:path of the module whose code is judged
    kind: str  # its class
    rounding: bool = False  # may be one shortened arithmetic, which every module shows


UNLIKE = (
    "the replay does not stand for the run: a copy of the module, on the call's own inputs, makes "
    "something else than the call did"
)


@dataclass(slots=True)
class ModuleStage:
    """All judged cuts, by stage; which modules were covered; what kept passes from running; plain
    numbers (place, path) that were given, as the baseline does not repeat its own."""

    rows: list[JudgedDifference] = field(default_factory=list)
    covered: set[str] = field(default_factory=set)  # places
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unrepeated: set[tuple[str, str]] = field(default_factory=set)
    drawn: dict[str, list[str]] = field(default_factory=dict)  # module → what it draws at random
    uncopied: list[str] = field(default_factory=list)  # the same in the baseline
    unlike: Difference | None = None  # the first module whose copy does not do what it does
    # errors by the baseline's, of all cuts, and whether in the program's own type
    rounding: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    passes: int = 0

    def coarser(self) -> float:
        """How many times coarser than the baseline the target rounds, as most modules show on equal
        inputs; a fault is in few of them. A narrower type of the target's is coarser."""
        measured = self.rounding[True] or self.rounding[False]
        return max(statistics.median(measured), 1.0) if measured else 1.0

    def uncompared(self) -> list[tuple[int, Any]]:
        """(how many, why) of the values of replayed calls that were not held against anything."""
        rows = [judged.difference for judged in self.rows]
        left = (row for row in rows if not row.status.compared)
        counts = Counter(row.reason or "drawn at random, or on one side only" for row in left)
        return [(number, reason) for reason, number in counts.items()]


def most_ratio(table: Mapping[str, Any], limits: JudgeLimits, processes: int = 1) -> float:
    """How many times its own error the baseline's values at cuts may be missed by: the judge's
    factor, where inputs are equal and nothing drifts. So many processes have such a table."""
    count = processes * sum(len(entry["rows"]) for entry in table.get("lessons", ()))
    held = replace(limits, spread=limits.equal_inputs, weight=FREEDOM)
    return Judge(held, tests=count).factor()


def judge_forced(
    table: Mapping[str, Any],
    replay: Mapping[str, Any],
    program: Mapping[str, Any],
    target_program: Mapping[str, Any],
    tolerance: Tolerance,
    processes: int = 1,
) -> ModuleStage:
    """Judge every replayed call by the baseline's table."""
    found = ModuleStage()
    known = {(e["root"], e["path"], e["number"]): e for e in table.get("lessons", [])}
    view = Display(program)
    kinds = classes(program)
    differing = settings(program, target_program, replay)
    most = most_ratio(table, tolerance.judge, processes)
    for replayed in replay.get("lessons", []):
        stored = known.get((replayed["root"], replayed.get("path", ""), replayed["number"]))
        if stored is None:
            continue
        found.passes += 1
        if replayed["error"]:
            found.errors.append(f"{view(replayed['root'] + ':')}: {replayed['error']}")
        place = view(f"{replayed['root']}:{replayed.get('path', '')}")
        found.unrepeated |= {(place, number) for number in replayed.get("unrepeated", ())}
        for spot, draws in replayed["draws"].items():
            names = [str(draw[0]) for draw in draws]
            module = view(f"{replayed['root']}:{spot.rpartition('#')[0]}")
            found.drawn.setdefault(module, list(dict.fromkeys(names)))
        judge = PassJudge(stored, replayed, tolerance, most, view, kinds, differing)
        found.rows += called_otherwise(judge, stored, replayed)
        found.covered |= judge.covered
        found.rounding[judge.native] += judge.rounding
        found.notes += [
            Text(
                "{module}: no gradients compared ({why})",
                module=view(replayed["root"] + ":" + path),
                why=why,
            )
            for path, why in replayed["failures"].items()
        ]
    return found


def unlike_copies(
    table: Mapping[str, Any], replay: Mapping[str, Any], view: Display
) -> tuple[Difference | None, list[str]]:
    """The first module of the target whose copy, on the call's own inputs, does not make the call's
    own outputs; and modules of which the same is true in the baseline. Where there are such, what
    the target's copies do otherwise is no news."""
    roots, renamed = replay.get("roots", {}), replay.get("alignment", {})
    ours = [i for i in table.get("witness", ()) if i["first"] is not None]
    if ours:
        return None, sorted({view(f"{i['root']}:{i['first']['path']}") for i in ours})
    item = next((i for i in replay.get("witness", ()) if i["first"] is not None), None)
    if item is None:
        return None, []
    root, first = item["root"], item["first"]
    back = {there: here for here, there in renamed.get(root, NOTHING).get("renamed", {}).items()}
    place = f"{roots.get(root, root)}:{back.get(first['path'], first['path'])}"
    made = Difference(
        module=view(place),
        phase=Phase.FORWARD.value,
        op=f"output {first['leaf']}".rstrip(),
        metric="witness",
        value=first["error"],
        status=RecordStatus.WARN,
        stage="S4",
        step=item["step"],
        reason=UNLIKE,
    )
    return made, []


def called_otherwise(
    judge: PassJudge, stored: Mapping[str, Any], replayed: Mapping[str, Any]
) -> list[JudgedDifference]:
    """All rows of a pass. What a model computes otherwise because it is called with other plain
    numbers (positions, slots) is the fault of its caller; what it computes otherwise with the
    baseline's numbers is its own."""
    rows, view = list(judge.rows()), judge.view
    start = f"{stored['path']}#0"
    a, b = (side.get("scalars", {}).get(start, NOTHING) for side in (stored, replayed))
    other = next(iter(other_numbers(a, b)), None)
    failed = [item for item in rows if item.difference.status.failed]
    if other is None or not failed:
        return rows
    if replayed.get("rows_by_its_numbers"):
        judge.replayed = {**replayed, "rows": replayed["rows_by_its_numbers"]}
        own = list(judge.rows())
        if any(item.difference.status.failed for item in own):
            return own
    words = Text("called with {have}, with {want} in the baseline", have=b[other], want=a[other])
    first, place = failed[0], f"{replayed['root']}:{replayed.get('path', '')}"
    for item in failed[1:]:
        warned = replace(item.difference, status=RecordStatus.WARN, consequence_of=view(place))
        item.difference = warned
    first.place = place
    first.difference = replace(
        first.difference,
        cause=Cause(lines=first.difference.cause.lines),
        module=view(place),
        phase=Phase.INPUT.value,
        op=f"input {other}",
        metric="number",
        value=None,
        limit=None,
        reason=words,
    )
    return rows


def other_numbers(mine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the first plain numbers and truths, by path, that are others in the second."""
    numbers = {k: v for k, v in mine.items() if isinstance(v, int | float)}
    there = {k: v for k, v in other.items() if isinstance(v, int | float)}
    return {k: v for k, v in numbers.items() if not same_value(v, there.get(k, v))}


def classes(program: Mapping[str, Any]) -> dict[str, str]:
    """Class by place."""
    return {
        f"{root}:{module['path']}": module["class"]
        for root, modules in program.get("modules", {}).items()
        for module in modules
    }


def settings(
    baseline: Mapping[str, Any], target: Mapping[str, Any], replay: Mapping[str, Any]
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Settings of modules (eps, p, …) that differ, by the baseline's place."""
    made: dict[str, dict[str, tuple[Any, Any]]] = {}
    back = {b: t for t, b in replay.get("roots", {}).items()}
    for root, modules in baseline.get("modules", {}).items():
        other = back.get(root, root)
        renames = replay.get("alignment", {}).get(other, NOTHING).get("renamed", NOTHING)
        theirs = {m["path"]: m for m in target.get("modules", {}).get(other, [])}
        for module in modules:
            twin = theirs.get(renames.get(module["path"], module["path"]))
            if twin is None:
                continue
            changed = {
                key: (value, twin["settings"][key])
                for key, value in module["settings"].items()
                if key in twin["settings"] and twin["settings"][key] != value
            }
            if changed:
                made[f"{root}:{module['path']}"] = changed
    return made


class PassJudge:
    """One pass of the target over one call of a root."""

    def __init__(
        self,
        stored: Mapping[str, Any],
        replayed: Mapping[str, Any],
        tolerance: Tolerance,
        most: float,
        view: Display,
        kinds: Mapping[str, str],
        differing: Mapping[str, Mapping[str, tuple[Any, Any]]],
    ) -> None:
        cuts = (Cut(*row) for row in stored["rows"])
        self.stored = {cut.key: cut for cut in cuts}
        self.raw, self.replayed = stored, replayed
        self.stored_draws = stored["draws"]
        self.native = replayed["pass"] == "native"
        unshaken = self.native and stored["native"] and not stored.get("shaken")
        self.tolerance = tolerance
        self.most = max(most, MOST_UNSHAKEN) if unshaken else most  # times the baseline's own error
        self.view = view
        self.kinds = kinds
        self.differing = differing
        self.root = replayed["root"]
        self.step = replayed.get("step")
        self.covered: set[str] = set()
        self.rounding: list[float] = []
        types = {row.get("dtype") for row in replayed["rows"]}
        if stored.get("mixed"):  # autocast inside of a module that returns float32
            types.add("bfloat16")
        # Between bfloat16 products a float32 sum is no better than what it is fed.
        self.coarse = next((t for t in ("bfloat16", "float16") if t in types), None)

    def rows(self) -> Iterable[JudgedDifference]:
        """Every cut that both sides have, and what only the baseline has."""
        made = []
        seen = {(r["path"], r["call"], r["kind"], r["leaf"]): r for r in self.replayed["rows"]}
        called = {(r["owner"], r["owner_call"]) for r in self.replayed["rows"]}
        for key, cut in self.stored.items():
            if cut.kind == "in" and (cut.path, cut.call) == (cut.owner, cut.owner_call):
                continue  # the root's own input: nobody's work
            mine = seen.get(key)
            if mine is None:
                if cut.kind == "grad" and (cut.owner, cut.owner_call) not in called:
                    continue
                made.append(self.judged(cut, None, *self.absent()))
                continue
            made.append(self.judged(cut, mine, *self.measured(cut, mine)))
            untold = "error" in mine and not made[-1].difference.status.compared
            if cut.kind == "out" and not untold:
                self.covered.add(f"{self.root}:{cut.path}")
        return made

    def absent(self) -> tuple[RecordStatus, str, Any, Any, str | None]:
        """What only the baseline has."""
        return RecordStatus.UNCOMPARED, "relative_l2", None, None, "the target has no such value"

    def measured(
        self, cut: Cut, mine: Mapping[str, Any]
    ) -> tuple[RecordStatus, str, Any, Any, str | None]:
        """Status, metric, value and limit of one cut; for errors the ratio to the baseline's."""
        shape, missing = cut.shape, cut.missing
        if missing != mine["missing"]:
            which = "the target" if mine["missing"] else "the baseline"
            if cut.kind == "grad" and not self.matters(cut, mine):
                return RecordStatus.PASS, "gradient", 0.0, 0.0, None
            return (
                RecordStatus.FAIL,
                "gradient",
                None,
                None,
                Text("{which} has no gradient here", which=which),
            )
        if missing:
            return RecordStatus.IDENTICAL, "gradient", 0.0, 0.0, None
        if mine["shape"] != shape:
            return (
                RecordStatus.FAIL,
                "shape",
                None,
                None,
                Text("shape {golden} became {target}", golden=shape, target=mine["shape"]),
            )
        if "error" not in mine:
            return (
                RecordStatus.UNCOMPARED,
                "relative_l2",
                None,
                None,
                "the tensor did not fit --budget",
            )
        error = float(mine["error"])
        if not math.isfinite(error):
            return RecordStatus.NAN_MISMATCH, "nonfinite", error, 0.0, "NaN or inf on one side only"
        if error == 0:
            return RecordStatus.IDENTICAL, "error_ratio", 0.0, self.most, None
        base = max(cut.error if self.native and cut.error else cut.error32, mine.get("own", 0.0))
        if mine["dtype"] in EPSILON:  # the baseline's runs round in float32, or as its own type
            rounds = max(base, EPSILON[mine["dtype"]])
            rounds = rounds if self.raw["native"] else max(cut.error32, EPSILON["float32"])
            self.rounding.append(error / rounds)
        base = max(base, self.floor(cut.dtype, mine["dtype"]))
        if base == 0:
            return RecordStatus.FAIL, "mismatch", error, 0.0, "whole numbers differ"
        ratio = error / base
        if ratio <= self.most:
            return RecordStatus.PASS, "error_ratio", ratio, self.most, None
        if base > UNTOLD and ratio < 100:
            why = "the baseline's own passes over it are too far apart to tell"
            return RecordStatus.UNCOMPARED, "error_ratio", ratio, self.most, why
        return RecordStatus.FAIL, "error_ratio", ratio, self.most, None

    def matters(self, cut: Cut, mine: Mapping[str, Any]) -> bool:
        """A gradient that is None on one side and zero on the other is no difference."""
        return not (mine["missing"] and cut.norm == 0.0)

    def stage(self, cut: Cut) -> str:
        """Forward in fp32 is S3; the program's own dtype, and gradients, are S4."""
        return "S4" if self.native or cut.kind == "grad" else "S3"

    def floor(self, stored: str, target: str) -> float:
        """The smallest error that counts."""
        exact = ("int", "uint", "bool")
        if stored.startswith(exact):
            return 0.0
        coarse = self.coarse if self.native and self.coarse else target
        return self.tolerance.floor("S4" if self.native else "S3", coarse)

    def judged(
        self,
        cut: Cut,
        mine: Mapping[str, Any] | None,
        status: RecordStatus,
        metric: str,
        value: Any,
        limit: Any,
        reason: str | None,
    ) -> JudgedDifference:
        """One difference under the module whose code made it."""
        place = f"{self.root}:{cut.owner}"
        difference = Difference(
            module=self.view(place),
            call=cut.owner_call,
            phase=(Phase.BACKWARD if cut.kind == "grad" else Phase.FORWARD).value,
            op=self.what(cut),
            metric=metric,
            value=value,
            limit=limit,
            status=status,
            stage=self.stage(cut),
            step=self.step,
            target_error=mine.get("error") if mine else None,
            baseline_error=cut.error if self.native else cut.error32,
            reason=reason,
            order=cut.order,
        )
        kind = self.kinds.get(place, cut.owner)
        made = JudgedDifference(difference, place, kind)
        if status.failed and mine is not None:
            cause = self.cause(place, f"{cut.owner}#{cut.owner_call}", mine)
            cause = cause._replace(lines=cause.lines or self.lines(cut.owner))
            error = float(mine.get("error", 1.0))
            made.rounding = "signature" in mine and cause.name is None and error < 1e-2
            made.difference = replace(difference, cause=cause)
        return made

    def cause(self, place: str, spot: str, mine: Mapping[str, Any]) -> Cause:
        """The difference in both sides' calls, or what an experiment or the numbers tell."""
        experiment = mine.get("experiment") or {}
        drawn = self.stored_draws.get(spot), self.replayed["draws"].get(spot)
        if experiment.get("operator"):
            return of_operator(experiment["operator"])
        traces = (side.get("trace", {}).get(spot) for side in (self.raw, self.replayed))
        other = cause_of(*traces) if drawn[0] == drawn[1] else None
        if other is not None:
            return Cause(other.cause, other.words, "diff", other.lines)
        if mine.get("missing"):
            words = "no gradient reaches this input or parameter"
            return Cause("missing gradient", words, "fact")
        return self.told(place, spot, mine, drawn)

    def lines(self, owner: str) -> tuple[str, str] | None:
        """Where a module is called, on both sides."""
        found = [str(side.get("lines", {}).get(owner, "")) for side in (self.raw, self.replayed)]
        return (found[0], found[1]) if any(found) else None

    def told(self, place: str, spot: str, mine: Mapping[str, Any], drawn: Any) -> Cause:
        """What the numbers tell, where both sides make the same calls."""
        cause, evidence = suspect(
            mine.get("signature", {}),
            float(mine.get("error", 0.0)),
            draws=drawn,
            settings=self.differing.get(place),
        )
        uncalled = self.uncalled(spot.rpartition("#")[0])
        if cause is None and uncalled:
            module = self.view(f"{self.root}:{uncalled[0]}")
            cause, evidence = (
                "a call left out",
                Text("the target does not call {module}", module=module),
            )
        return Cause(cause, evidence, "fact" if cause else None)

    def uncalled(self, owner: str) -> list[str]:
        """Modules right below one that only the baseline calls."""
        seen = {(r["path"], r["kind"]) for r in self.replayed["rows"]}
        cuts = self.stored.values()
        ours = {cut.path for cut in cuts if cut.kind == "out" and cut.path != owner}
        below = {path for path in ours if path.rpartition(".")[0] == owner}
        return sorted(path for path in below if (path, "out") not in seen)

    def what(self, cut: Cut) -> str:
        """Which value of the module: `out`, `handed to mlp.act in 0`, `gradient of weight`."""
        kind, leaf, owner = cut.kind, cut.leaf, cut.owner
        if kind == "in":
            short = cut.path.removeprefix(f"{owner}.") if owner else cut.path
            return Text("input {leaf} of {short}", leaf=leaf, short=short)
        if kind == "grad":
            return Text("gradient of {leaf}", leaf=leaf)
        if kind == "buffer":
            return f"buffer {leaf}"
        return f"output {leaf}".rstrip()
