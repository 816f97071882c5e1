"""Quantise a folder layer by layer: look at the inputs, search, fold, round, write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.open import open_quantised
from joymigrate.run.train.formats.stored_linears import Linear
from joymigrate.run.train.formats.write import FormatWriter
from joymigrate.run.train.quantise import awq, smooth
from joymigrate.run.train.quantise.data import CalibrationSamples
from joymigrate.run.train.quantise.groups import LinearGroup, find_groups
from joymigrate.run.train.quantise.observe import InputStatistics, observe
from joymigrate.run.train.quantise.options import QuantiseOptions
from joymigrate.run.train.quantise.rounding import (
    fixed_rounded,
    input_range,
    int4_linear,
    int4_scale,
    int8_linear,
    rows_rounded,
)
from joymigrate.run.train.quantise.skeleton import Skeleton

GROUPS = (128, 64, 32, 16, 8)
MOSTLY = 0.5  # of a layer's numbers must be in linears, else it is not quantised by this
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What was done to linears of one input. Errors are those of their outputs on calibration
    rows, relative: rounded to nearest, and as written."""

    layer: str
    linears: tuple[str, ...]
    folded_into: str | None
    parameter: float | None  # α of SmoothQuant, β of AWQ
    nearest: float
    error: float
    reason: str = ""  # why no scale was searched


@dataclass(slots=True)
class QuantisationResult:
    """What was written, and how."""

    scheme: str
    format: str
    static: bool
    group: int
    out: Path
    groups: list[GroupResult] = field(default_factory=list)
    plain: list[tuple[str, str]] = field(default_factory=list)  # linears left alone, and why
    samples: int = 0
    tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        """The object of the document."""
        return {
            "scheme": self.scheme,
            "format": self.format,
            "static": self.static,
            "group": self.group or None,
            "out": str(self.out),
            "calibration": {"samples": self.samples, "tokens": self.tokens},
            "layers": [
                {
                    "layer": one.layer,
                    "linears": list(one.linears),
                    "folded_into": one.folded_into,
                    "parameter": one.parameter,
                    "error_nearest": one.nearest,
                    "error": one.error,
                    "reason": one.reason or None,
                }
                for one in self.groups
            ],
            "plain": [{"linear": name, "reason": reason} for name, reason in self.plain],
        }


def quantise(
    model: Path,
    out: Path,
    samples: CalibrationSamples,
    options: QuantiseOptions,
    *,
    device: str = "cpu",
    replace_out: bool = False,
    progress: Progress | None = None,
) -> QuantisationResult:
    """Write the quantised model to `out`. The same inputs give the same files."""
    if open_quantised(model) is not None:
        raise JoyError("this model is quantised already", where=str(model), help="name a plain one")
    if out.resolve() == model.resolve():
        raise JoyError("the output is the model itself", where=str(out), help="another -o")
    with torch.inference_mode():
        skeleton = Skeleton(model, device)
        plain = left_alone(skeleton, options)
        group = group_size(skeleton, options, plain)
        made = QuantisationResult(
            options.scheme, options.format, options.static, group, out, plain=plain
        )
        made.samples, made.tokens = len(samples.ids), samples.tokens
        writer = FormatWriter(out, options.format, skeleton.dtype, replace=replace_out)
        with writer:
            work = QuantisationRun(skeleton, options, made, writer)
            work.run(samples, progress)
            writer.plain = [skeleton.head_name, *(name for name, _ in plain)]
            writer.finish(model, options.scheme, static=options.static, group=group)
    return made


def left_alone(skeleton: Skeleton, options: QuantiseOptions) -> list[tuple[str, str]]:
    """Linears that stay plain, and why. Raises `JoyError` for layers of another build."""
    layer = skeleton.layers[0]
    linears = [m for m in layer.modules() if isinstance(m, nn.Linear)]
    inside = sum(m.weight.numel() for m in linears)
    whole = sum(p.numel() for p in layer.parameters())
    if inside < MOSTLY * whole:
        raise JoyError(
            f"{skeleton.config.model_type}: only {inside / whole:.0%} of a layer's weights are in "
            "plain linear layers (experts and convolutions are not quantised)",
            where=str(skeleton.folder),
        )
    found = []
    for i, item in enumerate(skeleton.layers):
        for name, module in item.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            full = f"{skeleton.prefix(i)}.{name}"
            pattern = next((p for p in options.ignore if fnmatchcase(full, p)), None)
            if pattern is not None:
                found.append((full, f"--ignore {pattern}"))
            elif options.scheme == "w4a16" and module.in_features % 8:
                found.append((full, f"{module.in_features} inputs do not fill whole int32"))
    return found


def group_size(skeleton: Skeleton, options: QuantiseOptions, plain: list[tuple[str, str]]) -> int:
    """Inputs that share a scale of four bits; 0 for int8."""
    if options.scheme != "w4a16":
        return 0
    left = {name for name, _ in plain}
    inputs = {
        module.in_features
        for i, layer in enumerate(skeleton.layers)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear) and f"{skeleton.prefix(i)}.{name}" not in left
    }
    if not inputs:
        raise JoyError("no linear layer is left to quantise", help="a narrower --ignore")
    fitting = [size for size in GROUPS if all(n % size == 0 for n in inputs)]
    if options.group is None:
        return fitting[0]
    wrong = sorted(n for n in inputs if n % options.group)
    if wrong:
        raise JoyError(
            f"layers of {wrong[0]} inputs do not divide into groups of {options.group}",
            where=str(skeleton.folder),
            help=f"--group {fitting[0]}, or leave it out",
        )
    return options.group


class QuantisationRun:
    """One run over all layers."""

    def __init__(
        self,
        skeleton: Skeleton,
        options: QuantiseOptions,
        made: QuantisationResult,
        writer: FormatWriter,
    ) -> None:
        self.skeleton = skeleton
        self.options = options
        self.made = made
        self.writer = writer
        self.left = {name for name, _ in made.plain}
        self.written: set[str] = set()

    def run(self, samples: CalibrationSamples, progress: Progress | None) -> None:
        """Every layer in turn, then what is in none."""
        heard = [self.skeleton.listen(ids) for ids in samples.ids]
        states = [hidden for hidden, _ in heard]
        calls = [call for _, call in heard]
        count = len(self.skeleton.layers)
        for i in range(count):
            if progress is not None:
                progress(i, count)
            states = self.layer(i, states, [call[i] for call in calls])
        for name in self.skeleton.source:
            if name not in self.written:
                self.writer.put(name, self.skeleton.source.raw(name))

    def layer(self, i: int, states: list[Tensor], calls: list[dict[str, Any]]) -> list[Tensor]:
        """Quantise one layer; the plain layer's states behind it."""
        layer, prefix = self.skeleton.filled(i), self.skeleton.prefix(i)
        shortest = min(range(len(states)), key=lambda k: states[k].shape[1])
        about = (self.skeleton.config, self.skeleton.dtype)
        groups = find_groups(layer, states[shortest], calls[shortest], *about)
        inputs, after = observe(layer, groups, states, calls)
        stored: dict[str, Linear] = {}
        for group, seen in zip(groups, inputs, strict=True):
            stored |= self.group(layer, prefix, group, seen)
        self.write(layer, prefix, stored)
        self.skeleton.emptied(i)
        return after

    def group(
        self, layer: nn.Module, prefix: str, group: LinearGroup, inputs: InputStatistics
    ) -> dict[str, Linear]:
        """Search, fold and round the linears of one input."""
        names = [name for name in group.linears if f"{prefix}.{name}" not in self.left]
        if not names:
            return {}
        modules: list[Any] = [layer.get_submodule(name) for name in names]
        weight = torch.cat([module.weight for module in modules])
        found = self.search(layer, group, inputs, weight)
        if found.scale is not None and group.fold is not None:
            group.fold.apply(layer, found.scale)
            inputs = scale_inputs(inputs, found.scale)
            weight = torch.cat([module.weight for module in modules])
        stored = {
            name: self.rounded(module, inputs) for name, module in zip(names, modules, strict=True)
        }
        after = self.error(weight, inputs, list(stored.values()))
        if not self.options.search:
            reason = "no search was asked for"
        else:
            reason = group.reason if group.fold is None else ""
        into = group.fold.source if group.fold is not None and found.scale is not None else None
        self.made.groups.append(
            GroupResult(prefix, tuple(names), into, found.parameter, found.before, after, reason)
        )
        return stored

    def search(
        self, layer: nn.Module, group: LinearGroup, inputs: InputStatistics, weight: Tensor
    ) -> smooth.SmoothingScale:
        """The scale of one group's input."""
        fold, options = group.fold, self.options
        admissible: Callable[[Tensor], Tensor] | None = None
        if fold is not None and options.search:
            within = fold

            def admissible(s: Tensor) -> Tensor:
                return within.admissible(layer, s, self.skeleton.dtype)

        if options.scheme == "w4a16":
            about: dict[str, Any] = {"group": self.made.group, "dtype": self.skeleton.dtype}
            return awq.search(inputs, weight, admissible, **about)
        return smooth.search(
            inputs,
            weight,
            admissible,
            alpha=options.alpha,
            static=options.static,
            symmetric=self.symmetric,
        )

    @property
    def symmetric(self) -> bool:
        """Whether static inputs have no offset: compressed-tensors' own way."""
        return self.options.format == "compressed-tensors"

    def rounded(self, module: Any, inputs: InputStatistics) -> Linear:
        """One linear in its stored form, on the CPU."""
        weight, bias = module.weight, module.bias
        if self.options.scheme == "w4a16":
            size, dtype = self.made.group, self.skeleton.dtype
            search = self.options.search
            clip = awq.clip_scales(weight, inputs.kept, size, dtype) if search else None
            four = int4_linear(
                weight, int4_scale(weight, size, dtype) if clip is None else clip, bias
            )
            return replace(four, values=four.values.cpu(), scale=four.scale.cpu(), bias=here(bias))
        eight = int8_linear(weight, bias)
        eight = replace(eight, values=eight.values.cpu(), scale=eight.scale.cpu(), bias=here(bias))
        if not self.options.static:
            return eight
        scale, offset = input_range(*inputs.span(), symmetric=self.symmetric)
        return replace(eight, x_scale=here(scale), x_offset=here(offset))

    def error(self, weight: Tensor, inputs: InputStatistics, stored: list[Linear]) -> float:
        """Relative error of the outputs of a group as it is stored."""
        x = inputs.kept
        want = x @ weight.T
        codes = torch.cat([one.dense() for one in stored]).to(x.device)
        if self.options.scheme == "w8a8" and not self.options.static:
            x = rows_rounded(x)
        elif self.options.static:
            x = fixed_rounded(x, *input_range(*inputs.span(), symmetric=self.symmetric))
        norm = float(torch.linalg.vector_norm(want)) or 1.0
        return float(torch.linalg.vector_norm(x @ codes.T - want)) / norm

    def write(self, layer: nn.Module, prefix: str, stored: dict[str, Linear]) -> None:
        """One layer's tensors: quantised linears, and everything else in the model's dtype."""
        inside = set()
        for name, linear in stored.items():
            self.writer.put_linear(f"{prefix}.{name}", linear)
            inside |= {f"{name}.weight", f"{name}.bias"}
        for name, parameter in layer.named_parameters():
            self.written.add(f"{prefix}.{name}")
            if name not in inside:
                self.writer.put(f"{prefix}.{name}", parameter.to(self.skeleton.dtype))


def here(tensor: Tensor | None) -> Tensor | None:
    """A tensor of the CPU's own, None where there is none."""
    return None if tensor is None else tensor.detach().float().cpu()


def scale_inputs(inputs: InputStatistics, s: Tensor) -> InputStatistics:
    """What the linears get after the fold."""
    return InputStatistics(
        inputs.low / s,
        inputs.high / s,
        inputs.total / s,
        inputs.count,
        [rows / s for rows in inputs.rows],
    )
