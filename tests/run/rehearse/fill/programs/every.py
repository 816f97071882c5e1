"""Calls every filled overload on the chip, forward and backward, and says how far off it is."""

import json
import sys
from pathlib import Path

import torch
import torch_npu

sys.path.insert(0, str(Path(__file__).parents[5]))

from joymigrate.run.rehearse import fill
from joymigrate.run.rehearse.fill import register as installing
from tests.run.rehearse.fill import compare
from tests.run.rehearse.fill.cases import CASES

DEVICE = "npu:0"
FILLS = fill.fills()
called = set()


def counted(one, overload, real=installing.kernel):
    kernel = real(one, overload)
    name = overload._schema.name + (
        f".{overload._schema.overload_name}" if overload._schema.overload_name else ""
    )

    def run(*args, **kwargs):
        called.add(name)
        return kernel(*args, **kwargs)

    return run


def variants(one):
    """Overloads that write: into `out` tensors, or in place."""
    for name in one.overloads:
        overload = installing.find(name)
        written = [a for a in overload._schema.arguments if installing.writes(a)]
        if written:
            yield overload, [a.name for a in written if a.kwarg_only]


def through_out(one, overload, outs):
    """Call an `out` overload with targets of another size, or an in-place one with a copy."""

    def run(*args, **kwargs):
        if not outs:
            return overload(*args, **kwargs)
        like = compare.functional(one)(*args, **kwargs)
        like = like if isinstance(like, (tuple, list)) else [like]
        targets = {
            name: torch.empty(0, dtype=value.dtype, device=DEVICE)
            for name, value in zip(outs, like)
        }
        return overload(*args, **kwargs, **targets)

    return run


def gradients(one, overload, case, device, wide):
    """Gradients of the case's floating inputs, through a fixed weighting of the results."""
    leaves = []

    def prepared(value):
        if not isinstance(value, torch.Tensor):
            return value
        value = value.double() if wide and value.is_floating_point() else value.clone()
        value = value.to(device)
        if value.is_floating_point():
            leaves.append(value.requires_grad_())
        return value

    args, kwargs = torch.utils._pytree.tree_map(prepared, case)
    made = overload(*args, **kwargs)
    results = made if isinstance(made, (tuple, list)) else [made]
    results = [r for r in results if r is not None and r.requires_grad][:1]
    if not results:
        return None
    weights = torch.linspace(0.5, 1.5, results[0].numel()).reshape(results[0].shape)
    total = (results[0] * weights.to(results[0])).sum()
    return torch.autograd.grad(total, leaves, allow_unused=True)


def backward(one, case):
    overload = compare.functional(one)
    try:
        expected = gradients(one, overload, case, "cpu", True)
    except (RuntimeError, NotImplementedError):
        return None  # torch has no gradient for it
    if expected is None:
        return None
    found = gradients(one, overload, case, DEVICE, False)
    pairs = [(a, b) for a, b in zip(found, expected) if b is not None and b.isfinite().all()]
    return compare.worst(one, [a for a, _ in pairs], [b for _, b in pairs], scale=20, more=1e-6)


def smooth(case):
    """The case with plain numbers only, where a gradient is one number on every machine."""
    tensors = [t for t in torch.utils._pytree.tree_flatten(case)[0] if torch.is_tensor(t)]
    floating = [t for t in tensors if t.is_floating_point()]
    return floating and all(
        t.numel() and t.dtype == torch.float32 and bool((t.isfinite() & (t.abs() < 30)).all())
        for t in floating
    )


installing.kernel = counted
installed = fill.install()
report = {"forward": {}, "backward": {}, "errors": {}}
for name, cases in CASES.items():
    one = FILLS[name]
    try:
        worst = 0.0
        for case in cases:
            expected = compare.reference(one, case) if name != "_fused_rms_norm_backward" else None
            if expected is None:
                expected = compare.reference(one, case)
                found = compare.run(torch.ops.aten._fused_rms_norm_backward, one, case, DEVICE)
                worst = max(worst, compare.worst(one, found, expected))
                continue
            found = compare.run(compare.functional(one, case), one, case, DEVICE)
            worst = max(worst, compare.worst(one, found, expected))
            for overload, outs in variants(one):
                shaped = not outs and not (
                    expected and torch.is_tensor(case[0][0])
                    and case[0][0].shape == expected[0].shape
                    and case[0][0].dtype == compare.dtypes(found)[0]
                )
                if shaped and not isinstance(case[0][0], list):
                    continue  # in place, the result has to fit
                if isinstance(case[1].get("lr"), torch.Tensor) != ("tensor_lr" in str(overload)) and "lr" in case[1]:
                    continue
                made = compare.run(through_out(one, overload, outs), one, case, DEVICE)
                worst = max(worst, compare.worst(one, made, expected[: len(made)]))
            if "backward" not in name and smooth(case):
                slope = backward(one, case)
                if slope is not None:
                    report["backward"][name] = max(slope, report["backward"].get(name, 0.0))
        report["forward"][name] = worst
    except Exception as error:
        report["errors"][name] = f"{type(error).__name__}: {error}"[:400]
for name in ("geometric_", "cauchy_", "log_normal_"):
    getattr(torch.empty(50, device=DEVICE), name)(0.5)
report["uncalled"] = sorted(set(installed.names) - called)
report["not_installed"] = sorted(set(fill.names()) - set(installed.names))
installed.remove()
try:
    torch.lgamma(torch.ones(2, device=DEVICE))
    report["removed"] = False
except NotImplementedError:
    report["removed"] = True
print(json.dumps(report))
