"""A short script for an operator that `verify ops` found diverging, of its verdict's JSON.

The verdict holds an operator's types and shapes and no values: where tensors alone are its
arguments, others are drawn; the rest has a case with its own inputs (`verify ops --evidence`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.chips import Chip, get
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.verify.model import Status

SCHEMA = "joymigrate.verdict/1"
EVIDENCE = "verify ops RECORDING --evidence DIR writes a script with the recorded inputs"
Row = Mapping[str, Any]


def findings(document: Mapping[str, Any]) -> dict[str, Row]:
    """Rows that failed, by the operator; those as recorded come before unusual inputs."""
    rows = [row for row in (document.get("operators") or {}).get("rows", ()) if failed(row)]
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda one: one["case"] != "recorded"):
        name = str(row["op"]) + (f".{row['overload']}" if row["overload"] else "")
        number = 1 + sum(one.partition("#")[0] == name for one in found)
        found[name if number == 1 else f"{name}#{number}"] = row
    return found


def failed(row: Row) -> bool:
    """Whether the row's status is a failure."""
    return bool(Status(row["status"]).failed)


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
    return "\n".join(lines(row, wanted.partition("#")[0], chip)) + "\n"


def tensors_alone(wanted: str, given: int) -> bool:
    """Whether an operator can be called with so many tensors and nothing else."""
    import torch

    name, _, rest = wanted.partition("#")[0].partition("::")
    operator, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, name), operator, None), overload or "default", None)
    if found is None:
        return False
    arguments = found._schema.arguments
    plain = [one for one in arguments[:given] if str(one.type) in ("Tensor", "Optional[Tensor]")]
    needed = [one for one in arguments[given:] if not one.has_default_value()]
    return len(plain) == given and not needed


def lines(row: Row, name: str, chip: Chip) -> list[str]:
    """The script."""
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    call = f"torch.ops.{namespace}.{operator}.{overload or 'default'}(*inputs)"
    draw = "torch.randn(shape, dtype=torch.float64)"
    if not str(row["dtype"]).startswith(("float", "bfloat")):
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
        "    inputs = [x.to(where) for x in held]",
        "    inputs = [x.double() if wide and x.is_floating_point() else x for x in inputs]",
        *(["    [x.requires_grad_() for x in inputs]"] if back else []),
        f"    result = {call}",
        f"    {result}",
        *(["    result.sum().backward()", "    result = inputs[0].grad"] if back else []),
        "    return result.detach().cpu().double()",
        "golden, found, own = run('cpu', True), run(device, False), run('cpu', False)",
        "error = ((found - golden).norm() / golden.norm()).item()",
        "cpu = ((own - golden).norm() / golden.norm()).item()",
        "print('relative error', error, 'and on the CPU', cpu)",
        f"sys.exit(not error <= {float(row['limit'] or 0.0)!r})",
    ]
