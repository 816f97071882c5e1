"""A script of at most thirty lines that shows one finding of a kit, with its inputs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

from joymigrate.chips import get
from joymigrate.errors import JoyError, did_you_mean

MOST_LINES = 30
INPUT = re.compile(r"(float|positive|whole|bool)_([\dx]*)(?:_(\d+))?\.\d+$")


def find(score: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
    """The row of a case by its id, or the only deviating one of an operator."""
    rows: dict[str, Mapping[str, Any]] = {str(row["id"]): row for row in score["results"]}
    if wanted in rows:
        return rows[wanted]
    deviating = [row for row in rows.values() if row["deviations"] and row["op"] == wanted]
    if len(deviating) == 1:
        return deviating[0]
    if deviating:
        ids = ", ".join(f"'{row['id']}'" for row in deviating)
        raise JoyError(f"{len(deviating)} findings of {wanted}", help=f"name one: {ids}")
    raise JoyError(f"no finding is called '{wanted}'.{did_you_mean(wanted, rows)}")


def script(score: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The script: it exits 1 while the finding shows. JoyError for what is no operator."""
    if row["section"] not in ("operator", "vendor"):
        raise JoyError(
            f"'{row['id']}' is a program, not an operator",
            help="send kit/runner/programs.py and the row of score.json",
        )
    device, dtype = score["device"], row["dtype"]
    chip = get(str(score["chip"]))
    names: dict[str, str] = {}
    call = ", ".join(argument_text(value, names) for value in row["args"])
    kwargs = "".join(f", {k}={v!r}" for k, v in (row.get("kwargs") or {}).items())
    versions = ", ".join(f"{k} {v}" for k, v in score["versions"].items())
    cast = f".to(torch.{dtype})" if dtype in ("float32", "float16", "bfloat16", "float64") else ""
    found = ", ".join(row["deviations"]) or row["outcome"]
    lines = [
        f'"""{row["id"]} on {score["device_name"]}: {found}.',
        "",
        f"{versions}; {score['date']}. Exits 1 while it shows, 0 when it is mended.",
        '"""',
        "import sys",
        "import numpy as np",
        "import torch",
        *([f"import {chip.package}"] if chip.package and device == chip.device else []),
        "",
    ]
    for name, variable in names.items():
        lines.append(f"{variable} = torch.from_numpy(np.asarray({numbers(name)}))")
        if name.startswith(("float", "positive")):
            lines[-1] += cast
        lines += layout(variable, row["layout"])
    variables = list(names.values())
    moved = ", ".join(f'{one}.to("{device}")' for one in variables)
    lines += [f"inputs = ({moved},)", "try:"]
    if row["section"] == "vendor":
        on_device = replaced(call, variables)
        lines += [f"    {row['call']}({on_device}{kwargs})", "except RuntimeError as error:"]
        lines += ["    sys.exit(f'refused: {error}')", "print('ran; compare with the formula')"]
    else:
        on_device = replaced(call, variables)
        lines += [
            f"    result = {row['call']}({on_device}{kwargs})",
            "except RuntimeError as error:",
            "    sys.exit(f'refused: {error}')",
            f"wanted = {row['call']}({wide(call, names)}{kwargs})",
            "first = result[0] if isinstance(result, tuple) else result",
            "wanted = wanted[0] if isinstance(wanted, tuple) else wanted",
            "error = (first.cpu().double() - wanted.double()).abs().max().item()",
            "print('dtype', first.dtype, 'strides', first.stride(), 'largest error', error)",
            f"sys.exit(error > {limit(row)!r} * wanted.double().abs().max().item())",
        ]
    if len(lines) > MOST_LINES:
        raise JoyError(f"the script has {len(lines)} lines", help="name a case with fewer inputs")
    return "\n".join(lines) + "\n"


def argument_text(value: Any, names: dict[str, str]) -> str:
    """An argument as code; tensors by a variable each."""
    if isinstance(value, Mapping) and "tensor" in value:
        return names.setdefault(str(value["tensor"]), f"x{len(names)}")
    if isinstance(value, list):
        return "[" + ", ".join(argument_text(one, names) for one in value) + "]"
    return repr(value)


def shapes(values: Any) -> list[list[int]]:
    """The shapes of the tensors among a case's arguments, in order."""
    if isinstance(values, Mapping) and "tensor" in values:
        found = INPUT.match(str(values["tensor"]))
        return [[int(part) for part in found[2].split("x") if part]] if found else []
    if isinstance(values, list):
        return [shape for one in values for shape in shapes(one)]
    return []


def replaced(call: str, variables: list[str]) -> str:
    """The arguments with the tensors of the device."""
    for number, variable in enumerate(variables):
        call = re.sub(rf"\b{variable}\b", f"inputs[{number}]", call)
    return call


def wide(call: str, names: Mapping[str, str]) -> str:
    """The arguments with floating-point tensors as float64."""
    for name, variable in names.items():
        if name.startswith(("float", "positive")):
            call = re.sub(rf"\b{variable}\b", f"{variable}.double()", call)
    return call


def numbers(name: str) -> str:
    """Code that draws the same numbers as the kit's input of this name (cases.values)."""
    found = INPUT.match(name)
    if found is None:
        raise JoyError(f"the input '{name}' is none of a kit")
    kind, text, below = found.groups()
    shape = [int(part) for part in text.split("x") if part]
    draw = f"np.random.default_rng({zlib.crc32(name.encode())})"
    if kind == "whole":
        return f"{draw}.integers(0, {below}, {shape})"
    if kind == "bool":
        return f"{draw}.integers(0, 2, {shape}).astype(bool)"
    if kind == "positive":
        return f"{draw}.uniform(0.5, 2.0, {shape})"
    return f"{draw}.normal(0, 1, {shape})"


def layout(variable: str, name: str) -> list[str]:
    """Code that lays a tensor out as the case did (runner.tensors.lay_out)."""
    if name == "transposed":
        swapped = f"{variable}.transpose(-1, -2).contiguous().transpose(-1, -2)"
        return [f"{variable} = {swapped} if {variable}.dim() > 1 else {variable}"]
    if name == "strided":
        return [f"{variable} = torch.stack([{variable}, {variable}], dim=-1)[..., 0]"]
    return []


def limit(row: Mapping[str, Any]) -> float:
    """The relative error that counts as wrong, as the kit judges it."""
    eps = {"float16": 9.77e-4, "bfloat16": 7.81e-3, "float64": 2.2e-16}.get(row["dtype"], 1.2e-7)
    return float(64 * eps)
