"""The first wrong place as a case to hand on: a script of its own, its tensors, and one paragraph.

Without torch: the tensors are copied as they lie in the target's recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.verify import update_evidence
from joymigrate.verify.bundle import Rank
from joymigrate.verify.bundle.write import to_bytes
from joymigrate.verify.model import Phase, Verdict

TENSORS = "tensors.safetensors"
CASE, EVIDENCE = "evidence.json", "evidence.safetensors"
REST_CASE, REST_EVIDENCE = "rest-evidence.json", "rest-evidence.safetensors"
CALLS = "calls.py"  # beside the script, where they are too many for its 30 lines
MOST_LINES = 2  # of calls in the script itself
MOST_NAMED = 6  # inputs in the paragraph

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


REST = '''"""{value} ({kind}) is computed otherwise. Run: python reproduce.py DEVICE"""
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
held = load_file(Path(__file__).parent / "tensors.safetensors")
{calls}


def error(value):
    """By 64 signed sums of its elements, as the golden is kept."""
    flat = torch.as_tensor(value).detach().cpu().double().reshape(-1)
    flat = torch.cat((flat, flat.new_zeros(-len(flat) % 64))).view(-1, 64)
    sums = (flat * held["signs"][: len(flat), None]).sum(0)
    return float((sums - held["golden"]).norm()) / {norm!r}


print("golden: shape {shape}, norm {norm:.6g}; the baseline's own error: {baseline_error:.3g}")
print("float64 on the cpu, against the golden:", error(run("cpu", torch.float64)))
print(device, "now, in its own types:", error(run(device)))
'''

RUN = """def run(where, dtype=None):
    def x(name):
        value = held[name].to(where)
        return value.to(dtype) if dtype and value.is_floating_point() else value
{lines}
    return {result}"""

BESIDE = """import torch


def run(x, where):
{lines}
    return {result}
"""


def write_pack(rank: Rank, verdict: Verdict, folder: Path, baseline: Rank | None = None) -> str:
    """Write the case of a verdict's first wrong place into `folder`; returns a line on it.

    `rank` is the target's recording, `baseline` the other one. Raises JoyError where nothing was
    kept.
    """
    first, case = verdict.first_divergence, rank.json(CASE)
    if first is None:
        return "nothing failed: there is no evidence to write"
    rest = rank.json(REST_CASE)
    words = f"What explains it: {first.cause} ({first.evidence})." if first.cause else ""
    explained = {"explained": words}
    if first.stage == "S4R" and rest and first.step == rest["step"]:
        case = {**rest, "module": first.module, **explained}
        return write_case(case, rank.file(REST_EVIDENCE).read_bytes(), folder)
    if first.stage == "S5" and first.phase == Phase.OPTIMISER.value and baseline is not None:
        found = update_evidence.update_case(baseline, rank)
        if found is not None:
            return write_case(*found, folder)
    if not case or case["module"] != first.module:
        raise JoyError(
            f"no tensors were kept of the first wrong place ({first.module}, {first.stage})",
            help="evidence is kept of modules that are wrong in float32 (S3), of losses, gradients "
            "and state (S4R), and of optimisers (S5); the verdict has the numbers of other places",
        )
    return write_case({**case, **explained}, rank.file(EVIDENCE).read_bytes(), folder)


def write_case(case: dict[str, Any], tensors: bytes, folder: Path) -> str:
    """Write a case and its tensors (safetensors); returns a line on it."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / TENSORS, tensors)
    replace_file(folder / "reproduce.py", script(case).encode())
    if len(case.get("calls", ())) > MOST_LINES:
        text = BESIDE.format(lines=indent_calls(case), result=case["result"])
        replace_file(folder / CALLS, text.encode())
    replace_file(folder / "case.json", to_bytes(case))
    replace_file(folder / "README.md", (paragraph(case) + "\n").encode())
    return f"evidence in {folder}: python {folder / 'reproduce.py'} DEVICE"


def script(case: dict[str, Any]) -> str:
    """The script of a case, 30 lines at most."""
    if "optimiser" in case:
        return update_evidence.script(case)
    if "calls" in case:
        lines = indent_calls(case)
        if len(case["calls"]) > MOST_LINES:
            lines = "    from calls import run as calls"
            text = RUN.format(lines=lines, result="calls(x, where)")
        else:
            text = RUN.format(lines=lines, result=case["result"])
        return REST.format(**{**case, "calls": text})
    return MODULE.format(module=case["module"], what=case["value"])


def indent_calls(case: dict[str, Any]) -> str:
    """The calls of a value outside of models as lines of a function."""
    names = sorted(case["inputs"])
    given = f"{', '.join(names)}, = map(x, {names!r})"
    return "\n".join(f"    {line}" for line in ([given] if names else []) + case["calls"])


def paragraph(case: dict[str, Any]) -> str:
    """What a vendor's engineer needs to know."""
    if "optimiser" in case:
        return update_evidence.paragraph(case)
    explained = f" {case['explained']}" if case.get("explained") else ""
    if "operator" in case:
        return f"{of_operator(case)}{explained}"
    return f"{of_calls(case) if 'calls' in case else of_module(case)}{explained}"


def of_calls(case: dict[str, Any]) -> str:
    """The same of a value whose calls are in the script."""
    inputs = [f"{role} ({kind})" for role, kind in case["inputs"].values()]
    more = f" and {len(inputs) - MOST_NAMED} more" if len(inputs) > MOST_NAMED else ""
    within = f"`{case['module']}`: " if case["kind"] == "module" else ""
    where = case["kind"] + (f", step {case['step']}" if "step" in case else "")
    return (
        f"{within}`{case['value']}` ({where}) is {case['error']:.3g} apart from the baseline's in "
        "float64 on the CPU, both computed from the baseline's own tensors: "
        f"{', '.join(inputs[:MOST_NAMED])}{more}. The baseline's own error against float64 is "
        f"{case['baseline_error']:.3g}. `reproduce.py` runs the {len(case['calls'])} calls of the "
        "target by themselves on any device. Where float64 is wrong already, the program computes "
        "another formula; where only the device is, the fault is the device's."
    )


def of_operator(case: dict[str, Any]) -> str:
    """The same of a call that is wrong by itself."""
    wrong = case["operator"]
    types = ", ".join(f"{name} {kind}" for name, (_, kind) in case["inputs"].items())
    return (
        f"`{wrong['name']}` on {case['device']} has a relative L2 error of {wrong['error']:.3g} "
        f"against float64 on the CPU; the CPU in the same types has {wrong['cpu_error']:.3g}. "
        f"Inputs ({types}) and sums of the golden are in `{TENSORS}`; `reproduce.py` runs the call "
        f"by itself on any device. It was found inside of `{case['module']}`, whose own error is "
        f"{case['error']:.3g}."
    )


def of_module(case: dict[str, Any]) -> str:
    """The same of a module without such a call."""
    return (
        f"`{case['module']}` ({case['value']}) has a relative error of {case['error']:.3g} "
        f"against float64 on the CPU, from the baseline's inputs; the baseline's own error is "
        f"{case['baseline_error']:.3g}. Every call of torch inside of it that could be run by "
        "itself agrees with float64 on its own inputs: the module computes another formula, "
        "which is no fault of the device."
    )
