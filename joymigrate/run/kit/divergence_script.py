"""A short script for an operator that `verify ops` found diverging, of its verdict's JSON.

The verdict holds an operator's types and shapes and no values: where tensors alone are its
arguments, others are drawn; the rest has a case with its own inputs (`verify ops --evidence`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from joymigrate.chips import Chip, get
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.verify.model import RecordStatus
from joymigrate.verify.tolerance import Tolerance

SCHEMA = "joymigrate.verdict/1"
EVIDENCE = "verify ops RECORDING --evidence DIR writes a script with the recorded inputs"
Row = Mapping[str, Any]
RATIO = re.compile(r"(\w+) error / reference's")
# What a metric of `verify ops` measures of values `a` against those `g` that are right.
NORM = "(a - g).norm() / g.norm()"
RELATIVE = "((a - g).abs() / (g.abs() + 1e-7))"
MEASURES = {
    "rmse": NORM, "diff2": NORM, "diff1": "(a - g).abs().sum() / g.abs().sum()",
    "max": f"{RELATIVE}.max()", "mean": f"{RELATIVE}.mean()", "max_abs": "(a - g).abs().max()",
}  # fmt: skip
UNEQUAL = "share of unequal elements"  # to those of the CPU, in the same dtype


def findings(document: Mapping[str, Any]) -> dict[str, Row]:
    """Rows that failed, by the operator; those as recorded come before unusual inputs."""
    rows = [row for row in (document.get("operators") or {}).get("rows", ()) if has_failed(row)]
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda one: one["case"] != "recorded"):
        name = str(row["op"]) + (f".{row['overload']}" if row["overload"] else "")
        number = 1 + sum(one.partition("#")[0] == name for one in found)
        found[name if number == 1 else f"{name}#{number}"] = row
    return found


def has_failed(row: Row) -> bool:
    """Whether the row's status is a failure."""
    return bool(RecordStatus(row["status"]).failed)


def script(document: Mapping[str, Any], wanted: str) -> str:
    """At most thirty lines that exit 1 while the finding shows. JoyError where inputs lack."""
    known = findings(document)
    row = known.get(wanted)
    if row is None:
        several = ", ".join(list(known)[:8]) or "none"
        raise JoyError(
            f"no finding is called '{wanted}'.{did_you_mean(wanted, known)}",
            help=f"operators that failed: {several}; a module's case: verify replay --evidence DIR",
        )
    if row["case"] != "recorded":
        raise JoyError(f"{wanted} fails with {row['case']} inputs alone", help=EVIDENCE)
    chip, shapes = get(str((document.get("target") or {}).get("chip"))), row["shapes"]
    if (
        not shapes
        or any(shape is None for shape in shapes)
        or not tensors_alone(wanted, len(shapes))
    ):
        raise JoyError(f"{wanted} takes more than tensors, and a verdict holds none", help=EVIDENCE)
    if measure_of(row) is None:
        raise JoyError(f"{wanted} fails by its {row['metric']}, no error of values", help=EVIDENCE)
    if not drawn_values_suit(row, call_of(wanted)):
        raise JoyError(f"{wanted} gives no numbers of values drawn at random", help=EVIDENCE)
    return "\n".join(lines(row, wanted.partition("#")[0], chip)) + "\n"


def measure_of(row: Row) -> str | None:
    """The expression of a row's metric; None for what is no error of values."""
    if row["metric"] == UNEQUAL:
        return "(a != own).double().mean()"
    ratio = RATIO.fullmatch(str(row["metric"]))
    return MEASURES.get(ratio[1] if ratio else str(row["metric"]))


def call_of(wanted: str) -> Callable[..., Any] | None:
    """The operator of a finding's name; None where this torch has no such one."""
    import torch

    name, _, rest = wanted.partition("#")[0].partition("::")
    operator, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, name), operator, None)
    found: Callable[..., Any] | None = getattr(packet, overload or "default", None)
    return found


def drawn_values_suit(row: Row, call: Callable[..., Any] | None) -> bool:
    """Whether the script's values have a finite result here, in float64 and as they are.

    A logarithm has none of negative numbers, and nothing is looked up at a fraction.
    """
    import torch

    for wide in (True, False):
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(0)
                result = run_drawn(row, call, wide)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            return False
        if result is None or not result.isfinite().all() or not result.any():
            return False
    return True


def run_drawn(row: Row, call: Any, wide: bool) -> Any:
    """What the script computes on the CPU."""
    import torch

    dtype = getattr(torch, row["dtype"])
    inputs = [
        torch.randn(shape, dtype=torch.float64) if is_float(row) else torch.randint(0, 2, shape)
        for shape in row["shapes"]
    ]
    inputs = [value.to(dtype) for value in inputs]
    inputs = [value.double() if wide and value.is_floating_point() else value for value in inputs]
    back = row["phase"] == "backward"
    for value in inputs if back else ():
        value.requires_grad_()
    result = call(*inputs)
    result = result[0] if isinstance(result, (tuple, list)) else result
    if back:
        result.sum().backward()
        return inputs[0].grad
    return result.detach()


def is_float(row: Row) -> bool:
    """Whether a row's values are floats."""
    return str(row["dtype"]).startswith(("float", "bfloat"))


def tensors_alone(wanted: str, given: int) -> bool:
    """Whether an operator can be called with so many tensors and nothing else."""
    found = call_of(wanted)
    if found is None:
        return False
    arguments = found._schema.arguments  # type: ignore[attr-defined]
    plain = [one for one in arguments[:given] if str(one.type) in ("Tensor", "Optional[Tensor]")]
    needed = [one for one in arguments[given:] if not one.has_default_value()]
    return len(plain) == given and not needed


def lines(row: Row, name: str, chip: Chip) -> list[str]:
    """The script."""
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    call = f"torch.ops.{namespace}.{operator}.{overload or 'default'}(*inputs)"
    draw = "torch.randn(shape, dtype=torch.float64)"
    if not is_float(row):
        draw = "torch.randint(0, 2, shape)"
    back = row["phase"] == "backward"
    result = "result = result[0] if isinstance(result, (tuple, list)) else result"
    return [
        f'"""{name} on {chip.title}: {row["metric"]} {row["value"]}, limit {row["limit"]}',
        "",
        f"verify ops, {row['phase']}, {row['dtype']}. Exits 1 while it shows, 0 when mended.",
        '"""',
        "import sys",
        "import torch",
        "device = sys.argv[1] if len(sys.argv) > 1 else " + repr(chip.device),
        *([f"if device == {chip.device!r}:", f"    import {chip.package}"] if chip.package else []),
        "torch.manual_seed(0)",
        f"held = [{draw}.to(torch.{row['dtype']}) for shape in {row['shapes']}]",
        "def run(where, wide):",
        "    inputs = [x.clone().to(where) for x in held]",
        "    inputs = [x.double() if wide and x.is_floating_point() else x for x in inputs]",
        *(["    [x.requires_grad_() for x in inputs]"] if back else []),
        f"    result = {call}",
        f"    {result}",
        *(["    result.sum().backward()", "    result = inputs[0].grad"] if back else []),
        "    return result.detach().cpu().double()",
        "golden, found, own = run('cpu', True), run(device, False), run('cpu', False)",
        f"def off(a, g=golden): return ({measure_of(row)}).item()",
        "error, cpu = off(found), off(own)",
        "print('error', error, 'and on the CPU', cpu)",
        *judgement(row, chip),
    ]


def judgement(row: Row, chip: Chip) -> list[str]:
    """The last lines: the error alone, or by that of the CPU, against the row's limit."""
    limit = float(row["limit"] or 0.0)
    if not RATIO.fullmatch(str(row["metric"])):
        return [f"sys.exit(not error <= {limit!r})"]
    limits = Tolerance.of(chip).operator(str(row["op"]), str(row["dtype"]), row["level"])
    return [f"sys.exit(not error / max(cpu, {limits.floor!r}) <= {limit!r})"]
