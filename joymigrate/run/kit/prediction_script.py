"""A short script for a finding that was predicted: in a seal, a rehearsal or a coverage document.

A seal holds the arguments of every call; the others name operators only. What has no arguments is
asked whether the device has a kernel of its own, which needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.chips import Chip, get
from joymigrate.errors import JoyError, did_you_mean

SEAL, REHEARSAL, COVERAGE = (f"joymigrate.{n}/1" for n in ("seal", "rehearsal", "coverage"))
SCHEMAS = (SEAL, REHEARSAL, COVERAGE)
WRONG = ("refused", "fallback")
STATUSES = {"missing": "refused", "cpu_fallback": "fallback"}
Row = Mapping[str, Any]


def findings(document: Mapping[str, Any]) -> dict[str, Row]:
    """What the chip is said not to do well, by name: the operator, `#2` behind its second call."""
    if document["schema"] == SEAL:
        rows = [r for r in document["predictions"]["signatures"] if r["outcome"] in WRONG]
    elif document["schema"] == REHEARSAL:
        rows = [{**r, "outcome": "fallback"} for r in document["fallbacks"]]
        rows += [{**r, "outcome": "refused"} for r in document.get("refusals") or ()]
    else:
        rows = [
            {**r, "outcome": STATUSES[r["status"]]} for r in document["ops"]
            if r["status"] in STATUSES
        ]  # fmt: skip
    found: dict[str, Row] = {}
    for row in rows:
        name = str(row["op"])
        if row.get("overload"):
            name += f".{row['overload']}"
        number = 1 + sum(one.partition("#")[0] == name for one in found)
        found[name if number == 1 else f"{name}#{number}"] = row
    return found


def script(document: Mapping[str, Any], wanted: str) -> str:
    """At most thirty lines that exit 1 while the finding shows. JoyError for a name that is none,
    or whose arguments are not known."""
    known = findings(document)
    if wanted not in known:
        several = f"; it has {', '.join(list(known)[:8])}" if known else "; it has none"
        raise JoyError(
            f"no finding is called '{wanted}'.{did_you_mean(wanted, known)}",
            help=f"the document names what the chip would refuse or run on the CPU{several}",
        )
    row, chip = known[wanted], get(str(document["chip"]))
    if row["outcome"] == "refused" and document["schema"] == REHEARSAL:
        raise JoyError(
            f"the rehearsal holds no arguments of {wanted}",
            help="joymigrate rehearse --seal FILE keeps them; then report repro --score FILE",
        )
    if "args" in row and row["outcome"] == "refused":
        return "\n".join(write_call(document, wanted, row, chip)) + "\n"
    return "\n".join(write_registration(document, wanted, row, chip)) + "\n"


def head(document: Mapping[str, Any], wanted: str, row: Row, chip: Chip) -> list[str]:
    """What was said, by which document; imports."""
    versions = document.get("versions") or document.get("package") or {}
    if document["schema"] == COVERAGE:
        versions = {str(chip.distribution): document.get("version")}
    said = next(iter(row.get("messages") or ()), "") or row.get("note") or row["outcome"]
    text = " ".join(str(said).split()).replace("\\", "/").replace('"', "'")[:200]
    named = ", ".join(f"{k} {v}" for k, v in versions.items() if v)
    return [
        f'"""{wanted} on {chip.title}: {text}',
        "",
        f"Predicted, not yet seen on a chip ({named}). Exits 1 while it shows, 0 when mended.",
        '"""',
        "import sys",
        "import torch",
        *([f"import {chip.package}"] if chip.package else []),
        "",
    ]


def write_call(document: Mapping[str, Any], wanted: str, row: Row, chip: Chip) -> list[str]:
    """The call itself, on inputs of the same types, shapes and strides."""
    if row.get("kwargs") is None or "<" in repr([row["args"], row["kwargs"]]):
        raise JoyError(
            f"{wanted} takes an argument whose value the document does not hold",
            help="name another call of it, or write the call by hand",
        )
    namespace, _, rest = str(row["op"]).partition("::")
    operator, _, overload = rest.partition(".")
    args = [argument(value, chip.device) for value in row["args"]]
    args += [f"{name}={argument(v, chip.device)}" for name, v in row["kwargs"].items()]
    return [
        *head(document, wanted, row, chip),
        "def tensor(shape, strides, dtype):",
        "    held = [n if step else 1 for n, step in zip(shape, strides)]",
        f'    made = torch.empty_strided(held, strides, dtype=dtype, device="{chip.device}")',
        "    return made.copy_(torch.ones(held, dtype=dtype)).expand(shape)",
        "",
        "try:",
        f"    result = torch.ops.{namespace}.{operator}.{overload or 'default'}({', '.join(args)})",
        "    (result[0] if isinstance(result, (tuple, list)) else result).cpu()  # waits for it",
        "except (RuntimeError, NotImplementedError) as error:",
        "    sys.exit(f'refused: {error}')",
        "print('accepted')",
    ]


def argument(value: Any, device: str) -> str:
    """An argument as code."""
    if isinstance(value, Mapping) and "device" in value:
        return repr("cpu" if value["device"] == "cpu" else device)
    if isinstance(value, Mapping) and "tensor" not in value:
        return f"torch.{next(iter(value.values()))}"
    if isinstance(value, Mapping):
        facts = value["tensor"]
        strides = facts.get("strides")
        if facts["shape"] is None or strides is None:
            raise JoyError("the shape of an argument was not recorded")
        return f"tensor({facts['shape']}, {strides}, torch.{facts['dtype']})"
    if isinstance(value, list):
        return "[" + ", ".join(argument(one, device) for one in value) + "]"
    return repr(value)


def write_registration(document: Mapping[str, Any], wanted: str, row: Row, chip: Chip) -> list[str]:
    """Whether the chip's package registers a kernel for the operator."""
    name = wanted.partition("#")[0]
    return [
        *head(document, wanted, row, chip),
        f'name = "{name}"',
        f'key = torch._C._parse_dispatch_key("{key_of(chip)}")',
        "there = torch._C._dispatch_has_kernel_for_dispatch_key(name, key)",
        "print(name, 'has a kernel of the device' if there else 'has no kernel of the device')",
        "sys.exit(not there)",
    ]


def key_of(chip: Chip) -> str:
    """The key under which torch keeps the device's kernels."""
    return "CUDA" if chip.keeps_device else "PrivateUse1"
