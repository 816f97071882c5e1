"""What in a state belongs to one platform, and what can be made of it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096)  # block sizes of bitsandbytes
WRAPPED = "__bnb_optimizer_quant_state__"  # what state_dict of bitsandbytes' optimisers puts around
RANDOM = ("rng", "random_state", "cuda_rng")


def notes(state: Any) -> list[str]:
    """What is carried bit for bit and means something on its own platform only."""
    found = []
    for place, value in walk(state, ""):
        last = place.rpartition(".")[2].lower()
        if isinstance(value, Mapping) and is_eight_bit(value):
            found.append(f"{place}: 8-bit state of bitsandbytes; --dequantise makes it float32")
        elif isinstance(value, Mapping) and "loss_scaler0" in value:
            found.append(f"{place}: loss scale of apex; --scaler makes a GradScaler's state of it")
        elif any(word in last for word in RANDOM) and ("cuda" in last or isinstance(value, list)):
            found.append(f"{place}: random state of a device; another chip draws other numbers")
        elif last.endswith(("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")):
            found.append(f"{place}: 4-bit weight of bitsandbytes; only it can read it")
    return found


def walk(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every mapping, list and leaf of a state with its place."""
    yield place.lstrip("."), value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            if isinstance(item, (Mapping, list, tuple)):
                yield from walk(item, f"{place}.{number}")


def is_eight_bit(value: Mapping[Any, Any]) -> bool:
    """Whether this is one parameter's state of an 8-bit optimiser."""
    first = value.get("state1")
    return isinstance(first, Tensor) and first.dtype == torch.uint8 and "qmap1" in value


def dequantise(state: Any) -> Any:
    """The state with 8-bit moments as float32: `qmap[code] * absmax[block]`, block by block."""
    if isinstance(state, Mapping):
        if isinstance(state.get(WRAPPED), Mapping):
            state = {**{k: v for k, v in state.items() if k != WRAPPED}, **state[WRAPPED]}
        if is_eight_bit(state):
            return eight_bit(state)
        made = {key: dequantise(item) for key, item in state.items()}
        return OrderedDict(made) if isinstance(state, OrderedDict) else made
    if isinstance(state, list):
        return [dequantise(item) for item in state]
    if type(state) is tuple:
        return tuple(dequantise(item) for item in state)
    return state


def eight_bit(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """One parameter's moments by torch's names."""
    gone = ("state1", "qmap1", "absmax1", "state2", "qmap2", "absmax2", "max1", "max2")
    found = {key: value for key, value in state.items() if key not in gone}
    for number, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        codes = state.get(f"state{number}")
        if codes is None:
            continue
        scale = state[f"absmax{number}"]
        values = state[f"qmap{number}"].float()[codes.reshape(-1).long()]
        blocks = scale.numel()
        size = next((b for b in BLOCKS if math.ceil(codes.numel() / b) == blocks), codes.numel())
        each = scale.float().repeat_interleave(size)[: codes.numel()]
        found[name] = (values * each).reshape(codes.shape)
    return found


def with_scaler(state: Any) -> Any:
    """The state with a `scaler` as torch.amp.GradScaler reads it, made of apex's loss scale."""
    if not isinstance(state, Mapping) or "scaler" in state:
        return state
    amp = state.get("amp")
    if not isinstance(amp, Mapping) or "loss_scaler0" not in amp:
        return state
    first = amp["loss_scaler0"]
    scaler = {
        "scale": float(first["loss_scale"]), "growth_factor": 2.0, "backoff_factor": 0.5,
        "growth_interval": 2000, "_growth_tracker": int(first.get("unskipped", 0)),
    }  # fmt: skip
    return {**state, "scaler": scaler}
