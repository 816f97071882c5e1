"""S3 and S4: what the target's modules made of the baseline's inputs, against the golden."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.cause import suspect
from joymigrate.verify.display import Display
from joymigrate.verify.model import Difference, Phase, Status
from joymigrate.verify.tolerance import Tolerance

NOTHING: Mapping[str, Any] = {}


@dataclass(slots=True)
class Judged:
    """A difference with what its cause is told from."""

    difference: Difference
    place: str  # root:path of the module whose code is judged
    kind: str  # its class
    cause: tuple[str, str] | None = None


@dataclass(slots=True)
class Forced:
    """All judged cuts, by stage; which modules were covered; what kept passes from running."""

    rows: list[Judged] = field(default_factory=list)
    covered: set[str] = field(default_factory=set)  # places
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    passes: int = 0


def judge_forced(
    table: Mapping[str, Any],
    replay: Mapping[str, Any],
    program: Mapping[str, Any],
    target_program: Mapping[str, Any],
    tolerance: Tolerance,
) -> Forced:
    """Judge every lesson of a replay by the baseline's table."""
    found = Forced()
    known = {(e["root"], e["number"]): e for e in table.get("lessons", [])}
    view = Display(program)
    kinds = classes(program)
    differing = settings(program, target_program, replay)
    for lesson in replay.get("lessons", []):
        golden = known.get((lesson["root"], lesson["number"]))
        if golden is None:
            continue
        found.passes += 1
        if lesson["error"]:
            found.errors.append(f"{view(lesson['root'] + ':')}: {lesson['error']}")
        judge = Lesson(golden, lesson, tolerance, view, kinds, differing)
        found.rows += judge.rows()
        found.covered |= judge.covered
        found.notes += [
            Text(
                "{module}: no gradients compared ({why})",
                module=view(lesson["root"] + ":" + path),
                why=why,
            )
            for path, why in lesson["failures"].items()
        ]
    return found


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


class Lesson:
    """One pass of the target over one call of a root."""

    def __init__(
        self,
        golden: Mapping[str, Any],
        lesson: Mapping[str, Any],
        tolerance: Tolerance,
        view: Display,
        kinds: Mapping[str, str],
        differing: Mapping[str, Mapping[str, tuple[Any, Any]]],
    ) -> None:
        self.golden = {tuple(row[:4]): row for row in golden["rows"]}
        self.lesson = lesson
        self.golden_draws = golden["draws"]
        self.native = lesson["pass"] == "native"
        self.tolerance = tolerance
        self.view = view
        self.kinds = kinds
        self.differing = differing
        self.root = lesson["root"]
        self.step = lesson.get("step")
        self.covered: set[str] = set()
        types = {row.get("dtype") for row in lesson["rows"]}
        # Between bfloat16 products a float32 sum is no better than what it is fed.
        self.coarse = next((t for t in ("bfloat16", "float16") if t in types), None)

    def rows(self) -> Iterable[Judged]:
        """Every cut that both sides have, and what only the baseline has."""
        made = []
        seen = {(r["path"], r["call"], r["kind"], r["leaf"]): r for r in self.lesson["rows"]}
        called = {(r["owner"], r["owner_call"]) for r in self.lesson["rows"]}
        for key, row in self.golden.items():
            if key[2] == "in" and key[0] == row[4] and key[1] == row[5]:
                continue  # the root's own input: nobody's work
            mine = seen.get(key)
            if mine is None:
                if key[2] == "grad" and (row[4], row[5]) not in called:
                    continue
                made.append(self.judged(key, row, None, *self.absent(key, row)))
                continue
            made.append(self.judged(key, row, mine, *self.measured(key, row, mine)))
            if key[2] == "out":
                self.covered.add(f"{self.root}:{key[0]}")
        return made

    def absent(self, key: Any, row: Any) -> tuple[Status, str, Any, Any, str | None]:
        """What only the baseline has."""
        return Status.UNCOMPARED, "relative_l2", None, None, "the target has no such value"

    def measured(
        self, key: Any, row: Any, mine: Mapping[str, Any]
    ) -> tuple[Status, str, Any, Any, str | None]:
        """Status, metric, value and limit of one cut; for errors the ratio to the baseline's."""
        dtype, shape, missing = row[7], row[8], row[9]
        if missing != mine["missing"]:
            which = "the target" if mine["missing"] else "the baseline"
            if key[2] == "grad" and not self.matters(row, mine):
                return Status.PASS, "gradient", 0.0, 0.0, None
            return (
                Status.FAIL,
                "gradient",
                None,
                None,
                Text("{which} has no gradient here", which=which),
            )
        if missing:
            return Status.IDENTICAL, "gradient", 0.0, 0.0, None
        if mine["shape"] != shape:
            return (
                Status.FAIL,
                "shape",
                None,
                None,
                Text("shape {golden} became {target}", golden=shape, target=mine["shape"]),
            )
        if "error" not in mine:
            return Status.UNCOMPARED, "relative_l2", None, None, "the tensor did not fit --budget"
        error = float(mine["error"])
        if not math.isfinite(error):
            return Status.NAN_MISMATCH, "nonfinite", error, 0.0, "NaN or inf on one side only"
        if error == 0:
            return Status.IDENTICAL, "error_ratio", 0.0, self.limit(key, "ratio_pass"), None
        base = row[13] if self.native and row[13] else row[12]
        base = max(base, self.floor(dtype, mine["dtype"]), float(mine.get("own", 0.0)))
        if base == 0:
            return Status.FAIL, "mismatch", error, 0.0, "whole numbers differ"
        ratio = error / base
        if ratio <= self.limit(key, "ratio_pass"):
            status = Status.PASS
        elif ratio <= self.limit(key, "ratio_warn") or (base > 0.05 and ratio < 100):
            status = Status.WARN
        else:
            status = Status.FAIL
        return status, "error_ratio", ratio, self.limit(key, "ratio_warn"), None

    def matters(self, row: Any, mine: Mapping[str, Any]) -> bool:
        """A gradient that is None on one side and zero on the other is no difference."""
        return not (mine["missing"] and row[11] == 0.0)

    def stage(self, key: Any) -> str:
        """Forward in fp32 is S3; the program's own dtype, and gradients, are S4."""
        return "S4" if self.native or key[2] == "grad" else "S3"

    def limit(self, key: Any, name: str) -> float:
        """The ratio of errors that still passes, or still warns."""
        return self.tolerance.limit(self.stage(key), name)

    def floor(self, golden: str, target: str) -> float:
        """The smallest error that counts."""
        exact = ("int", "uint", "bool")
        if golden.startswith(exact):
            return 0.0
        coarse = self.coarse if self.native and self.coarse else target
        return self.tolerance.floor("S4" if self.native else "S3", coarse)

    def judged(
        self,
        key: Any,
        row: Any,
        mine: Mapping[str, Any] | None,
        status: Status,
        metric: str,
        value: Any,
        limit: Any,
        reason: str | None,
    ) -> Judged:
        """One difference under the module whose code made it."""
        owner, call, order = row[4], row[5], row[6]
        place = f"{self.root}:{owner}"
        difference = Difference(
            module=self.view(place),
            call=call,
            phase=(Phase.BACKWARD if key[2] == "grad" else Phase.FORWARD).value,
            op=self.what(key, owner, call),
            metric=metric,
            value=value,
            limit=limit,
            status=status,
            stage=self.stage(key),
            step=self.step,
            target_error=mine.get("error") if mine else None,
            baseline_error=row[13] if self.native else row[12],
            reason=reason,
            order=order,
        )
        kind = self.kinds.get(place, owner)
        made = Judged(difference, place, kind)
        if status.failed and mine is not None:
            made.cause = self.cause(key, place, f"{owner}#{call}", mine)
        return made

    def cause(self, key: Any, place: str, spot: str, mine: Mapping[str, Any]) -> tuple[str, str]:
        """What the numbers suggest."""
        if mine.get("missing"):
            return "missing gradient", "no gradient reaches this input or parameter"
        cause, evidence = suspect(
            mine.get("signature", {}),
            float(mine.get("error", 0.0)),
            draws=(self.golden_draws.get(spot), self.lesson["draws"].get(spot)),
            settings=self.differing.get(place),
        )
        uncalled = self.uncalled(spot.rpartition("#")[0])
        if cause == "semantics" and uncalled:
            module = self.view(f"{self.root}:{uncalled[0]}")
            evidence = Text("the target does not call {module}", module=module)
        return cause, evidence

    def uncalled(self, owner: str) -> list[str]:
        """Modules right below one that only the baseline calls."""
        seen = {(r["path"], r["kind"]) for r in self.lesson["rows"]}
        ours = {key[0] for key in self.golden if key[2] == "out" and key[0] != owner}
        below = {path for path in ours if path.rpartition(".")[0] == owner}
        return sorted(path for path in below if (path, "out") not in seen)

    def what(self, key: Any, owner: str, call: int) -> str:
        """Which value of the module: `out`, `handed to mlp.act in 0`, `gradient of weight`."""
        path, _, kind, leaf = key
        if kind == "in":
            short = path.removeprefix(f"{owner}.") if owner else path
            return Text("input {leaf} of {short}", leaf=leaf, short=short)
        if kind == "grad":
            return Text("gradient of {leaf}", leaf=leaf)
        if kind == "buffer":
            return f"buffer {leaf}"
        return f"output {leaf}".rstrip()
