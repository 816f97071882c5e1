"""Random numbers for teacher-forced passes: the same on every device, dtype and version of torch.

Whatever a module draws while it is taught comes from numpy's PCG64, seeded by the module's name,
its call and the number of the draw. Masks of dropout are made here as well, because fused kernels
draw inside; fused attention can only be run without its dropout, and both sides do so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from joymigrate.modes import WatchingMode

CHOICE = ("num_samples", "replacement")  # arguments of `multinomial`
DROPOUTS = ("dropout", "dropout_", "native_dropout")
FEATURE_DROPOUTS = ("dropout1d", "dropout2d", "dropout3d", "feature_dropout", "feature_dropout_")
# Where each takes its dropout by position. The second calls the first where no mode sees it.
ATTENTION = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}

# Their dropout between layers is drawn inside where a device has them as one kernel. Where it
# stands: after the input, the states (or sizes and states), the weights and two settings.
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class Draws:
    """Hands out random tensors; `place` says which module draws, `log` what was drawn."""

    def __init__(self, place: Callable[[], str]) -> None:
        self.place = place
        self.count: dict[str, int] = {}
        self.log: dict[str, list[Any]] = {}

    def generator(self, what: str, setting: Any = None) -> np.random.Generator:
        """The generator of the next draw here."""
        place = self.place()
        number = self.count[place] = self.count.get(place, -1) + 1
        self.log.setdefault(place, []).append([what, setting])
        seed = hashlib.sha256(f"{place}#{number}".encode()).digest()[:8]
        return np.random.Generator(np.random.PCG64(int.from_bytes(seed, "little")))

    def uniform(self, shape: Any, what: str, setting: Any = None) -> torch.Tensor:
        """Uniform numbers in [0, 1), float64 on the CPU."""
        return torch.from_numpy(np.asarray(self.generator(what, setting).random(tuple(shape))))

    def normal(self, shape: Any, what: str) -> torch.Tensor:
        """Standard normal numbers, float64 on the CPU."""
        made = self.generator(what).standard_normal(tuple(shape))
        return torch.from_numpy(np.asarray(made))


class DropoutMode(TorchFunctionMode):
    """Dropout by masks of ours; attention without its own."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        place = ATTENTION.get(name, len(args))
        given = kwargs.get("dropout_p") or (args[place] if len(args) > place else 0.0)
        if name in ATTENTION and given and kwargs.get("training", True):
            self.draws.generator("attention dropout", given)
            if "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
            else:
                args = (*args[:place], 0.0, *args[place + 1 :])
        elif name in RECURRENT and len(args) > (place := 5 + is_packed(args)) + 1:
            if args[place] and args[place + 1]:
                self.draws.generator("recurrent dropout", float(args[place]))
                args = (*args[:place], 0.0, *args[place + 1 :])
        elif name in DROPOUTS + FEATURE_DROPOUTS and isinstance(args[0], torch.Tensor):
            return self.dropout(name, args, kwargs)
        return func(*args, **kwargs)

    def dropout(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """x · mask / (1 - p)."""
        values = args[0]
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        inplace = kwargs.get("inplace", args[3] if len(args) > 3 else name.endswith("_"))
        if not training or not p:
            return values
        shape = tuple(values.shape)
        if name in FEATURE_DROPOUTS:
            shape = shape[:2] + (1,) * (len(shape) - 2)
        kept = self.draws.uniform(shape, "dropout", float(p)) >= p
        mask = (kept.to(torch.float64) / (1 - p if p < 1 else 1)).to(values)
        return values.mul_(mask) if inplace else values * mask


class DrawMode(WatchingMode):
    """Every generator of random numbers (`torch.Tag.nondeterministic_seeded`) by draws of ours."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = draws

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[-1]
        made = self.draw(name, args, kwargs)
        if made is None:
            return func(*args, **kwargs)
        into = args[0] if name.endswith("_") else kwargs.get("out")
        if into is not None:
            into = into if name.endswith("_") else into.resize_(made.shape)
            return into.copy_(made.to(into.dtype))  # not every device has float64
        like = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name == "multinomial":
            return made.to(args[0].device)
        dtype = kwargs.get("dtype") or (like.dtype if like is not None else default_dtype(name))
        device = kwargs.get("device") or (like.device if like is not None else None)
        return made.to(dtype).to(device)

    def draw(self, name: str, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """The numbers, float64 on the CPU; None for an operator that is no plain generator."""
        base = name.rstrip("_").removesuffix("_like")
        shape: Any = args[0].shape if args and isinstance(args[0], torch.Tensor) else None
        given = [
            a for a in args[1 if shape is not None else 0 :] if not isinstance(a, list | tuple)
        ]
        sizes = next((a for a in args if isinstance(a, list | tuple)), None)
        shape = shape if shape is not None else sizes
        if base == "multinomial":
            return self.choices(*args, **{k: v for k, v in kwargs.items() if k in CHOICE})
        if base == "randperm":
            return torch.from_numpy(self.draws.generator(base).permutation(int(args[0])))
        if shape is None:
            return None
        if base == "rand":
            return self.draws.uniform(shape, base)
        if base == "randn":
            return self.draws.normal(shape, base)
        if base == "randint":
            low, high = (0, given[0]) if len(given) == 1 else (given[0], given[1])
            made = self.draws.generator(base).integers(int(low), int(high), tuple(shape))
            return torch.from_numpy(np.asarray(made))
        if base == "uniform":
            low, high = (*given, *(0.0, 1.0)[len(given) :])[:2]
            spread: torch.Tensor = self.draws.uniform(shape, base) * (high - low) + low
            return spread
        if base in ("normal", "log_normal"):
            if isinstance(args[0], torch.Tensor) and (name.endswith("_") or base == "log_normal"):
                first, second = (0.0, 1.0) if base == "normal" else (1.0, 2.0)
                mean, std = (*given, *(first, second)[len(given) :])[:2]
            else:  # torch.normal(mean, std): each a number or a tensor
                mean, std = (host(each) for each in (*args, 1.0)[:2])
                shape = sizes if sizes is not None else (mean + std).shape
            shaken: torch.Tensor = self.draws.normal(shape, base) * std + mean
            return shaken.exp() if base == "log_normal" else shaken
        if base == "cauchy":
            middle, width = (*given, *(0.0, 1.0)[len(given) :])[:2]
            turned = self.draws.uniform(shape, base) - 0.5
            spun: torch.Tensor = (turned * torch.pi).tan() * width + middle
            return spun
        if base == "geometric":
            tries = (1 - self.draws.uniform(shape, base)).log() / math.log1p(-float(given[0]))
            return tries.ceil().clamp(min=1)
        if base == "bernoulli":
            p = given[0] if given and not name.endswith("bernoulli") else None
            chance = p if p is not None else (args[0] if not name.endswith("_") else 0.5)
            chance = chance.double().cpu() if isinstance(chance, torch.Tensor) else chance
            setting = float(chance) if isinstance(chance, int | float) else None
            return (self.draws.uniform(shape, base, setting) < chance).to(torch.float64)
        if base == "exponential":
            rate = given[0] if given else 1.0
            waits: torch.Tensor = -(1 - self.draws.uniform(shape, base)).log() / rate
            return waits
        return None

    def choices(
        self, weights: torch.Tensor, num_samples: int, replacement: bool = False
    ) -> torch.Tensor | None:
        """Indices [rows, samples] by weights [rows, n], or both without rows; None where the
        operator itself would refuse the weights.

        One uniform number each on the summed weights; without replacement the `samples` that are
        first where each waits for a time of rate `weight` (Efraimidis and Spirakis, 2006).
        """
        if weights.is_meta or isinstance(weights, FakeTensor):
            return None
        p_RN = weights.detach().to("cpu", torch.float64)
        kept = (p_RN > 0).sum(-1)
        wrong = not p_RN.isfinite().all() or (p_RN < 0).any() or p_RN.dim() not in (1, 2)
        if wrong or num_samples < 1 or (kept < (1 if replacement else num_samples)).any():
            return None
        rows = tuple(p_RN.shape[:-1])
        if not replacement and num_samples > 1:
            waits_RN = -(1 - self.draws.uniform(tuple(p_RN.shape), "multinomial")).log() / p_RN
            waits_RN[p_RN == 0] = torch.inf
            return waits_RN.topk(num_samples, dim=-1, largest=False).indices
        sums_RN = p_RN.cumsum(-1)
        aims_RS = self.draws.uniform((*rows, num_samples), "multinomial") * sums_RN[..., -1:]
        found_RS = torch.searchsorted(sums_RN, aims_RS, right=True)
        # A number next to 1 may be rounded beyond the last sum: the last with a weight is meant.
        last_R1 = (p_RN > 0).to(torch.int64).cumsum(-1).argmax(-1, keepdim=True)
        return found_RS.minimum(last_R1)


def host(value: Any) -> Any:
    """A tensor as float64 on the CPU; a number as it is."""
    return value.detach().to("cpu", torch.float64) if isinstance(value, torch.Tensor) else value


def is_packed(args: Any) -> bool:
    """Whether a recurrent network is called with a packed sequence: its sizes come second."""
    sizes = args[1]
    return isinstance(sizes, torch.Tensor) and sizes.dtype is torch.int64


def default_dtype(name: str) -> torch.dtype:
    """What a factory makes when it is not told."""
    whole = name.startswith(("randint", "randperm"))
    return torch.int64 if whole else torch.get_default_dtype()
