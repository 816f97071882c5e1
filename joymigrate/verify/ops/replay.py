"""Replays calls: golden in float64, reference and target in the own dtype; edges; gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from joymigrate.language import Text
from joymigrate.verify.model import RecordStatus
from joymigrate.verify.ops import judge as judging
from joymigrate.verify.ops.call import ReplayCall, TensorArg
from joymigrate.verify.ops.case_store import KeptValues
from joymigrate.verify.ops.fused_attention import GOLDENS, NoGolden, name_arguments, settle
from joymigrate.verify.ops.inputs import EDGES, InputMaker, UnusualInputs, move_value, seed_of
from joymigrate.verify.ops.judge import ReplayFinding
from joymigrate.verify.ops.operator import OperatorOverload, find, outputs
from joymigrate.verify.ops.target import ReplayTarget
from joymigrate.verify.tolerance import Tolerance

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
RANDOM_SIGMAS = 6.0  # of the difference of two means; once in 10^9 by chance


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """`edges` per operator, gradients, and what is too large to be replayed (elements)."""

    edges: bool = True
    backward: bool = True
    level: str | None = None
    seed: int = 0
    max_elements: int = 1 << 27


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One call in one case. `phase` is forward or backward."""

    call: ReplayCall
    case: str
    phase: str
    finding: ReplayFinding
    level: str = ""
    dtype: str = ""
    inputs: str = "drawn"  # or recorded: the program's own values


@dataclass(frozen=True, slots=True)
class Sides:
    """The results of one call on all sides; reference None where the CPU has no kernel for it."""

    golden: list[torch.Tensor]
    reference: list[torch.Tensor] | None
    target: list[torch.Tensor]
    why_no_reference: str = ""


class Failed(Exception):
    """A side raised; `side` is golden, reference or target."""

    def __init__(self, side: str, error: BaseException) -> None:
        super().__init__(str(error))
        self.side = side
        lines = str(error).strip().splitlines()
        self.line = f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """One call in one case: what is replayed, or skipped, as a whole."""

    number: int
    case: str  # recorded, or the name of an edge


Announce = Callable[
    [ReplayJob, str], None
]  # told before each side computes: a crash has no exception


def silent(job: ReplayJob, side: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all jobs share."""

    target: ReplayTarget
    tolerance: Tolerance
    options: ReplayOptions
    announce: Callable[[str], None] = lambda side: None
    kept: KeptValues = field(default_factory=KeptValues)


def replay(
    calls: Sequence[ReplayCall],
    target: ReplayTarget,
    tolerance: Tolerance,
    options: ReplayOptions,
    announce: Announce = silent,
    done: frozenset[ReplayJob] = frozenset(),
    kept: KeptValues | None = None,
) -> Iterator[tuple[ReplayJob, list[ReplayResult]]]:
    """Results of all calls: as recorded first, then the edges of every operator once.

    Jobs in `done` are left out: an earlier process did them, or died of them.
    """
    kept = kept or KeptValues()
    smallest: dict[tuple[str, str | None, str], tuple[int, OperatorOverload]] = {}
    for number, call in enumerate(calls):
        operator = find(call)
        job = ReplayJob(number, "recorded")
        if isinstance(operator, str):
            if job not in done:
                yield job, [leave_uncompared(call, operator)]
            continue
        if job not in done:
            bench = Bench(target, tolerance, options, partial(announce, job), kept)
            yield job, list(replay_recorded(operator, bench))
        place = (call.op, operator.call.overload, operator.call.dtype)
        if place not in smallest or size(operator.call) < size(smallest[place][1].call):
            smallest[place] = number, operator
    for number, operator in smallest.values() if options.edges else ():
        for case in edge_cases(operator, options):
            job = ReplayJob(number, case.name)
            if job not in done:
                bench = Bench(target, tolerance, options, partial(announce, job))
                yield job, list(edge(operator, case, bench))


def replay_recorded(operator: OperatorOverload, bench: Bench) -> Iterator[ReplayResult]:
    """The call as it was recorded, forward and, where the program needed it, backward."""
    call, options = operator.call, bench.options
    if size(call) > options.max_elements:
        reason = Text(
            "{number} elements, more than --max-elements {most}",
            number=f"{size(call):,}",
            most=f"{options.max_elements:,}",
        )
        yield leave_uncompared(call, reason)
        return
    held = bench.kept.tensors
    maker = InputMaker(call, generator(call, options), operator.argument_names, held=held)
    try:
        sides = run(operator, bench, maker)
    except Failed as failed:
        yield report_raise(call, "recorded", "forward", failed)
        return
    plain = sides.reference
    reference = bench.kept.results(call, sides.golden)
    if reference is not None:
        sides = replace(sides, reference=reference, why_no_reference="")
    if operator.random and differs(operator, maker):
        yield compare_draws(call, sides)
        return
    found = worst(operator, sides, "recorded", "forward", bench)
    if call.kept and held:
        found = replace(found, inputs="recorded")
        if found.finding.status.failed and sides.target and sides.golden:
            first = (sides.target[0], plain[0] if plain else None, sides.golden[0])
            bench.kept.hand_on(operator, maker.arguments(), first, bench.target.name)
    yield found
    wants = any(t.requires_grad for t in call.tensors()) or call.where is None
    if options.backward and wants and operator.differentiable:
        yield from backward(operator, bench)


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """Unusual inputs for one operator."""

    name: str
    call: ReplayCall
    edge: UnusualInputs | None = None
    contiguous: bool = True


def edge_cases(operator: OperatorOverload, options: ReplayOptions) -> Iterator[ReplayCase]:
    """The cases that mean something for an operator. What a fused attention makes of an infinite
    score is its own choice."""
    call = operator.call
    unfit = operator.random or operator.uninitialised or operator.name in GOLDENS
    if unfit or size(call) > options.max_elements:
        return
    if any(t.dtype.startswith(("float", "bfloat")) for t in call.tensors()):
        for one in EDGES:
            yield ReplayCase(one.name, call, one)
    by_place = "as_strided" in operator.name  # what it reads depends on the storage's layout
    if not by_place and any(len(t.shape) > 1 and t.elements for t in call.tensors()):
        yield ReplayCase("non-contiguous", call, contiguous=False)
    empty = empty_call(call)
    if empty is not None:
        yield ReplayCase("empty", empty)


def edge(operator: OperatorOverload, case: ReplayCase, bench: Bench) -> Iterator[ReplayResult]:
    """One case. One that the CPU refuses too says nothing and is left out."""
    draw = generator(case.call, bench.options)
    mine = replace(operator, call=case.call)
    maker = InputMaker(case.call, draw, operator.argument_names, case.edge, case.contiguous)
    try:
        sides = run(mine, bench, maker)
    except Failed as failed:
        if failed.side == "target":
            yield report_raise(case.call, case.name, "forward", failed)
        return
    if sides.reference is not None:
        yield worst(mine, sides, case.name, "forward", bench)


def generator(call: ReplayCall, options: ReplayOptions) -> torch.Generator:
    """The generator of this call's inputs."""
    return torch.Generator().manual_seed(seed_of(call, options.seed))


def run(operator: OperatorOverload, bench: Bench, maker: InputMaker) -> Sides:
    """One call on all sides, each with a copy of the same inputs."""
    target = bench.target
    compute = GOLDENS.get(operator.name) if target.name != "cpu" else None
    try:
        args, kwargs = maker.arguments()
        if compute is not None and not (operator.call.kept and bench.kept.tensors):
            args, kwargs = settle(operator.argument_names, args, kwargs)
    except Exception as error:
        side = "golden" if isinstance(error, NoGolden) else "inputs"
        raise Failed(side, error) from None

    def on(device: str, wider: bool = False) -> list[torch.Tensor]:
        dtype = WIDER if wider else None
        mine = [move_value(a, device, dtype) for a in args]
        named = {k: move_value(v, device, dtype) for k, v in kwargs.items()}
        with torch.no_grad():
            if compute is not None and device == "cpu":
                found = compute(name_arguments(operator.argument_names, mine, named))
            else:
                found = outputs(operator, mine, named)
            return [judging.as_tensor(item) for item in found]

    bench.announce("golden")
    golden = attempt("golden", lambda: on("cpu", wider=True))
    bench.announce("reference")
    try:
        reference: list[torch.Tensor] | None = attempt("reference", lambda: on("cpu"))
        why = ""
    except Failed as failed:
        reference, why = None, failed.line

    def on_target() -> list[torch.Tensor]:
        with target.computing():
            found = on(target.name)
        target.device.synchronise()
        known = found if compute is None else found[: len(golden)]
        return [target.faulty(operator.call.op, item) for item in known]

    bench.announce("target")
    return Sides(golden, reference, attempt("target", on_target), why)


def attempt(side: str, compute: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """The results, or `Failed` with the side."""
    try:
        return compute()
    except Exception as error:  # an operator may raise anything
        raise Failed(side, error) from None


def backward(operator: OperatorOverload, bench: Bench) -> Iterator[ReplayResult]:
    """Gradients of all inputs that need one, for a fixed gradient of the results."""
    call, target = operator.call, bench.target
    grads_of = call if any(t.requires_grad for t in call.tensors()) else with_gradients(call)
    maker = InputMaker(
        grads_of,
        generator(call, bench.options),
        operator.argument_names,
        requires_grad=True,
        held=bench.kept.tensors,
    )
    args, kwargs = maker.arguments()

    def on(device: str, wider: bool = False) -> list[torch.Tensor]:
        dtype = WIDER if wider else None
        mine = [move_value(a, device, dtype) for a in args]
        named = {k: move_value(v, device, dtype) for k, v in kwargs.items()}
        inputs = [t for t in tensors([mine, list(named.values())]) if t.requires_grad]
        with torch.enable_grad():
            made = [
                item
                for item in outputs(operator, mine, named)
                if isinstance(item, torch.Tensor) and item.requires_grad
            ]
        if not made or not inputs:
            return []
        found = torch.autograd.grad(
            made, inputs, [gradient(item) for item in made], allow_unused=True
        )
        return [judging.as_tensor(g) for g in found if g is not None]

    def on_target() -> list[torch.Tensor]:
        with target.computing():
            found = on(target.name)
        target.device.synchronise()
        return found

    try:
        bench.announce("golden")
        golden = attempt("golden", lambda: on("cpu", wider=True))
        if not golden:
            return
        reference = attempt("reference", lambda: on("cpu"))
        bench.announce("target")
        sides = Sides(golden, reference, attempt("target", on_target))
    except Failed as failed:
        if failed.side == "target":
            yield report_raise(call, "recorded", "backward", failed)
        return
    yield worst(operator, sides, "recorded", "backward", bench)


def gradient(item: torch.Tensor) -> torch.Tensor:
    """A gradient that is the same on every side: drawn on the CPU in float64."""
    draw = torch.Generator().manual_seed(17)
    made = torch.randn(item.shape, generator=draw, dtype=torch.float64)
    return made.to(torch.float32).to(item.device, item.dtype)


def with_gradients(call: ReplayCall) -> ReplayCall:
    """The call with gradients wanted for all floating tensors: a Chrome trace does not say."""

    def wanted(value: Any) -> Any:
        if isinstance(value, list):
            return [wanted(item) for item in value]
        if isinstance(value, TensorArg) and value.dtype.startswith(("float", "bfloat")):
            return replace(value, requires_grad=True)
        return value

    return replace(call, args=tuple(wanted(a) for a in call.args))


def worst(
    operator: OperatorOverload, sides: Sides, case: str, phase: str, bench: Bench
) -> ReplayResult:
    """The worst of a call's results: the first of the most severe status."""
    call = operator.call
    golden, target = sides.golden, sides.target
    level, dtype = "", call.dtype
    findings = []
    if len(target) != len(golden):
        reason = Text(
            "{number} results instead of {golden}", number=len(target), golden=len(golden)
        )
        findings.append(ReplayFinding(RecordStatus.FAIL, "results", None, None, reason=reason))
    for index, (one, right) in enumerate(zip(target, golden, strict=False)):
        reference = sides.reference[index] if sides.reference else None
        dtype = str(one.dtype).removeprefix("torch.")
        limit = bench.tolerance.operator(call.op, least(call.dtype, dtype), bench.options.level)
        if phase == "backward":
            limit = replace(limit, exact=False)  # gradients of a gather are sums
        level = limit.level
        if operator.uninitialised:
            right = one if one.shape == right.shape else right
            reference = None if one.shape != right.shape else one
        finding = judging.judge(one, reference, right, limit)
        if finding.status is RecordStatus.FAIL and not one.is_floating_point():
            finding = ties(sides, index, finding)
        findings.append(finding)
    if not findings:
        return ReplayResult(
            call, case, phase, ReplayFinding(RecordStatus.PASS, "no result", 0.0, 0.0), level, dtype
        )
    order = (
        RecordStatus.FAIL,
        RecordStatus.NAN_MISMATCH,
        RecordStatus.WARN,
        RecordStatus.PASS,
        RecordStatus.IDENTICAL,
    )
    found = min(findings, key=lambda finding: order.index(finding.status))
    if sides.why_no_reference and found.reason is None:
        found = replace(
            found, reason=Text("no reference in this dtype ({why})", why=sides.why_no_reference)
        )
    return ReplayResult(call, case, phase, found, level, dtype)


def least(a: str, b: str) -> str:
    """The less precise of the inputs' and the result's dtype."""
    order = ("bfloat16", "float16", "float32", "complex64", "float64")
    ranks = [order.index(d) for d in (a, b) if d in order]
    return order[min(ranks)] if ranks else b


def ties(sides: Sides, index: int, finding: ReplayFinding) -> ReplayFinding:
    """Indices of equal values may differ: right when the values beside them are equal."""
    if index == 0 or sides.reference is None:
        return finding
    values, right = sides.target[index - 1], sides.reference[index - 1]
    if values.shape == sides.target[index].shape and judging.identical(values, right):
        note = "indices of equal values in another order"
        return replace(finding, status=RecordStatus.PASS, reason=note)
    return finding


def differs(operator: OperatorOverload, maker: InputMaker) -> bool:
    """Whether two calls on the CPU give different values: dropout with p = 0 draws nothing."""
    args, kwargs = maker.arguments()

    def once(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        mine, named = (
            [move_value(a, "cpu") for a in args],
            {k: move_value(v, "cpu") for k, v in kwargs.items()},
        )
        with torch.no_grad():
            return [judging.as_tensor(item) for item in outputs(operator, mine, named)]

    with torch.random.fork_rng(devices=[]):
        first, second = once(1)[:1], once(2)[:1]  # behind the values come seeds and offsets
        return any(not judging.identical(a, b) for a, b in zip(first, second, strict=True))


def compare_draws(call: ReplayCall, sides: Sides) -> ReplayResult:
    """A random operator: its values cannot be equal, its mean and spread can."""
    reference = sides.reference if sides.reference is not None else sides.golden
    reason = "drawn values; mean and spread agree"
    for mine, theirs in zip(sides.target, reference, strict=False):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            right = f"{judging.shape(theirs)} {theirs.dtype}"
            reason = Text(
                "{shape} {dtype} instead of {right}",
                shape=judging.shape(mine),
                dtype=mine.dtype,
                right=right,
            )
            return ReplayResult(
                call,
                "recorded",
                "forward",
                ReplayFinding(RecordStatus.FAIL, "shape", None, None, reason=reason),
            )
        distance = apart(mine, theirs)
        if distance > RANDOM_SIGMAS:
            found = ReplayFinding(
                RecordStatus.FAIL, "means apart, standard errors", distance, RANDOM_SIGMAS
            )
            return ReplayResult(call, "recorded", "forward", found)
    return ReplayResult(
        call,
        "recorded",
        "forward",
        ReplayFinding(RecordStatus.RANDOM, "drawn", None, None, reason=reason),
    )


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """How many standard errors the means of two drawn tensors are apart; 0 for few values."""
    x, y = judging.real(a), judging.real(b)
    if x.numel() < 64:
        return 0.0
    error = float(((x.var() + y.var()) / x.numel()).sqrt())
    distance = abs(float(x.mean() - y.mean()))
    return distance / error if error > 0 else (0.0 if distance == 0 else float("inf"))


def empty_call(call: ReplayCall) -> ReplayCall | None:
    """The call with its first dimension empty, in every tensor that shares its size."""
    first = next((t for t in call.tensors() if t.shape), None)
    if first is None or not first.shape[0]:
        return None
    length = first.shape[0]

    def cut(value: Any) -> Any:
        if isinstance(value, list):
            return [cut(item) for item in value]
        if isinstance(value, TensorArg) and value.shape and value.shape[0] == length:
            return replace(value, shape=(0, *value.shape[1:]), stride=None)
        return value

    return replace(call, args=tuple(cut(a) for a in call.args))


def size(call: ReplayCall) -> int:
    """Elements of all inputs."""
    return sum(tensor.elements for tensor in call.tensors())


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors inside of lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from tensors(item)


def leave_uncompared(call: ReplayCall, reason: str) -> ReplayResult:
    """A call that was not replayed."""
    finding = ReplayFinding(RecordStatus.UNCOMPARED, "not compared", None, None, reason=reason)
    return ReplayResult(call, "recorded", "forward", finding, dtype=call.dtype)


def report_raise(call: ReplayCall, case: str, phase: str, failed: Failed) -> ReplayResult:
    """A side raised: on the target alone it is a failure."""
    if failed.side == "target":
        reason = Text("the target raises {line}", line=failed.line)
        finding = ReplayFinding(RecordStatus.FAIL, "exception", None, None, reason=reason)
    else:
        reason = Text("no {side} on the CPU: {line}", side=failed.side, line=failed.line)
        finding = ReplayFinding(RecordStatus.UNCOMPARED, "not compared", None, None, reason=reason)
    return ReplayResult(call, case, phase, finding, dtype=call.dtype)
