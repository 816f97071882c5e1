"""joymigrate's own calls of the vendor's functions, as it makes them in programs: arguments,
layouts, masks; forward and backward against the operator's formula in float64 on the CPU.

The kit holds the files of `joymigrate.run.kernels` that this needs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from .operators import form, listen, worst


def run_case(case: dict[str, Any], device: str) -> dict[str, Any]:
    """What the chip does with a call: like `operators.run_case`. `skipped` where joymigrate would
    not make it."""
    from joymigrate.run.kernels.arguments import prepare
    from joymigrate.run.kernels.operator import Call, bind, dtype_name
    from joymigrate.run.kernels.results import gradients, outputs_of

    for package in case["packages"]:
        if importlib.util.find_spec(package) is None:
            return {"outcome": "skipped", "message": f"{package} is not installed"}
    operator, samples = operator_of(case["operator"])
    sample, dtype = samples[case["sample"]], getattr(torch, case["dtype"])
    grad, strided = case["grad"] and bool(sample.grad), case["layout"] == "strided"
    exact = prepare(sample, dtype, grad=grad, exact=True)
    wanted = outputs_of(operator.reference, exact)
    seeds = [torch.linspace(0.5, 1.5, one.numel()).reshape(one.shape).to(dtype) for one in wanted]
    expected = gradients(wanted, exact.leaves, [s.double() for s in seeds]) if grad else []
    found: list[torch.Tensor] = []
    with listen() as said:
        try:
            ready = prepare(sample, dtype, device, grad=grad, strided=strided)
            tensor, shape, variant = operator.describe(*ready.args, **ready.kwargs)
            kind = device.split(":")[0]
            call = Call(case["chip"], kind, dtype_name(tensor.dtype), shape, variant, grad)
            why = load(case["when"])(call) if case["when"] else None
            if why is not None:
                return {"outcome": "skipped", "message": f"joymigrate does not call it: {why}"}
            results = outputs_of(bind(operator.reference, load(case["call"])), ready)
            held = [one.detach().cpu() for one in results]
            if grad:
                found = gradients(results, ready.leaves, [s.to(device) for s in seeds])
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            return {"outcome": "refused", "message": str(error)}
    row = form(results, said)
    row["error"] = worst(held, [one.detach() for one in wanted], case["dtype"])
    if grad:
        row["gradient_error"] = worst([one.cpu() for one in found], expected, case["dtype"])
    return row


@functools.cache
def operator_of(place: str) -> tuple[Any, dict[str, Any]]:
    """An operator (`module:name`) and its sample calls by name."""
    from joymigrate.run.kernels.samples import Samples

    module, _, name = place.partition(":")
    declared = importlib.import_module(module)
    known = getattr(declared, "OPERATORS", None) or (declared.OPERATOR,)
    operator = next(one for one in known if one.name == name)
    return operator, {case.name: case for case in operator.cases(Samples(0))}


def load(place: str) -> Callable[..., Any]:
    """The function of `module:name`."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
