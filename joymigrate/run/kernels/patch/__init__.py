"""Replaces parts of a model by this registry's operators, and puts them back.

    from joymigrate.run import kernels

    report = kernels.apply(model, "cpu")     # or a chip's name; without one, the model's device
    print(report)                            # what was replaced, what was left, and why
    report.undo()

Each file here is one pattern: it finds its sites by what a module *computes*, tried on a few
numbers, not by the model's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.kernels.operator import REFERENCE, dtype_name
from joymigrate.run.kernels.patch import attention, bags, gate, loss, norms, rotary
from joymigrate.run.kernels.patch.report import KeptModule, ReplacedModule, Report
from joymigrate.run.kernels.patch.site import PatchSite, Undo
from joymigrate.run.kernels.registry import op

if TYPE_CHECKING:
    from torch import nn

    from joymigrate.chips import Chip

Finder = Callable[["nn.Module", "str | None"], Iterator[PatchSite]]

PATTERNS: Mapping[str, Finder] = {
    "rms_norm": norms.sites,
    "swiglu": gate.sites,
    "rotary": rotary.sites,
    "attention": attention.sites,
    "fused_linear_cross_entropy": loss.sites,
    "embedding_bag": bags.sites,
}


def apply(
    model: nn.Module,
    chip: str | Chip | None = None,
    *,
    only: Sequence[str] | None = None,
    request: Mapping[str, str] | None = None,
) -> Report:
    """Replace what has a faster implementation on `chip`; returns what was done.

    `only` names operators; `request` asks for implementations by operator and raises `JoyError`
    where one can't run. Calls choose by the device of their tensors, so a model may be patched
    before it is moved. The report is a context manager that puts everything back.
    """
    wanted = dict(request or {})
    chosen = check_names([*(PATTERNS if only is None else only)])
    check_names(wanted)
    device = None if chip is not None else device_of(model)
    dtype = dtype_of(model)
    report = Report()
    try:
        for name in chosen:
            for site in PATTERNS[name](model, wanted.get(name)):
                place(site, report, chip, device, dtype, wanted.get(name), model.training)
    except BaseException:
        report.undo()
        raise
    return report


def place(
    site: PatchSite,
    report: Report,
    chip: Any,
    device: Any,
    dtype: str,
    wanted: str | None,
    training: bool,
) -> None:
    """Replace one site, or record why it was left."""
    if site.replace is None:
        report.left.append(KeptModule(site.module, site.op, site.reason))
        return
    kernel = op(site.op)
    choice = kernel.choose(
        chip, dtype, site.shape, device=device, request=wanted, variant=site.variant, grad=training
    )
    if choice.implementation == REFERENCE and wanted is None:
        report.left.append(
            KeptModule(site.module, site.op, f"the model's own is best: {choice.reason}")
        )
        return
    report.undos.append(site.replace())
    report.replaced.append(
        ReplacedModule(site.module, site.op, choice.implementation, choice.reason)
    )


def check_names(names: Any) -> list[str]:
    """`names` when there is a pattern for each; `JoyError` with the nearest name otherwise."""
    for name in names:
        if name not in PATTERNS:
            raise JoyError(
                f"models are not patched for '{name}'.{did_you_mean(name, PATTERNS)}",
                help=f"one of {', '.join(PATTERNS)}",
            )
    return list(names)


def device_of(model: nn.Module) -> str:
    """The device type of the model's parameters."""
    first = next(model.parameters(), None)
    kind = "cpu" if first is None else first.device.type
    return "cpu" if kind == "meta" else kind


def dtype_of(model: nn.Module) -> str:
    """The dtype of most of the model's floating parameters."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            name = dtype_name(parameter.dtype)
            counts[name] = counts.get(name, 0) + parameter.numel()
    return max(counts, key=lambda name: counts[name], default="float32")


__all__ = ["KeptModule", "PatchSite", "ReplacedModule", "Report", "Undo", "apply"]
