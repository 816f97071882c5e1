"""The first wrong place as a case to hand on: a script of its own, its tensors, and one paragraph.

Without torch: the tensors are copied as they lie in the target's recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.verify.bundle import Rank
from joymigrate.verify.bundle.write import to_bytes
from joymigrate.verify.model import Verdict

TENSORS = "tensors.safetensors"
CASE, EVIDENCE = "evidence.json", "evidence.safetensors"

CALL = '''"""{name} is wrong on {device}. Run: python reproduce.py DEVICE"""
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
held = load_file(Path(__file__).parent / "tensors.safetensors")


def run(where, dtype=None):
    def x(name):
        value = held[name].to(where)
        return value.to(dtype) if dtype and value.is_floating_point() else value

    return {call}


def error(value, golden):
    value = value[0] if isinstance(value, tuple) else value
    a, g = value.detach().cpu().double(), golden.double()
    return float((a - g).norm() / g.norm())


print("recorded on {device}:", error(held["target"], held["golden"]))
print("cpu now:", error(run("cpu"), held["golden"]))
print(device, "now:", error(run(device), held["golden"]))
'''

MODULE = '''"""{module} is wrong, and each call inside of it is right: another formula."""
from pathlib import Path

from safetensors.torch import load_file

held = load_file(Path(__file__).parent / "tensors.safetensors")
golden = held["golden"].double()
error = float((held["target"].double() - golden).norm() / golden.norm())
print("relative error of {what}:", error)
for name, value in held.items():
    print(name, value.dtype, tuple(value.shape))
'''


def write_pack(rank: Rank, verdict: Verdict, folder: Path) -> str:
    """Write the case of a verdict's first wrong place into `folder`; returns a line on it.

    `rank` is the target's recording. Raises JoyError where nothing was kept.
    """
    first, case = verdict.first_divergence, rank.json(CASE)
    if first is None:
        return "nothing failed: there is no evidence to write"
    if not case or case["module"] != first.module:
        raise JoyError(
            f"no tensors were kept of the first wrong place ({first.module}, {first.stage})",
            help="evidence is kept of modules that are wrong in float32 (S3); the verdict itself "
            "holds the numbers of other places",
        )
    return write_case(case, rank.file(EVIDENCE).read_bytes(), folder)


def write_case(case: dict[str, Any], tensors: bytes, folder: Path) -> str:
    """Write a case and its tensors (safetensors); returns a line on it."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / TENSORS, tensors)
    replace_file(folder / "reproduce.py", script(case).encode())
    replace_file(folder / "case.json", to_bytes(case))
    replace_file(folder / "README.md", (paragraph(case) + "\n").encode())
    return f"evidence in {folder}: python {folder / 'reproduce.py'} DEVICE"


def script(case: dict[str, Any]) -> str:
    """The script of a case, 30 lines at most."""
    wrong = case["call"]
    if wrong is None:
        return MODULE.format(module=case["module"], what=case["value"])
    return CALL.format(name=wrong["name"], device=wrong["device"], call=write_call(wrong))


def write_call(wrong: dict[str, Any]) -> str:
    """The call as source."""
    args = [source(value) for value in wrong["args"]["list"]]
    args += [f"{key}={source(value)}" for key, value in wrong["kwargs"]["dict"].items()]
    return f"{wrong['name']}({', '.join(args)})"


def source(value: dict[str, Any]) -> str:
    """One argument as source."""
    ((kind, held),) = value.items()
    if kind == "tensor":
        return f'x("{held}")'
    if kind == "dtype":
        return f"torch.{held}"
    if kind == "device":
        return "where"
    if kind == "list":
        return "(" + "".join(f"{source(member)}, " for member in held).rstrip(" ") + ")"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {source(v)}" for key, v in held.items()) + "}"
    return f'float("{held}")' if held in (float("inf"), -float("inf")) else repr(held)


def paragraph(case: dict[str, Any]) -> str:
    """What a vendor's engineer needs to know."""
    wrong = case["call"]
    if wrong is None:
        return (
            f"`{case['module']}` ({case['value']}) has a relative error of {case['error']:.3g} "
            f"against float64 on the CPU, from the baseline's inputs; the baseline's own error is "
            f"{case['baseline_error']:.3g}. Every call of torch inside of it that could be run by "
            "itself agrees with float64 on its own inputs: the module computes another formula, "
            "which is no fault of the device."
        )
    types = ", ".join(f"{name} {kind}" for name, kind in wrong["dtypes"].items())
    return (
        f"`{wrong['name']}` on {wrong['device']} has a relative L2 error of {wrong['error']:.3g} "
        f"against float64 on the CPU; the CPU in the same types has {wrong['cpu_error']:.3g}. "
        f"Inputs ({types}), the result and the golden are in `{TENSORS}`; `reproduce.py` runs the "
        f"call by itself on any device. It was found inside of `{case['module']}`, whose own error "
        f"is {case['error']:.3g}."
    )
