"""Any nested state as tensors with names and a JSON skeleton: what safetensors and JSON can hold.

Bit for bit: dtypes, shapes and the values of tensors; kinds and order of keys; tuples, lists and
numbers. Tensors that share memory are written each by itself, and are separate when read back.
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (str, bool, int, type(None))
KEYS = {"str": str, "int": int, "bool": bool, "float": float}


@dataclass(slots=True)
class PlainState:
    """A state taken apart. `lost` names what neither tensors nor JSON can hold, with its place."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    skeleton: Any = None
    lost: list[str] = field(default_factory=list)


def take_apart(state: Any) -> PlainState:
    """The tensors and the skeleton of a state; its tensors are moved to the CPU."""
    found = PlainState()
    found.skeleton = part(state, "", found)
    return found


def part(value: Any, place: str, found: PlainState) -> Any:
    """One value of a skeleton."""
    if isinstance(value, Tensor):
        return tensor(value, place, found)
    if isinstance(value, np.ndarray | np.generic):
        return numpy_value(value, place, found)
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"$complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, (set, frozenset)):
        items = [part(one, f"{place}.{number}", found) for number, one in enumerate(value)]
        return {"$set": items, "frozen": isinstance(value, frozenset)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Size):
        return {"$size": list(value)}
    if isinstance(value, torch.device):
        return {"$device": str(value)}
    if isinstance(value, Mapping):
        return mapping(value, place, found)
    if isinstance(value, (list, tuple)):
        items = [part(one, f"{place}.{number}", found) for number, one in enumerate(value)]
        if type(value) not in (tuple, list):
            plainly = "tuple" if isinstance(value, tuple) else "list"
            found.lost.append(f"{place}: {type(value).__qualname__} becomes a {plainly}")
        if isinstance(value, tuple):
            return {"$tuple": items}
        return items
    if hasattr(value, "__dict__") and type(value).__name__ in ("Namespace", "SimpleNamespace"):
        found.lost.append(f"{place}: {type(value).__name__} becomes a mapping")
        return mapping(vars(value), place, found)
    found.lost.append(f"{place}: {type(value).__module__}.{type(value).__qualname__}")
    return {"$lost": f"{type(value).__module__}.{type(value).__qualname__}"}


def numpy_value(value: Any, place: str, found: PlainState) -> Any:
    """An array or number of numpy, as torch holds it; lost where torch has no such dtype."""
    array = np.ascontiguousarray(value)
    try:
        facts = tensor(torch.from_numpy(array.copy()), place, found)
    except TypeError:
        found.lost.append(f"{place}: {type(value).__qualname__} of {array.dtype}")
        return {"$lost": f"numpy.{array.dtype}"}
    shape = list(np.shape(value))
    return {"$numpy": facts["$tensor"], "shape": shape, "scalar": isinstance(value, np.generic)}


def tensor(value: Tensor, place: str, found: PlainState) -> Any:
    """A tensor by its name. Its device is not kept: a platform's devices are its own."""
    name = place.lstrip(".").encode("utf-8", "backslashreplace").decode() or "value"
    while name in found.tensors:
        name += "'"
    plain = value.detach()
    if plain.is_sparse or plain.is_quantized or plain.device.type == "meta":
        kind = "quantized" if plain.is_quantized else plain.device.type
        found.lost.append(f"{place}: a {'sparse' if plain.is_sparse else kind} tensor")
        return {"$lost": "tensor"}
    found.tensors[name] = plain.cpu().contiguous().clone()
    facts: dict[str, Any] = {"$tensor": name}
    if isinstance(value, torch.nn.Parameter):
        facts["parameter"] = bool(value.requires_grad)
    return facts


def mapping(value: Mapping[Any, Any], place: str, found: PlainState) -> Any:
    """A mapping as pairs, so that keys keep their kind and order."""
    pairs = []
    for key, item in value.items():
        kind = type(key).__name__
        if kind not in KEYS:
            found.lost.append(f"{place}.{key}: a key of {type(key).__qualname__}")
            continue
        pairs.append([kind, key, part(item, f"{place}.{key}", found)])
    if not isinstance(value, OrderedDict):
        return {"$map": pairs}
    versions = getattr(value, "_metadata", None)  # of modules, in a model's state_dict
    more = {} if versions is None else {"$metadata": part(versions, f"{place}._metadata", found)}
    return {"$ordered": pairs, **more}


def put_together(skeleton: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state of a skeleton; what was lost is None."""
    if isinstance(skeleton, list):
        return [put_together(one, tensors) for one in skeleton]
    if not isinstance(skeleton, Mapping):
        return skeleton
    if "$tensor" in skeleton:
        plain = tensors[skeleton["$tensor"]]
        if "parameter" in skeleton:
            return torch.nn.Parameter(plain, requires_grad=skeleton["parameter"])
        return plain
    if "$numpy" in skeleton:
        array = tensors[skeleton["$numpy"]].numpy().reshape(skeleton["shape"])
        return array[()] if skeleton["scalar"] else array
    if "$bytes" in skeleton:
        return base64.b64decode(skeleton["$bytes"])
    if "$complex" in skeleton:
        return complex(*map(float, skeleton["$complex"]))
    if "$set" in skeleton:
        made = {put_together(one, tensors) for one in skeleton["$set"]}
        return frozenset(made) if skeleton["frozen"] else made
    if "$tuple" in skeleton:
        return tuple(put_together(one, tensors) for one in skeleton["$tuple"])
    if "$float" in skeleton:
        return float(skeleton["$float"])
    if "$dtype" in skeleton:
        return getattr(torch, skeleton["$dtype"])
    if "$size" in skeleton:
        return torch.Size(skeleton["$size"])
    if "$device" in skeleton:
        return torch.device(skeleton["$device"])
    if "$lost" in skeleton:
        return None
    pairs = skeleton.get("$map", skeleton.get("$ordered", []))
    items = [(KEYS[kind](key), put_together(item, tensors)) for kind, key, item in pairs]
    if "$ordered" not in skeleton:
        return dict(items)
    ordered = OrderedDict(items)
    if "$metadata" in skeleton:
        ordered._metadata = put_together(skeleton["$metadata"], tensors)  # type: ignore[attr-defined]
    return ordered
