"""S0 and S1: what differs before anything is computed: environment, weights, buffers, batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from joymigrate.language import Text
from joymigrate.verify.bundle import Rank, RecordTable
from joymigrate.verify.display import Display
from joymigrate.verify.growth import Growth
from joymigrate.verify.model import Difference, RecordStatus
from joymigrate.verify.tolerance import ROUNDED_LAST

GROWS = "departs by rounding first, and grows: it may follow from the program's own results"
LOADED = "loaded state"  # of a model that was called before
TIE = "shared weight"
TIED_THERE = "{one} and {other} are {shared} in the baseline, and not here"
TIED_HERE = "{one} and {other} are {shared} here, and not in the baseline"
MOVED = "{one} and {other} are {shared} in the baseline on the CPU; `.to` a device copies each"
GIVEN = "the target's loader makes other data; the program got the baseline's"
FLAT_TENSOR = "_flat_param"  # what FSDP1 calls its flat tensor in the wrapper
ROUNDING = 2.0**-20  # what the device computed may differ by this
MADE = "training made it: it is held to the baseline's own runs, where it is first called (S5W)"
SHOWN = ("packages", "variables", "tf32", "matmul_precision", "deterministic", "default_dtype")
ALSO = ("threads", "seed", "devices", "python", "machine")


CLASS = "class."  # of a module, among what differs


def device_rounding(dtype: str) -> float:
    """How far another device may be off in the norm where the same is computed in a type."""
    return ROUNDED_LAST.get(dtype, ROUNDING)


def environment_differences(baseline: Mapping[str, Any], target: Mapping[str, Any]) -> list[str]:
    """One line for each setting that differs."""
    found = []
    for key in (*SHOWN, *ALSO):
        a, b = baseline.get(key), target.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names = sorted(a.keys() | b.keys())
            found += [f"{key}.{n}: {a.get(n)} → {b.get(n)}" for n in names if a.get(n) != b.get(n)]
        elif a != b:
            found.append(f"{key}: {a} → {b}")
    return found


def difference(
    module: str,
    op: str,
    status: RecordStatus,
    *,
    value: float | None = None,
    reason: str | None = None,
    step: int | None = None,
    order: int = 0,
) -> Difference:
    """A difference of stage S1."""
    return Difference(
        module=module,
        op=op,
        metric="sha256",
        value=value,
        limit=0.0,
        status=status,
        stage="S1",
        step=step,
        reason=reason,
        order=order,
    )


def weights(
    program: Mapping[str, Any],
    target: Mapping[str, Any],
    names: Mapping[str, str],
    measured: Mapping[str, Mapping[str, Any]],
    trained: Callable[[str], bool] = lambda name: False,
) -> Iterator[Difference]:
    """Parameters and buffers before the first call. `names` is target's place by baseline's;
    `measured` what the target found out about those whose bytes differ; `trained`: which training
    has made, so that no two runs have the same."""
    view = Display(program)
    theirs = target.get("weights", {})
    declared = {
        join_path(f"{root}:{module['path']}", leaf)
        for root, modules in target.get("modules", {}).items()
        for module in modules
        for leaf in module["params"]
    }
    for order, (name, mine) in enumerate(program.get("weights", {}).items()):
        place, leaf = owner_of(name)
        there = join_path(names.get(place, place), leaf)
        other = theirs.get(there)
        what = f"{mine['kind']} {leaf}"
        if other is None and there in target.get("shared", {}) and "shared" not in program:
            reason = "an older baseline: the target's is a tensor of an earlier model"
            yield difference(view(place), what, RecordStatus.UNCOMPARED, reason=reason, order=order)
        elif other is None:
            reason = "the target has no such tensor"
            status, known = RecordStatus.UNCOMPARED, measured.get(name, {})
            if known.get("whole"):
                yield of_whole(view(place), what, known, order)
                continue
            if there in declared:
                reason = "no process of the target holds it whole: compared after each update"
            elif mine["kind"] == "parameter" and kinds(program, place) == kinds(
                target, names.get(place, "")
            ):
                status = RecordStatus.FAIL
            yield difference(view(place), what, status, reason=reason, order=order)
        elif other["sha256"] == mine["sha256"] and other["dtype"] == mine["dtype"]:
            yield difference(view(place), what, RecordStatus.IDENTICAL, value=0.0, order=order)
        elif trained(name):
            yield difference(view(place), what, RecordStatus.UNCOMPARED, reason=MADE, order=order)
        else:
            status, value, reason = unequal(mine, other, measured.get(name))
            yield difference(view(place), what, status, value=value, reason=reason, order=order)
    order = len(program.get("weights", {}))
    for name, known in measured.items():
        if known.get("whole") and name not in program.get("weights", {}):
            place, leaf = owner_of(name)
            yield of_whole(view(place), f"parameter {leaf}", known, order)


def of_whole(module: str, what: str, known: Mapping[str, Any], order: int) -> Difference:
    """A weight of which the target's processes hold parts, by its value brought together."""
    error = float(known["error"])
    if known["cast"] or not error:
        status = RecordStatus.META_DIFF if known["cast"] else RecordStatus.IDENTICAL
        return difference(module, what, status, value=0.0, order=order)
    reason = Text("relative difference {error}", error=f"{error:.2g}")
    return difference(module, what, RecordStatus.FAIL, value=error, reason=reason, order=order)


def copies(
    program: Mapping[str, Any], target: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[Difference]:
    """Tensors that are the baseline's of an earlier model, and in the target stand by themselves:
    training then changes one of the two."""
    view = Display(program)
    for order, name in enumerate(program.get("shared", {})):
        place, leaf = owner_of(name)
        if join_path(names.get(place, place), leaf) in target.get("weights", {}):
            reason = "the target's is a copy, the baseline's is the tensor of an earlier model"
            yield difference(
                view(place), f"weight {leaf}", RecordStatus.FAIL, reason=reason, order=order
            )


def ties(
    program: Mapping[str, Any],
    target: Mapping[str, Any],
    names: Mapping[str, str],
    *,
    trains: bool = True,
    moved: bool = False,
) -> Iterator[Difference]:
    """Weights that are one tensor under two names, or two tensors in one memory, on one side alone:
    training then moves them apart, whatever they begin with. A warning where nothing trains, and
    for a memory that the baseline's weights share on the CPU and the target's left (`moved`): two
    tensors of one memory go to a device each by itself."""
    view = Display(program)
    back: dict[str, str] = {}
    for name in program.get("weights", {}):
        place, leaf = owner_of(name)
        back[join_path(names.get(place, place), leaf)] = name
    forth = {mine: there for there, mine in back.items()}
    for kind, shared in (("ties", "one tensor"), ("memory", "two tensors in one memory")):
        if kind not in program or kind not in target:
            continue
        mine, other = program[kind], target[kind]
        pairs = [(a, b) for a, b in mine.items() if a in forth and b in forth]
        pairs += [(back[a], back[b]) for a, b in other.items() if a in back and b in back]
        for order, (name, first) in enumerate(dict.fromkeys(pairs)):
            there = [forth[one] for one in (name, first)]
            if any(one not in target.get("weights", {}) for one in there):
                continue
            ours = mine.get(name, name) == mine.get(first, first)
            theirs = other.get(there[0], there[0]) == other.get(there[1], there[1])
            where = view(owner_of(name)[0])
            if ours == theirs:
                yield difference(where, TIE, RecordStatus.PASS, order=order)
                continue
            words = TIED_THERE if ours else TIED_HERE
            apart_by_move = moved and ours and kind == "memory"
            words = MOVED if apart_by_move else words
            status = RecordStatus.FAIL if trains and not apart_by_move else RecordStatus.WARN
            reason = Text(words, one=view(name), other=view(first), shared=shared)
            yield difference(where, TIE, status, reason=reason, order=order)


def unequal(
    mine: Mapping[str, Any], other: Mapping[str, Any], known: Mapping[str, Any] | None
) -> tuple[RecordStatus, float | None, str]:
    """How far two tensors of one name differ."""
    if mine["shape"] != other["shape"]:
        return (
            RecordStatus.FAIL,
            None,
            Text("shape {golden} became {target}", golden=mine["shape"], target=other["shape"]),
        )
    types = f"{mine['dtype']} → {other['dtype']}"
    if known is not None and known["cast"]:
        return RecordStatus.META_DIFF, 0.0, Text("equal after the conversion {types}", types=types)
    if known is not None:
        error = float(known["error"])
        if error <= ROUNDING:  # computed by the program: `weight_norm`, a first update
            return RecordStatus.WARN, error, "differs by rounding"
        return RecordStatus.FAIL, error, Text("relative difference {error}", error=f"{error:.2g}")
    if mine["dtype"] != other["dtype"]:
        return (
            RecordStatus.UNCOMPARED,
            None,
            Text("{types}, and the values are not in the bundle", types=types),
        )
    return RecordStatus.FAIL, None, "the bytes differ"


def loads(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], roots: Mapping[str, str], view: Display
) -> Iterator[Difference]:
    """States that were loaded into models after steps of training: which steps made them. -1 stands
    for a state that no step has made: an average, or a file of another run."""
    names = {mine: other for other, mine in roots.items()}
    for name, items in ours.get("series", {}).items():
        if not name.startswith("loaded "):
            continue
        root = name.removeprefix("loaded ")
        there = theirs.get("series", {}).get(f"loaded {names.get(root, root)}", [])
        pairs = list(zip(items, there, strict=False))
        wrong = next(((a, b) for a, b in pairs if a[1] != b[1]), None)
        what, where = LOADED, view(f"{root}:")
        missing = next(iter(items[len(there) :]), None)
        if wrong is None and missing is not None and missing[0] < theirs.get("steps", 0):
            reason = "the baseline loads a state here, and the target does not"
            yield difference(where, what, RecordStatus.FAIL, reason=reason, step=missing[0])
            continue
        if wrong is None:
            yield difference(where, what, RecordStatus.PASS if pairs else RecordStatus.UNCOMPARED)
            continue
        (at, want), (_, have) = wrong
        words = Text(
            "the state of step {have} is loaded, of step {want} in the baseline (-1: of none)",
            have=have,
            want=want,
        )
        yield difference(where, what, RecordStatus.FAIL, reason=words, step=at)


def kinds(program: Mapping[str, Any], place: str) -> str | None:
    """The class of the module at a place; None where there is none."""
    root, _, path = place.partition(":")
    modules = program.get("modules", {}).get(root, [])
    return next((str(module["class"]) for module in modules if module["path"] == path), None)


def owner_of(name: str) -> tuple[str, str]:
    """`root:path.leaf` as the module's place and the leaf."""
    root, _, path = name.partition(":")
    place, _, leaf = path.rpartition(".")
    return f"{root}:{place}", leaf


def join_path(place: str, leaf: str) -> str:
    """The other way round."""
    return f"{place}{leaf}" if place.endswith(":") else f"{place}.{leaf}"


def outside_inputs(
    baseline: Rank, step: int
) -> Iterator[tuple[Mapping[str, Any], Callable[..., Difference]]]:
    """What the models of a step are given from outside, each with what makes a row of it."""
    view = Display(baseline.program)
    for entry in baseline.facts(step).get("inputs", []):
        if not entry["derived"]:
            what = Text("batch, input {leaf}", leaf=entry["leaf"])
            yield entry, partial(difference, view(entry["place"]), what, step=step)


def batches(
    baseline: Rank, target: Rank, names: Mapping[str, str], *, trains: bool, devices: bool
) -> Iterator[Difference]:
    """Inputs of top-level calls that come from outside, in the order of steps."""
    takes = any(rank.json("watch.json").get("takes") for rank in (baseline, target))
    growth = Growth()
    for step in baseline.steps:
        given = target.facts(step).get("inputs", []) if step in target.steps else []
        theirs = {(e["place"], e["call"], e["leaf"]): e for e in given}
        for mine, row in outside_inputs(baseline, step):
            place, call, leaf = mine["place"], mine["call"], mine["leaf"]
            there = names.get(place, place)
            other = theirs.get((there, call, leaf))
            if other is None:
                yield row(RecordStatus.UNCOMPARED, reason="the target has no such call")
            elif other["sha256"] == mine["sha256"]:
                yield row(RecordStatus.IDENTICAL, value=0.0)
            else:
                found = apart(baseline, target, (place, call, "in", leaf), there, step)
                held = trains or step == baseline.steps[0]
                status, value, reason = unlike(mine, other, found, held, devices)
                grows = value is not None and is_floating(mine) and growth.explains(0, value)
                if grows and takes:
                    status, reason = RecordStatus.WARN, GROWS
                yield row(status, value=value, reason=reason)


def is_floating(entry: Mapping[str, Any]) -> bool:
    """Whether an input is no whole numbers."""
    return bool(entry["dtype"].startswith(("float", "bfloat")))


def unlike(
    mine: Mapping[str, Any],
    other: Mapping[str, Any],
    found: tuple[float | None, bool],
    held: bool,
    devices: bool,
) -> tuple[RecordStatus, float | None, Any]:
    """An input whose bytes differ: other data, another dtype, or drawn on another device. `found`
    is how far they are `apart`; `held`: the target is to have the baseline's."""
    error, alike = found
    types = mine["dtype"], other["dtype"]
    if mine["shape"] != other["shape"]:
        words = Text("shape {golden} became {target}", golden=mine["shape"], target=other["shape"])
        return RecordStatus.FAIL, None, words
    close = 2.0**-7 if types[0] != types[1] else device_rounding(types[0])
    if is_floating(mine) and error is not None and error <= close:
        words = Text("differs by rounding ({golden} → {target})", golden=types[0], target=types[1])
        return RecordStatus.WARN, error, words
    if is_floating(mine) and devices and alike:
        return RecordStatus.RANDOM, error, "looks drawn at random on another device"
    if held:
        return RecordStatus.FAIL, error, "the data differ"
    return RecordStatus.WARN, error, "differs; may follow from results"


def apart(
    baseline: Rank, target: Rank, key: Any, place: str, step: int
) -> tuple[float | None, bool]:
    """(relative difference by sketches, whether the statistics agree within 10 %)."""
    a, b = baseline.table(step), target.table(step)
    row, other = a.place(key), b.place((place, *key[1:]))
    if row is None or other is None:
        return None, False
    ours, theirs = float(a.stats[row][3]), float(b.stats[other][3])
    return sketch_error(a, row, b, other), abs(theirs - ours) <= 0.1 * max(ours, 1e-30)


def sketch_error(mine: RecordTable, row: int, other: RecordTable, there: int) -> float:
    """How far a record is from another one, by sketches, relative to the first."""
    return float(np.linalg.norm(other.sketch[there] - mine.sketch[row]) / mine.sizes()[row])


def divided_batches(
    mine: RecordTable, other: RecordTable, baseline: Rank, names: Mapping[str, str]
) -> Iterator[Difference]:
    """Batches that are spread over another number of processes: by sketches, which add up."""
    for entry, made in outside_inputs(baseline, mine.step):
        place, key = entry["place"], (entry["call"], "in", entry["leaf"])
        row, there = mine.place((place, *key)), other.place((names.get(place, place), *key))
        if row is None:
            continue
        if there is None or tuple(mine.shape[row]) != tuple(other.shape[there]):
            reason = "the parts do not make up the baseline's batch"
            yield made(RecordStatus.UNCOMPARED, reason=reason)
            continue
        error = sketch_error(mine, row, other, there)
        close = error <= device_rounding(entry["dtype"])
        status, why = (RecordStatus.PASS, None) if close else (RecordStatus.FAIL, "the data differ")
        yield made(status, value=error, reason=why)


def first_batch(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], view: Display
) -> Iterator[Difference]:
    """What the first data loader handed out first, by what both sides saw of their runs. A later
    batch may follow from what was computed before it: S5W looks at all of them, where nothing
    earlier explains them."""
    loader = "loader 0"
    series = (side.get("series", {}).get(f"batch {loader}") for side in (ours, theirs))
    mine, other = (items[0] if items else None for items in series)
    if mine is None or other is None:
        return
    all_mine, all_other = (side.get("first", {}).get(loader) for side in (ours, theirs))
    status, reason = RecordStatus.IDENTICAL, None
    if 0 in theirs.get("given", {}).get(loader, ()):
        status, reason = RecordStatus.UNCOMPARED, GIVEN
    elif mine != other or (all_mine and all_other and all_mine != all_other):
        status, reason = RecordStatus.FAIL, "the data differ"
    yield difference(view.main or "", "data loader, batch 0", status, reason=reason)
