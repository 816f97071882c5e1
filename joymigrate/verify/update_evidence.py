"""The case of an optimiser that updates otherwise: both settings, and what the baseline's update of
known tensors was (`optimisers.probe`). No torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from safetensors.numpy import save

from joymigrate.verify.bundle import Rank
from joymigrate.verify.optimiser_stage import CLOSE, apart

OWN = "torch.optim"
SCRIPT = '''"""{name} updates otherwise than in the baseline. Run: python reproduce.py DEVICE"""
import inspect
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
golden = load_file(Path(__file__).parent / "tensors.safetensors")["golden"]
make = torch.optim.{name}


def error(settings, where):
    random = np.random.Generator(np.random.PCG64(20240607))
    made, sums = [random.standard_normal({shape}) for _ in range(4)], []
    weight = torch.nn.Parameter(torch.from_numpy(made[0]).to(where))
    known = inspect.signature(make).parameters
    optimiser = make([weight], **{{k: v for k, v in settings.items() if k in known}})
    for gradient in made[1:]:
        before, weight.grad = weight.detach().clone(), torch.from_numpy(gradient).to(where)
        optimiser.step()
        moved = (weight.detach() - before).cpu().view(-1, 64)
        sums.append((1 + 0.37 * torch.arange(len(moved)).double()) @ moved)
    return float((torch.stack(sums) - golden).norm() / golden.norm())


print("the target's settings on", device, error({target!r}, device))
print("the baseline's settings on", device, error({baseline!r}, device))
'''


def update_case(ours: Rank, theirs: Rank) -> tuple[dict[str, Any], bytes] | None:
    """(case, tensors) of the first optimiser whose updates of known tensors differ."""
    for step in ours.steps:
        if step not in theirs.steps:
            continue
        sides = (rank.facts(step).get("optimisers", []) for rank in (ours, theirs))
        for mine, other in zip(*sides, strict=False):
            if not other.get("module", OWN).startswith(OWN):
                continue  # the program's own class, which the script can't import
            for a, b in zip(mine["probe"], other["probe"], strict=False):
                one, two = a["results"][0], b["results"][0]
                if "updates" not in one or "updates" not in two or one["shape"] != two["shape"]:
                    continue
                error = apart(one["updates"], two["updates"])
                if error <= CLOSE:
                    continue
                golden = np.asarray(one["updates"], np.float64)
                case = {
                    "optimiser": other["class"],
                    "baseline_optimiser": mine["class"],
                    "step": step,
                    "shape": tuple(one["shape"]),
                    "error": min(float(error), 1e300),
                    "settings": b["settings"],
                    "baseline_settings": a["settings"],
                }
                return case, save({"golden": golden})
    return None


def script(case: dict[str, Any]) -> str:
    """The script of a case, 30 lines at most."""
    facts = {"target": case["settings"], "baseline": case["baseline_settings"]}
    return SCRIPT.format(name=case["optimiser"], shape=tuple(case["shape"]), **facts)


def paragraph(case: dict[str, Any]) -> str:
    """What is wrong, in words."""
    ours, theirs = case["baseline_settings"], case["settings"]
    keys = [k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k)]
    said = ", ".join(f"{key} is {theirs.get(key)}, {ours.get(key)} in the baseline" for key in keys)
    return (
        f"Three updates of known tensors by `{case['optimiser']}` are {case['error']:.3g} apart "
        f"from those by the baseline's `{case['baseline_optimiser']}`, both in float64. "
        f"{'Settings: ' + said if said else 'The settings are the same: the code differs'}. "
        "`reproduce.py` makes the updates with both settings on any device; it needs no program."
    )
