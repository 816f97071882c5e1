"""An update against float64 arithmetic of the device's own weights, gradients and state.

Settings and the optimiser's code on known tensors are compared elsewhere; neither shows a kernel
that is wrong for the strides that these weights have. Here elements of every weight are taken as
they lie in memory, before and after the step, and the optimiser's own code makes the step again
from them on the CPU, once in float64 and once in the weight's type: what the second is off by is
the measure for the device. A rule that is not one of single elements needs whole tensors, and is
made once more with products and sums that are moved by rounding.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from joymigrate.language import Text
from joymigrate.verify import layout
from joymigrate.verify.layout import has_strides, memory_of
from joymigrate.verify.noise import Noise
from joymigrate.verify.optimisers import needs_closure, settings_of, shadow_of
from joymigrate.verify.wrong_call import WrongCallSearch

OFF = 10.0  # times what the CPU's arithmetic in the same type is off by
SAMPLED = 64  # elements of a weight
MOST_WHOLE = 1 << 20  # elements of all weights of a group whose rule needs whole tensors
TINY = 1e-3  # of the usual update: what lies below it is no scale to measure by
CLOSE = 1e-9  # float64 arithmetic of single elements and of the whole tensor
PREFIXES = ("NpuFused", "Fused")  # a vendor's kernel for one of torch's rules


class NotJudged(Exception):
    """Why an update can't be made again."""


@dataclass(slots=True)
class Elements:
    """Elements of one weight before its update: the weight, its gradient and its state."""

    name: str
    weight: torch.Tensor
    positions: torch.Tensor | None
    before: dict[str, torch.Tensor]
    numbers: dict[str, Any]  # of the state: counts, and what is no tensor


@dataclass(slots=True)
class OwnUpdate:
    """The step of one optimiser, between its beginning and its end."""

    groups: list[tuple[dict[str, Any], bool, list[Elements]]] = field(default_factory=list)
    reason: Any = None

    def begin(self, optimiser: Any, names: Any, elementwise: dict[str, bool]) -> None:
        """Take what the step will read. `elementwise`: what is known of settings so far."""
        try:
            refuse_nested(optimiser)
            for group in optimiser.param_groups:
                key = str({**settings_of(group), "lr": None, "initial_lr": None})
                if key not in elementwise:
                    elementwise[key] = is_elementwise(optimiser, group)
                self.groups.append((group, elementwise[key], []))
                self.take(optimiser, group, names, elementwise[key])
        except Exception as error:  # the program's own optimiser, or tensors of its own kinds
            self.groups, self.reason = [], words_of(error)

    def take(self, optimiser: Any, group: Any, names: Any, single: bool) -> None:
        """Elements of a group's weights."""
        trained = [(i, p) for i, p in enumerate(group["params"]) if p.grad is not None]
        if not single and sum(p.numel() for _, p in trained) > MOST_WHOLE:
            raise NotJudged("its rule needs whole tensors, which are too large")
        for index, parameter in trained:
            weight = local(parameter)
            held = {"gradient": local(parameter.grad)}
            numbers: dict[str, Any] = {}
            for key, value in optimiser.state.get(parameter, {}).items():
                tensor = local(value) if isinstance(value, torch.Tensor) else None
                if tensor is not None and tensor.shape == weight.shape and tensor.dim():
                    held[key] = tensor
                elif tensor is not None and tensor.numel() > 1 and single:
                    raise NotJudged("its state has other shapes than the weights")
                elif tensor is not None:
                    numbers[key] = tensor.detach().clone()
                else:
                    numbers[key] = copy.copy(value)
            if not weight.numel():
                continue
            at = positions(weight.numel()) if single else None
            before = {key: elements(tensor, at) for key, tensor in held.items()}
            before["weight"] = elements(weight, at)
            name = names.get(parameter) or f"?:{index}"
            self.groups[-1][2].append(Elements(name, weight, at, before, numbers))

    def end(self, optimiser: Any) -> dict[str, Any]:
        """{rows: [name, what, error, base], reason}: the error of each weight and of its state, and
        what the CPU's own arithmetic in the same type is off by."""
        rows: list[list[Any]] = []
        operator = None
        if self.reason is None:
            try:
                for group, single, taken in self.groups:
                    for bundle in alike(taken, single):
                        rows += judge(optimiser, group, bundle)
                operator = self.wrong_operator(optimiser, rows)
            except Exception as error:
                rows, self.reason = [], words_of(error)
        return {"rows": rows, "reason": self.reason, "operator": operator}

    def wrong_operator(self, optimiser: Any, rows: Sequence[Sequence[Any]]) -> Any:
        """The first call of the optimiser's code that is wrong by itself, on weights that lie in
        memory as those whose update is wrong; None without any."""
        wrong = next((row[0] for row in rows if row[2] > OFF * row[3]), None)
        for group, _, taken in self.groups if wrong is not None else ():
            one = next((one for one in taken if one.name == wrong), None)
            mine = next((p for p in group["params"] if one and is_same(p, one.weight)), None)
            if mine is not None:
                weight = torch.nn.Parameter(layout.copy_as(local(mine)))
                weight.grad = layout.copy_as(local(mine.grad))
                shadow = shadow_of(optimiser, group, [weight], False)
                shadow.state[weight] = {
                    k: layout.copy_as(v) if torch.is_tensor(v) else copy.copy(v)
                    for k, v in optimiser.state.get(mine, {}).items()
                }
                search = WrongCallSearch()
                with (
                    contextlib.suppress(Exception),  # the program's own optimiser
                    torch._C._EnableTorchFunction(),
                    search,
                    torch.random.fork_rng(devices=[]),
                ):
                    type(shadow).step(shadow)
                found = search.found or {}
                return {key: value for key, value in found.items() if key != "case"} or None
        return None


def is_same(parameter: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a weight lies in a parameter's memory."""
    return local(parameter).data_ptr() == weight.data_ptr()


def words_of(error: Exception) -> Any:
    """Why nothing is judged."""
    if isinstance(error, NotJudged):
        return str(error)
    what = str(error).splitlines()[0][:200] if str(error) else ""
    return Text("{kind}: {what}", kind=type(error).__name__, what=what)


def refuse_nested(optimiser: Any) -> None:
    """Raises NotJudged for a rule that other objects have a part in, or that calls a closure."""
    if needs_closure(optimiser):
        raise NotJudged("it calls a closure")
    for value in vars(optimiser).values():
        nested = isinstance(value, torch.optim.Optimizer)
        if nested or (isinstance(value, list | tuple) and any(map(torch.is_tensor, value))):
            raise NotJudged("it holds another optimiser, or weights beside its groups")
    found = getattr(optimiser, "found_inf", None)
    if found is not None and bool(found):
        raise NotJudged("the step is left out: a gradient is not finite")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor. Raises NotJudged where it has no plain memory."""
    made = getattr(tensor, "_local_tensor", tensor).detach()
    if not has_strides(made):
        raise NotJudged("a weight, gradient or state of it has no strides")
    return made


def positions(size: int) -> torch.Tensor:
    """Which elements are looked at, by number, evenly spread."""
    if size <= SAMPLED:
        return torch.arange(size)
    return torch.linspace(0, size - 1, SAMPLED, dtype=torch.float64).long()


@functools.lru_cache(maxsize=4096)
def offsets(
    shape: tuple[int, ...], strides: tuple[int, ...], sampled: bool, device: torch.device
) -> torch.Tensor:
    """Where elements lie in the memory that a tensor spans: those of `positions`, or all."""
    size = math.prod(shape)
    number = positions(size) if sampled else torch.arange(size)
    place = torch.zeros_like(number)
    for index, stride in zip(torch.unravel_index(number, shape), strides, strict=True):
        place += index * stride
    return place.to(device)


def elements(tensor: torch.Tensor, at: torch.Tensor | None) -> torch.Tensor:
    """Copies of elements, read from one flat block of memory; None: all, in their shape."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if at is None and math.prod(shape) > SAMPLED and layout.is_plain(tensor):
        return tensor.clone()
    place = offsets(shape, strides, at is not None, tensor.device)
    found = memory_of(tensor)[place]
    return found if at is not None else found.view(shape)


def alike(taken: Sequence[Elements], single: bool) -> Iterator[list[Elements]]:
    """Weights that one call can update together: all of a group, or where the rule is one of single
    elements, those of equal counts."""
    if not single:
        if taken:
            yield list(taken)
        return
    found: dict[str, list[Elements]] = {}
    for one in taken:
        numbers = {k: float(v) if torch.is_tensor(v) else v for k, v in one.numbers.items()}
        key = f"{sorted(one.before)} {numbers} {one.weight.dtype}"
        found.setdefault(key, []).append(one)
    yield from found.values()


def judge(optimiser: Any, group: Any, bundle: Sequence[Elements]) -> Iterator[list[Any]]:
    """One row for each weight: (name, what, error, base)."""
    single = bundle[0].positions is not None
    wide = again(optimiser, group, bundle, torch.float64)
    own = [again(optimiser, group, bundle, None)]
    if not single:  # products and sums, which other kernels round otherwise
        with Noise(1.0):
            own.append(again(optimiser, group, bundle, None))
    for one, exact, *near in zip(bundle, wide, *own, strict=True):
        worst = (0.0, "weight", 0.0)
        state = optimiser.state
        mine = next((p for p in group["params"] if is_same(p, one.weight)), None)
        for key, golden in exact.items():
            held = one.weight if key == "weight" else state[mine].get(key)
            if not torch.is_tensor(held) or local(held).shape != one.weight.shape:
                continue
            here = elements(local(held), one.positions).cpu().double()
            before = one.before.get(key)
            error, base = measure_error(here, golden, [n[key] for n in near], before, held.dtype)
            if error / base > worst[0] / (worst[2] or 1.0):
                worst = error, key, base
        yield [one.name, worst[1], worst[0], worst[2], single]


def measure_error(
    here: torch.Tensor,
    golden: torch.Tensor,
    near: Sequence[torch.Tensor],
    before: torch.Tensor | None,
    dtype: torch.dtype,
) -> tuple[float, float]:
    """The largest error of an element and what is usual, by |value| + |update|."""
    start = before.cpu().double() if before is not None else torch.zeros_like(golden)
    moved = (golden - start.view_as(golden)).abs()
    scale = golden.abs() + moved + TINY * moved.square().mean().sqrt() + 1e-300
    unit = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
    error, *bases = (
        float(((x.double().view_as(golden) - golden).abs() / scale).nan_to_num().max())
        for x in (here, *near)
    )
    return error, max(*bases, unit, 1e-300)


def again(
    optimiser: Any, group: Any, bundle: Sequence[Elements], dtype: torch.dtype | None
) -> list[dict[str, torch.Tensor]]:
    """The step once more on the CPU, in a type (None: the weights' own): weight and state after it,
    of each weight. Elements of many weights are one tensor where the rule allows it."""
    single = bundle[0].positions is not None
    parts = [bundle] if single else [[one] for one in bundle]
    made_up, states, sizes = [], [], []
    for part in parts:
        joined = {
            key: torch.cat([one.before[key].reshape(-1) for one in part]).cpu()
            if single
            else part[0].before[key].cpu()
            for key in part[0].before
        }
        joined = {
            k: v.to(dtype) if dtype and v.is_floating_point() else v for k, v in joined.items()
        }
        weight = torch.nn.Parameter(joined.pop("weight").clone())
        weight.grad = scale_gradient(optimiser, joined.pop("gradient").to(weight.dtype))
        made_up.append(weight)
        numbers = {
            k: v.cpu().clone() if torch.is_tensor(v) else copy.copy(v)
            for k, v in part[0].numbers.items()
        }
        states.append(
            {k: joined[k].clone() if k in joined else numbers[k] for k in state_keys(part[0])}
        )
        sizes.append([one.before["weight"].numel() for one in part])
    shadow = stand_in(optimiser, group, made_up)
    if dtype is not None:
        states = [{k: widen_state(v, dtype) for k, v in state.items()} for state in states]
    for weight, state in zip(made_up, states, strict=True):
        if state:
            shadow.state[weight] = state
    with torch.random.fork_rng(devices=[]):
        type(shadow).step(shadow)
    found = []
    for weight, size in zip(made_up, sizes, strict=True):
        after = {"weight": weight.detach()}
        after |= {
            k: v
            for k, v in shadow.state[weight].items()
            if torch.is_tensor(v) and v.shape == weight.shape and v.dim()
        }
        pieces = {k: torch.split(v, size) if single else (v,) for k, v in after.items()}
        found += [{k: v[n] for k, v in pieces.items()} for n in range(len(size))]
    return found


def widen_state(value: Any, dtype: torch.dtype) -> Any:
    """A state's tensors in another type; counts of steps as they are."""
    floating = torch.is_tensor(value) and value.is_floating_point() and value.dim()
    return value.to(dtype) if floating else value


def state_keys(one: Elements) -> list[str]:
    """The keys of a weight's state."""
    return [*(k for k in one.before if k not in ("weight", "gradient")), *one.numbers]


def scale_gradient(optimiser: Any, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as a fused rule takes it: a scaler hands its factor to the rule itself."""
    factor = getattr(optimiser, "grad_scale", None)
    return gradient if factor is None else gradient / float(factor)


def stand_in(optimiser: Any, group: Any, made_up: list[torch.nn.Parameter]) -> Any:
    """An optimiser of the same rule and settings on the CPU."""
    plain = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
    name = type(optimiser).__name__
    rule = next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), None)
    known = getattr(torch.optim, rule, None) if rule else None
    if known is not None:  # a vendor's kernels run on its device alone
        made = known(made_up)
        for key in made.param_groups[0].keys() & plain.keys() - {"params"}:
            made.param_groups[0][key] = plain[key]
        made.param_groups[0] |= {"foreach": False, "fused": False}
        return made
    shadow = shadow_of(optimiser, plain, made_up, True)
    for name in ("grad_scale", "found_inf"):
        shadow.__dict__.pop(name, None)
    return shadow


def is_elementwise(optimiser: Any, group: Any) -> bool:
    """Whether an update of some elements is that of the whole tensor, by three steps on known
    numbers."""
    source = torch.Generator().manual_seed(5)
    value = torch.randn(6, 8, generator=source, dtype=torch.float64)
    slopes = torch.randn(3, 6, 8, generator=source, dtype=torch.float64)
    moved = []
    for some in (slice(None), slice(5, 37, 3)):
        start = value if some == slice(None) else value.reshape(-1)[some]
        weight = torch.nn.Parameter(start.clone())
        shadow = stand_in(optimiser, group, [weight])
        for slope in slopes:
            weight.grad = slope.clone() if some == slice(None) else slope.reshape(-1)[some].clone()
            with torch.random.fork_rng(devices=[]):
                type(shadow).step(shadow)
        moved.append(weight.detach().reshape(-1))
    return bool((moved[0][5:37:3] - moved[1]).abs().max() <= CLOSE)
