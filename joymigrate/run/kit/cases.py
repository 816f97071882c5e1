"""The cases of a kit that everybody gets: what is called with what, from `kit.yaml`."""

from __future__ import annotations

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
RATED = ("float32", "float16", "bfloat16")
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
        file = read_file(CasesFile, path, "cases", "see docs/how-to/kit.md")
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
    cases += [
        {**plain("rate", name), "id": f"rate {name} {dtype}", "dtype": dtype}
        for name, dtype in (*(("matmul", one) for one in RATED), ("copy", "uint8"))
    ]
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
        used: set[str] = set()
        args = [argument(one, whole, dtype, masters, used) for one in entry.args]
        yield {
            "id": f"{op} {dtype} {layout}", "section": section, "call": entry.call, "op": op,
            "dtype": dtype, "layout": layout, "args": args, "kwargs": dict(entry.kwargs),
            "grad": entry.grad and not whole, "results": entry.results,
            "reference": entry.reference,
        }  # fmt: skip


def argument(value: Any, whole: bool, dtype: str, masters: Masters, used: set[str]) -> Any:
    """One argument: a tensor's name, or the value itself. `used`: inputs of this call so far."""
    if isinstance(value, list):
        kind = "whole" if whole else "float"
        found = {"tensor": tensor(kind, value, 9, masters, used)}
        return {**found, "dtype": dtype} if whole and dtype != "int64" else found
    if not isinstance(value, Mapping):
        raise JoyError(f"{value!r} is no argument of a case", help="a shape, or {value: …}")
    if "value" in value:
        return value["value"]
    if "many" in value:
        return [argument(shape, whole, dtype, masters, used) for shape in value["many"]]
    if "positive" in value:
        return {"tensor": tensor("positive", value["positive"], 9, masters, used)}
    if "bool" in value:
        return {"tensor": tensor("bool", value["bool"], 2, masters, used)}
    return {"tensor": tensor("whole", value["index"], value["below"], masters, used)}


def tensor(kind: str, shape: Sequence[int], below: int, masters: Masters, used: set[str]) -> str:
    """The name of an input, made where it is new; arguments of one call get different numbers."""
    stem = f"{kind}_{'x'.join(map(str, shape))}" + (f"_{below}" if kind == "whole" else "")
    names = (f"{stem}.{number}" for number in range(len(used) + 1))
    name = next(one for one in names if one not in used)
    used.add(name)
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
