"""S4R: the rest of the step, on the baseline's values, in float64; modes and schedules of the whole
program. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.bundle import Rank
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings, by_step, keep_first
from joymigrate.verify.free import CHANGED, tell_mode
from joymigrate.verify.identity import device_rounding
from joymigrate.verify.judge import Judge
from joymigrate.verify.model import Difference, Phase, RecordStatus
from joymigrate.verify.optimiser_stage import unequal
from joymigrate.verify.plateaus import SERIES
from joymigrate.verify.series import loss_errors
from joymigrate.verify.signs import signs
from joymigrate.verify.tolerance import ROUNDED_LAST

STAGE = "S4R"
UNREPEATED = "repeats.json"  # what another run of the baseline saw differ (`repeat_runs`)
NOT_REPEATED = "the baseline does not repeat it: its second run made another one"
AT_A_PLATEAU = (
    "the rate follows a measured result that rounding has moved over the scheduler's threshold; "
    "given the baseline's results, the scheduler does as the baseline's"
)
OWN_ARITHMETIC = "the device's arithmetic is off from float64 on the same values"
GRADIENT_BACK = "the loss sends back another gradient here"
# What is seen where no calls differ that would tell why.
OTHER_NUMBER = "from the baseline's values this is {target}, {golden} in the baseline"
OTHER_VALUES = "from the baseline's values this is apart from the baseline's"
# Both sides compute in float64 from the same values: what is left is no rounding.
LIMIT = 1e-5
# A plain number was read from a tensor and used again: it carries the run's own rounding.
READ = {False: 1e-3, True: 5e-2}
# The target's own arithmetic against its own float64, and how much worse than the baseline's.
NATIVE = {False: 2e-4, True: 2.0**-5}
RATIO = 10.0
HALF = ("float16", "bfloat16")
RETURNED = 2.0**-7  # a value given back to a model may be rounded to bfloat16
OTHER_SEED = "random numbers that this is computed from differ: no seed, or another"
OTHER_DRAWS = "from the same state of the generator other random numbers are drawn here"
# Draws that make data; others follow from what a model returned, or from its mode.
DATA = ("draw:randn", "draw:rand", "draw:randint", "draw:randperm", "draw:normal")
EARLY, MADE = 2, {False: 1e-3, True: 0.1}  # last step, and how far values may be apart till then
GIVEN = 1e-4  # tensors from elsewhere, in the first step
UNIT = 2.0**-7  # between two neighbours in bfloat16
MEASURED = 0.1  # relative: the same of a measured result, where no other run of the baseline saw it
PHASES = {
    "input": Phase.INPUT,
    "loss": Phase.LOSS,
    "gradients": Phase.GRADIENTS,
    "state": Phase.STATE,
    "output": Phase.OUTPUT,
}


def judge_rest(ours: Rank, theirs: Rank, alike: bool, found: Findings) -> list[Difference]:
    """Every event of the baseline by the target's; `alike`: both have as many processes."""
    view = Display(ours.program)
    a, b = ours.json("tape.json"), theirs.json("tape.json")
    mine = {key_of(e): e for e in a.get("events", [])}
    other = {key_of(e): e for e in b.get("events", [])}
    found.recorded.update(event["kind"] for event in mine.values())
    if not alike:
        for kind in sorted({key[0] for key in mine}):
            why = "each process has its part: the sides have other numbers"
            found.leave_out(kind, found.recorded[kind], why)
        return []
    looked = set(b.get("steps", ()))
    repeats = ours.json(UNREPEATED)
    unrepeated = repeats.get("events", {})
    rows: list[Difference] = []
    for order, (key, event) in enumerate(mine.items()):
        twin = other.get(key)
        why = why_not_judged(event, twin, looked)
        if why is not None:
            found.leave_out(event["kind"], 1, why)
            if twin is not None and "error" in twin:
                found.broken.setdefault(STAGE, twin["error"])
            continue
        found.compared[event["kind"]] += 1
        judge = EventJudge(event, twin, view, order, found)
        judge.unrepeated = frozenset(unrepeated.get(repr(key), {}).get("given", ()))
        judge.shaken = repeats.get("native", {}).get(repr(key), {})
        rows += judge.rows()
    for key in [key for key in other if key not in mine]:
        if key[1] in a.get("steps", ()):
            rows += extra(other[key], view, len(mine), mine)
    for kind, count in a.get("skipped", {}).items():
        found.leave_out(kind, count, "more of them in a step than are looked at")
    return keep_first(rows, by_step)


def why_not_judged(
    event: Mapping[str, Any], twin: Mapping[str, Any] | None, looked: set[int]
) -> Any:
    """Why an event of the baseline can't be held against the target's; None where it can."""
    if "index" not in event:
        return "the baseline was recorded by an older joymigrate"
    if "error" in event:
        return f"the baseline's calls do not run again: {event['error']}"
    if twin is None:
        return None if event["step"] in looked else "the target has no record of this step"
    if "error" in twin:
        return f"the target's calls do not run again: {twin['error']}"
    return "two recordings: `verify replay` compares this" if "sinks" in twin else None


def number_of(side: Mapping[str, Any], theirs: Mapping[str, Any]) -> float | None:
    """The number that a value of one element is, by its sketch; None for any other value."""
    if "sketch" not in side or math.prod(theirs["shape"]) != 1 or any(side["sketch"][1:]):
        return None  # complex numbers fill two places
    return float(side["sketch"][0] * signs(1)[0])


def draws_otherwise(fact: Mapping[str, Any]) -> bool:
    """Whether other numbers are drawn from an equal state, by more than the rounding of their type.
    Of a draw by tensors (chances, means) the state tells nothing: they may be others."""
    told = fact.get("same_state") and not fact.get("drawn_by")
    return bool(told and fact.get("error", 0.0) > rounding_of(fact))


def rounding_of(fact: Mapping[str, Any]) -> float:
    """How far two draws of one number may be apart, in the norm: formulas round, indices do not."""
    return 0.0 if is_whole(fact) else device_rounding(fact["dtype"])


def is_whole(fact: Mapping[str, Any]) -> bool:
    """Whether a tensor holds whole numbers."""
    return str(fact["dtype"]).startswith(("int", "uint", "bool"))


def key_of(event: Mapping[str, Any]) -> tuple[str, int, int, str]:
    """Which moment of the program this is; inputs go by the model and its call."""
    return event["kind"], event["step"], event["number"], str(event.get("where", ""))


def extra(
    event: Mapping[str, Any], view: Display, order: int, mine: Mapping[Any, Any]
) -> Iterator[Difference]:
    """What only the target does. Inputs and results may be computed where the baseline reads."""
    steps = {key[1] for key in mine}
    if event["kind"] not in ("loss", "state") or event["step"] not in steps:
        return
    if event.get("error") or "sinks" in event:
        return
    word = "begins a backward pass" if event["kind"] == "loss" else "changes state"
    yield failure(
        event["kind"],
        Phase.OPTIMISER if event.get("trained") else PHASES[event["kind"]],
        event["kind"],
        "events",
        event["step"],
        Text("only the target {word} here", word=word),
        call=event["number"],
        order=order,
    )


def failure(
    module: str, phase: Phase, op: str, metric: str, step: int, reason: Any, **more: Any
) -> Difference:
    """A failure of this stage that has no value."""
    made = Difference(module=module, phase=phase.value, op=op, metric=metric, step=step)
    return replace(made, status=RecordStatus.FAIL, stage=STAGE, reason=reason, **more)


class EventJudge:
    """One event of the baseline with the target's."""

    def __init__(
        self,
        event: Mapping[str, Any],
        twin: Mapping[str, Any] | None,
        view: Display,
        order: int,
        found: Findings,
    ) -> None:
        self.event, self.twin, self.view, self.found = event, twin, view, found
        self.order = order
        self.kind = str(event["kind"])
        self.unrepeated: frozenset[int] = frozenset()  # given values, by number
        self.shaken: Mapping[str, float] = {}  # own errors of values in the baseline's other runs
        self.half = bool(event.get("half") or (twin or {}).get("half"))
        self.first = event["step"] == 0 and event["index"] <= 0

    def rows(self) -> Iterator[Difference]:
        """All its differences."""
        event, twin = self.event, self.twin
        if twin is None:
            if event["sinks"]:
                name = next(iter(event["sinks"]))
                reason = "the target does not compute this"
                if self.kind == "loss":
                    reason = "the target begins fewer backward passes in this step"
                yield self.row(name, RecordStatus.FAIL, None, None, reason)
            return
        if event.get("accumulates") is not None and event["accumulates"] != twin["accumulates"]:
            reason = (
                "gradients of earlier passes are kept here, where the baseline has cleared them"
                if twin["accumulates"]
                else "gradients of earlier passes are cleared here, where the baseline adds to them"
            )
            yield self.row("accumulated", RecordStatus.FAIL, None, None, reason, Phase.GRADIENTS)
        if twin.get("constants_given"):
            self.found.leave_out(
                self.kind,
                1,
                "numbers made of what the program read are given: not how they are made",
            )
        if twin.get("alone"):
            why = "only the target reads these values"
            self.found.leave_out(self.kind, len(twin["alone"]), why)
        yield from self.given()
        yield from self.flows()
        for name, theirs in event["sinks"].items():
            row = twin.get("rows", {}).get(name)
            if row is None and "alone" in twin and len(event["sinks"]) > len(twin["rows"]):
                self.found.leave_out(self.kind, 1, "the target reads fewer values in this step")
            elif row is None:
                yield self.row(name, RecordStatus.FAIL, None, None, "the target has no such value")
            else:
                yield from self.sink(name, theirs, row)
        for name, row in twin.get("rows", {}).items():
            changed = row.get("returned", 0.0)
            if changed > RETURNED:
                reason = "the baseline gives back what the model returned; here it is changed first"
                yield self.row(name, RecordStatus.FAIL, min(changed, 1e300), RETURNED, reason)
            if "only" in row and self.kind in ("gradients", "state", "loss"):
                if name.startswith("gradient at") and not row["norm"]:
                    continue
                words = CHANGED if self.kind == "gradients" else "only the target changes this"
                yield self.row(name, RecordStatus.FAIL, None, None, words)

    def flows(self) -> Iterator[Difference]:
        """Whether gradients flow back to where an input of a model comes from."""
        mine, other = self.event.get("flows", {}), (self.twin or {}).get("flows", {})
        for name, back in mine.items():
            if other.get(name, back) != back:
                reason = (
                    "no gradient flows back from here, as it does in the baseline"
                    if back
                    else "gradients flow back from here, as they do not in the baseline"
                )
                yield self.row(name, RecordStatus.FAIL, None, None, reason)

    def given(self) -> Iterator[Difference]:
        """Labels and other tensors that come from elsewhere."""
        for fact in (self.twin or {}).get("given", []):
            if fact.get("missing"):
                self.found.leave_out(self.kind, 1, "a tensor did not fit --budget")
            error, role = fact.get("error"), fact["role"]
            if role == "batch:loader":  # S1 and S5W compare all batches
                continue
            drawn, same = role.startswith("draw:"), bool(fact.get("same_state"))
            if not error or (drawn and not self.other_data_drawn(fact)):
                continue
            if drawn and same and not fact.get("alike"):
                self.found.leave_out(self.kind, 1, OTHER_DRAWS)
                continue
            if fact.get("number") in self.unrepeated:
                self.found.leave_out(self.kind, 1, NOT_REPEATED)
                continue
            whole = is_whole(fact)
            twin = self.twin or {}
            chosen = twin.get("chosen") and self.kind in ("input", "output")
            # Data that are fed back (the states of an environment) depart by rounding, and grow.
            grows = role.startswith("made:") and not whole
            grown = grows and self.found.made.explains(self.event["step"], error)
            grown = grown and twin.get("taken") and error > GIVEN
            untraced = twin.get("untraced") and not whole
            if role.startswith("made:") and (chosen or grown or untraced):
                why = "made of numbers that the program read from its models' results"
                self.found.leave_out(self.kind, 1, why)
                continue
            first = self.first and self.kind in ("input", "loss") and role == "other"
            first |= role.startswith("made:") or bool(fact.get("table"))
            # What a model keeps beside what it returns carries the model's own rounding.
            limit = READ[True] if fact.get("grown") and self.half else GIVEN
            if fact.get("table"):
                limit = of_table(fact)
            if drawn:
                reason = OTHER_DRAWS if same else OTHER_SEED
                yield self.row("given", RecordStatus.FAIL, error, 0.0, reason, Phase.INPUT)
            elif whole or (first and error > limit) or self.made_elsewhere(role, error):
                what = "whole numbers" if whole else "values"
                what = "constants" if fact.get("table") else what
                reason = Text("{what} that this is computed from differ", what=what)
                yield self.row("given", RecordStatus.FAIL, error, 0.0 if whole else limit, reason)

    def other_data_drawn(self, fact: Mapping[str, Any]) -> bool:
        """Whether data are drawn that are not the baseline's: from an equal state, or from another
        one before the program has computed anything. What is drawn by a tensor carries the rounding
        of what made that."""
        if fact["role"] not in DATA:
            return False
        if fact.get("same_state"):
            return draws_otherwise(fact)
        carried = READ[True] if self.half else GIVEN
        limit = carried if fact.get("drawn_by") else rounding_of(fact)
        return bool(self.first and fact.get("alike") and fact["error"] > limit)

    def made_elsewhere(self, role: str, error: float) -> bool:
        """Whether a value that a loss is made of, and that the program computed before the step's
        first call of a model, is another one: in the first steps rounding has not come far."""
        twin = self.twin or {}
        early = self.kind == "loss" and 0 < self.event["step"] <= EARLY and role == "other"
        free = not (twin.get("chosen") or twin.get("taken") or twin.get("untraced"))
        return early and free and error > MADE[bool(self.half or twin.get("cast"))]

    def sink(
        self, name: str, theirs: Mapping[str, Any], row: Mapping[str, Any]
    ) -> Iterator[Difference]:
        """One value."""
        if "shapes" in row:
            a, b = row["shapes"]
            words = Text("shape {golden} became {target}", golden=a, target=b)
            yield self.row(name, RecordStatus.FAIL, None, None, words)
            return
        if "error" not in row:
            return
        twin, half = self.twin or {}, self.half
        untraced = bool(self.event.get("untraced") or twin.get("untraced"))
        limit = READ[half] if untraced else LIMIT
        if "content" in theirs:
            limit = 0.0
        if untraced:
            wider = "a number read by float() or int() is used again: judged by a wider limit"
            self.found.leave_out(self.kind, 1, wider)
        error = row["error"]
        status = RecordStatus.IDENTICAL if error == 0 else RecordStatus.PASS
        reason: Any = None
        if error > limit:
            back = self.kind == "loss" and name.startswith("gradient at")
            status = RecordStatus.FAIL
            reason = GRADIENT_BACK if back else self.apart(theirs, row)
        own, base = row.get("native"), max(theirs.get("native", 0.0), self.shaken.get(name, 0.0))
        # A loss that the baseline has in float32 is near float64 there, and should be here.
        types = theirs.get("dtype"), row.get("dtype")
        narrowed = self.kind == "loss" and types[0] == "float32" and types[1] in HALF
        exact = base <= NATIVE[False] / RATIO
        wide = not (narrowed and exact) if half else bool(twin.get("short"))
        # Nor is anything of it in 16 bits where the baseline has nothing of it in 16 bits.
        inside = self.kind == "loss" and self.event.get("narrow") is False and twin.get("narrow")
        least = NATIVE[False] / RATIO if inside and exact else NATIVE[wide]
        if types == ("bfloat16", "bfloat16"):  # computed in float32, perhaps, and rounded last
            least = max(least, ROUNDED_LAST["bfloat16"])
        allowed = max(RATIO * base, least)
        judged = status is not RecordStatus.FAIL and own is not None and "content" not in theirs
        if judged and own > allowed:
            yield self.row(name, RecordStatus.FAIL, own, allowed, OWN_ARITHMETIC)
            return
        yield self.row(name, status, error, limit, reason)

    def apart(self, theirs: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        """What is seen of a value that is another one; why it is, only calls that differ tell."""
        if self.kind == "gradients":
            return CHANGED
        mine, golden = number_of(row, theirs), number_of(theirs, theirs)
        if mine is None or golden is None:
            return OTHER_VALUES
        return Text(OTHER_NUMBER, target=f"{mine:.8g}", golden=f"{golden:.8g}")

    def row(
        self,
        name: str,
        status: RecordStatus,
        value: float | None,
        limit: float | None,
        reason: Any,
        phase: Phase | None = None,
    ) -> Difference:
        """One difference of this event."""
        place, op = self.place(name)
        return Difference(
            module=place,
            call=int(self.event["number"]),
            phase=(phase or self.phase(name)).value,
            op=op,
            metric="float64",
            value=value,
            limit=limit,
            status=status,
            stage=STAGE,
            step=self.event["step"],
            reason=reason,
            order=self.order,
        )

    def phase(self, name: str) -> Phase:
        """Trained parameters that the program updates by hand are its optimiser's work, and so is
        what it computes them from."""
        trained = name in self.event.get("trained", ())
        return Phase.OPTIMISER if trained else PHASES[self.kind]

    def place(self, name: str) -> tuple[str, str]:
        """(module, what) as a user calls it."""
        if self.kind == "input":
            return self.view(self.event.get("where", ":")), f"input {name}"
        if self.kind == "loss":
            return "loss", name
        if self.kind == "output":
            return "result", name
        if ":" in name:
            owner, _, leaf = name.rpartition(".")
            owner, leaf = (owner, leaf) if ":" in owner else (name.rpartition(":")[0] + ":", leaf)
            return self.view(owner), leaf.rpartition(":")[2]
        return name, self.kind


def parting(
    watches: Sequence[Mapping[str, Any]], optimisers: tuple[str, str], number: int, judge: Judge
) -> tuple[int | None, Any]:
    """(step, words) of update `number`'s rate: the step from which it differs because a measured
    result moved over a scheduler's threshold on one side alone; or words on a result that is
    another one. Neither where the scheduler itself does otherwise than the baseline's, given the
    baseline's results."""
    ours, theirs = watches
    for name, items in ours.items():
        if not name.startswith(f"{SERIES} ") or name not in theirs:
            continue
        mine = [item for item in items if item[1] == optimisers[0]]
        other = [item for item in theirs[name] if item[1] == optimisers[1]]
        if not other or any(item[5] is False for item in other):
            continue
        key = SERIES, name.removeprefix(f"{SERIES} ")
        departs = judge.decide(key, loss_errors(mine, other, 3).told_before(judge.end)).at
        for one, two in zip(mine, other, strict=False):
            far = departs is not None and one[0] >= departs
            if not judge.nulls or one[0] >= judge.end:
                far |= abs(one[3] - two[3]) > MEASURED * abs(one[3])
            if far:
                text = "the result that the scheduler follows is {have}, {want} in the baseline"
                return None, Text(text, have=f"{two[3]:.4g}", want=f"{one[3]:.4g}")
            if unequal(one[4], two[4]):
                step = int(min(one[0], two[0]))
                return (step if one[2] == two[2] <= number else None), None
    return None, None


def judge_log(
    ours: Rank, theirs: Rank, roots: Mapping[str, str], found: Findings, judge: Judge
) -> list[Difference]:
    """Modes of model calls and settings of optimisers, over the whole program."""
    a, b = ours.json("log.json"), theirs.json("log.json")
    if not a or not b:
        found.leave_out("modes", 0, "one side was recorded by an older joymigrate")
        return []
    view = Display(ours.program)
    heeding = {
        root
        for root, modules in ours.program.get("modules", {}).items()
        if any(module.get("heeds_mode", True) for module in modules)
    }
    rows = list(modes(a["calls"], b["calls"], roots, view, found, ours.cut))
    for row in [r for r in rows if "training mode" in str(r.reason)]:
        if row.module not in {view(f"{root}:") for root in heeding}:
            found.leave_out("modes", 1, "another mode, of a model whose code does not ask for it")
            rows.remove(row)
    watches = [rank.json("watch.json").get("series", {}) for rank in (ours, theirs)]
    parted = found.end
    schedule = list(schedules(a, b, watches, found, judge))
    plateau = found.end if found.end < parted else math.inf
    before = [row for row in rows if (row.step or 0) < plateau]
    if len(before) < len(rows):
        found.leave_out("modes", len(rows) - len(before), AT_A_PLATEAU)
    return [*before, *schedule]


def of_table(fact: Mapping[str, Any]) -> float:
    """How far a table of constants may be from the baseline's: a unit of its type, or what the
    arithmetic that makes it is known to round."""
    rounding, short = fact.get("rounding"), bool(fact.get("short"))
    if rounding is None:
        return NATIVE[True] if short else GIVEN
    return max(UNIT if short else GIVEN, RATIO * float(rounding))


def modes(
    ours: list[Any],
    theirs: list[Any],
    roots: Mapping[str, str],
    view: Display,
    found: Findings,
    cut: bool = False,
) -> Iterator[Difference]:
    """The first run of calls that is not the baseline's. `cut`: its recording was cut short."""
    for index, (root, training, gradients, times, step) in enumerate(ours):
        if index >= len(theirs):
            left = sum(run[3] for run in ours[index:])
            found.leave_out("calls", left, "the target ended before them")
            called = {roots.get(run[0], run[0]) for run in theirs}
            never = next((run[0] for run in ours[index:] if run[0] not in called), None)
            if never is not None:
                text = "the target does not call {model}, which the baseline calls"
                found.short = Text(text, model=view(f"{never}:"))
            return
        name, mode, with_gradients, count, _ = theirs[index]
        if roots.get(name, name) != root:
            if name in roots:
                yield mode_row(view(root + ":"), step, "another model is called here")
            return
        if mode != training:
            yield mode_row(view(root + ":"), step, tell_mode(mode))
            return
        if with_gradients != gradients:
            reason = "with gradients" if with_gradients else "without gradients"
            yield mode_row(view(root + ":"), step, reason)
            return
        last = index == len(theirs) - 1
        following = None if last else theirs[index + 1]
        goes_on = following if count < times and following and following[0] == name else None
        if goes_on is not None and goes_on[1] != training:  # in another way than the baseline
            yield mode_row(view(root + ":"), step, tell_mode(not training))
            return
        if count != times:
            if last and count < times:
                found.leave_out("calls", times - count, "the target ended before them")
            elif cut and count > times and index == len(ours) - 1:
                found.leave_out("calls", count - times, "the baseline was cut short before them")
            elif gradients and training:
                words = Text("{count} calls, {times} in the baseline", count=count, times=times)
                yield mode_row(view(root + ":"), step, words)
                return
            else:
                reason = "a run of calls without training has another length"
                found.leave_out("calls", abs(times - count), reason)


def mode_row(module: str, step: int, reason: Any) -> Difference:
    """A call in another mode."""
    return failure(module, Phase.MODE, "mode", "mode", step, reason)


def schedules(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    watches: Sequence[Mapping[str, Any]],
    found: Findings,
    judge: Judge,
) -> Iterator[Difference]:
    """Settings that every update steps with. `watches` are both sides' series of every step."""
    for key, updates in a["updates"].items():
        mine = {n: groups for k, n, groups in a["settings"] if k == key}
        index = int(key.rpartition(" ")[2])
        twin = next((k for k in b["updates"] if int(k.rpartition(" ")[2]) == index), None)
        if twin is None:
            found.leave_out("updates", updates + 1, "the target makes no such optimiser")
            continue
        other = {n: groups for k, n, groups in b["settings"] if k == twin}
        end = min(updates, b["updates"][twin])
        if end < updates:
            found.leave_out("updates", updates - end, "the target ended before them")
            if b.get("backward", 0) < a.get("backward", 0):  # a scaler may leave updates out
                text = "the target ended after {have} of the baseline's {want} updates"
                found.short = found.short or Text(text, have=end + 1, want=updates + 1)
        one: Any = None
        two: Any = None
        for number in sorted({*mine, *other}):
            one, two = mine.get(number, one), other.get(number, two)
            if one is None or two is None:
                continue
            for group, twin_group in () if number > end else zip(one, two, strict=False):
                wrong = [k for k in group if k in twin_group and unequal(group[k], twin_group[k])]
                step, measured = None, None
                if wrong == ["lr"]:
                    step, measured = parting(watches, (key, twin), number, judge)
                if step is not None:
                    found.end = min(found.end, step)
                    found.leave_out("schedule", end - number + 1, AT_A_PLATEAU)
                    end = number - 1
                elif wrong:
                    words = Text(
                        "{key} is {have} in update {number}, {want} in the baseline",
                        key=wrong[0],
                        have=twin_group[wrong[0]],
                        number=number,
                        want=group[wrong[0]],
                    )
                    name, reason = key.rpartition(" ")[0], measured or words
                    row = failure(name, Phase.SCHEDULE, wrong[0], "setting", number, reason)
                    yield replace(row, call=number)
                    return
