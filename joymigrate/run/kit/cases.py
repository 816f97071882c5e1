"""The cases of a kit: what is called with what, from `kit.yaml` and from sealed predictions."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joymigrate.chips import Chip
from joymigrate.data import rules_root
from joymigrate.errors import JoyError
from joymigrate.schema import document, read_file, setting

FILE = "kit.yaml"
FLOATS = ("float64", "float32", "float16", "bfloat16")
Masters = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class CaseFields:
    """One operator with its arguments."""

    call: str = setting(help="what is called, by its Python name")
    args: tuple[Any, ...] = setting(help="shapes, or `{value: …}`, `{index: …, below: …}`")
    dtypes: str | tuple[str, ...] = setting(help="its dtypes, or `float`")
    kwargs: Mapping[str, Any] = setting(make=dict, help="values by name")
    grad: bool = setting(False, "gradients are compared too")
    layouts: tuple[str, ...] = setting((), "other layouts of the first argument")
    results: int | None = setting(None, "how many results are compared", least=1)
    reference: str | None = setting(None, "the formula that it is held against")


@document("kit-cases", "The cases of a chip-day kit: `kit.yaml`, common and of a chip's folder.")
@dataclass(frozen=True, slots=True)
class CasesFile:
    """A list of cases."""

    VERSIONED = True

    floats: tuple[str, ...] = setting(help="what `dtypes: float` stands for", key="float")
    operators: tuple[CaseFields, ...] = setting(help="operators")
    collectives: tuple[str, ...] = setting((), "collective operations")
    timed: tuple[str, ...] = setting((), "calls that are timed as well")
    backends: Mapping[str, str] = setting(make=dict, help="process groups by device")


def build(chip: Chip) -> tuple[list[dict[str, Any]], Masters, dict[str, str]]:
    """Cases, inputs (float64 or int64 or bool, by name), and the chip's process groups."""
    cases: list[dict[str, Any]] = []
    masters: Masters = {}
    backends = {"cpu": "gloo", "cuda": "nccl", chip.device: chip.backend}
    for section, path in (
        ("operator", rules_root() / "common" / FILE), ("vendor", chip.folder / FILE)
    ):  # fmt: skip
        if not path.is_file():
            continue
        file = read_file(CasesFile, path, "cases", "see docs/kit.md")
        backends |= file.backends
        for entry in file.operators:
            cases += of_entry(entry, section, file.floats, masters)
        cases += [plain("collective", name) for name in file.collectives]
        timed = set(file.timed)
        cases += [
            {**case, "id": f"time {case['id']}", "section": "time", "grad": False}
            for case in list(cases)
            if case["call"] in timed and case["section"] == section
            and case["layout"] == "contiguous"
        ]  # fmt: skip
    cases += [plain(name, name) for name in ("memory", "training", "serving")]
    return cases, masters, backends


def plain(section: str, name: str) -> dict[str, Any]:
    """A case that is a small program."""
    return {
        "id": f"{section} {name}" if section != name else name, "section": section, "call": name,
        "op": name, "dtype": "float32", "layout": "contiguous", "args": [], "grad": False,
    }  # fmt: skip


def of_entry(
    entry: CaseFields, section: str, floats: Sequence[str], masters: Masters
) -> Iterator[dict[str, Any]]:
    """One line of kit.yaml in each of its dtypes; other layouts in the first of them."""
    dtypes = floats if isinstance(entry.dtypes, str) else entry.dtypes
    layout_name = entry.kwargs.get("input_layout")
    op = entry.call + (f"[{layout_name}]" if layout_name else "")
    forms = [(dtype, "contiguous") for dtype in dtypes]
    forms += [(dtypes[0], layout) for layout in entry.layouts]
    for dtype, layout in forms:
        whole = dtype not in FLOATS
        args = [argument(one, whole, dtype, masters) for one in entry.args]
        yield {
            "id": f"{op} {dtype} {layout}", "section": section, "call": entry.call, "op": op,
            "dtype": dtype, "layout": layout, "args": args, "kwargs": dict(entry.kwargs),
            "grad": entry.grad and not whole, "results": entry.results,
            "reference": entry.reference,
        }  # fmt: skip


def argument(value: Any, whole: bool, dtype: str, masters: Masters) -> Any:
    """One argument: a tensor's name, or the value itself."""
    if isinstance(value, list):
        kind = "whole" if whole else "float"
        return {"tensor": tensor(kind, value, 9, masters)}
    if not isinstance(value, Mapping):
        raise JoyError(f"{value!r} is no argument of a case", help="a shape, or {value: …}")
    if "value" in value:
        return value["value"]
    if "many" in value:
        return [argument(shape, whole, dtype, masters) for shape in value["many"]]
    if "positive" in value:
        return {"tensor": tensor("positive", value["positive"], 9, masters)}
    if "bool" in value:
        return {"tensor": tensor("bool", value["bool"], 2, masters)}
    return {"tensor": tensor("whole", value["index"], value["below"], masters)}


def tensor(kind: str, shape: Sequence[int], below: int, masters: Masters) -> str:
    """The name of an input, made where it is new; equal shapes get different numbers."""
    stem = f"{kind}_{'x'.join(map(str, shape))}" + (f"_{below}" if kind == "whole" else "")
    number = sum(name.startswith(stem) for name in masters)
    name = f"{stem}.{number % 3}"  # three of each are enough to tell arguments apart
    if name not in masters:
        masters[name] = values(kind, shape, below, name)
    return name


def values(kind: str, shape: Sequence[int], below: int, name: str) -> np.ndarray[Any, Any]:
    """Numbers that depend on the name alone."""
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    if kind == "whole":
        return draw.integers(0, below, shape)
    if kind == "bool":
        return draw.integers(0, 2, shape).astype(bool)
    if kind == "positive":
        return draw.uniform(0.5, 2.0, shape)
    return draw.normal(0, 1, shape)


def of_signature(signature: Mapping[str, Any], masters: Masters) -> dict[str, Any] | str:
    """A case for a sealed call, or why none can be made of it."""
    name = str(signature["op"])
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    if "out" in overload:  # what a structured operator runs below its plain form
        overload = plain_overload(namespace, operator, overload)
    if operator.endswith("_") or (not overload and "out" in rest):
        return "writes into its arguments"
    kwargs = {k: v for k, v in (signature.get("kwargs") or {}).items() if k != "out"}
    if any(isinstance(v, Mapping) or str(v).startswith("<") for v in kwargs.values()):
        return "has a named argument that is neither a number nor a text"
    args = []
    for value in signature["args"]:
        made = sealed_argument(value, masters)
        if made is None:
            return "has an argument that is neither a tensor nor a number"
        args.append(made[0])
    dtypes = [v["tensor"]["dtype"] for v in signature["args"] if isinstance(v, Mapping)]
    dtype = next((one for one in dtypes if one in FLOATS), dtypes[0] if dtypes else "float32")
    shapes = " ".join(
        "x".join(map(str, v["tensor"]["shape"])) for v in signature["args"]
        if isinstance(v, Mapping)
    )  # fmt: skip
    said = repr([name, signature["args"], signature.get("kwargs") or {}])
    return {
        "id": f"{name} {dtype} {shapes} {zlib.crc32(said.encode()):08x}",
        "section": "operator", "call": f"torch.ops.{namespace}.{operator}.{overload or 'default'}",
        "op": name, "dtype": dtype, "layout": "contiguous", "args": args, "kwargs": kwargs,
        "grad": False, "results": None,
    }  # fmt: skip


def plain_overload(namespace: str, operator: str, overload: str) -> str:
    """The overload that makes its own result, as `out` of gelu stands for `default`; empty where
    there is none."""
    import torch

    packet = getattr(getattr(torch.ops, namespace), operator, None)
    known = packet.overloads() if packet is not None else ()
    for one in (overload.removesuffix("_out").replace("out", ""), "default", "Tensor"):
        if (one or "default") in known:
            return one or "default"
    return ""


def sealed_argument(value: Any, masters: Masters) -> tuple[Any] | None:
    """A tensor of a sealed call by name; whole numbers are zeros, which are valid indices."""
    if isinstance(value, Mapping):
        facts = value["tensor"]
        if facts["shape"] is None or None in facts["shape"]:
            return None
        if math.prod(facts["shape"]) > 1 << 18:
            return None
        if facts["dtype"] in FLOATS:
            return ({"tensor": tensor("float", facts["shape"], 9, masters)},)
        kind = "bool" if facts["dtype"] == "bool" else "whole"
        return ({"tensor": tensor(kind, facts["shape"], 1, masters)},)
    if isinstance(value, str) and value.startswith("<"):  # a type, or what was not recorded
        return None
    if isinstance(value, bool | int | float | str | type(None)):
        return (value,)
    if isinstance(value, list):
        inner = [sealed_argument(one, masters) for one in value]
        return ([one[0] for one in inner if one],) if all(inner) else None
    return None
