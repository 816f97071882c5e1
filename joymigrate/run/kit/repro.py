"""A script of at most thirty lines that shows one finding of a kit, with its inputs."""

from __future__ import annotations

import ast
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.chips import get
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.kit.runner.judge import free_units

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
        kind = "a kernel of ours" if row["section"] == "kernel" else "a program"
        raise JoyError(
            f"'{row['id']}' is {kind}, not an operator",
            help="name the operator that it calls, or send the kit and the row of score.json",
        )
    chip, device = get(str(score["chip"])), score["device"]
    names: dict[str, str] = {}
    said = ", ".join(argument_text(value, names) for value in row["args"])
    for key, value in (row.get("kwargs") or {}).items():
        said += f", {key}={argument_text(value, names)}"
    formula, plain = reference(row)
    fell_back = "fallback" in (row["outcome"], *row["deviations"])
    lines = [
        *head(score, row, chip.package if chip.package and device == chip.device else ""),
        *(["import os, tempfile", "told = tempfile.TemporaryFile()"] if fell_back else []),
        *(["os.dup2(told.fileno(), 2)  # the package says so there"] if fell_back else []),
        *formula,
        *(line for form, name in names.items() for line in make_input(json.loads(form), name, row)),
        f"tensors = [{', '.join(names.values())}]",
        *move_inputs([json.loads(form) for form in names], str(row["layout"]), str(device)),
        *(WITH_GRADIENTS if "gradient" in row["deviations"] else []),
        "try:",
        f"    result = {row['call']}({place_arguments(said, names, 'inputs')})",
        "except (RuntimeError, NotImplementedError, TypeError) as error:",
        "    sys.exit(f'refused: {error}')",
    ]
    if fell_back:
        lines += ["told.seek(0)", "sys.exit(b'fall back to run on the CPU' in told.read())"]
    elif plain is None or not set(row["deviations"]) & set(SHOWS):
        lines += ["print('accepted')"]
    else:
        lines += write_comparison(row, f"{plain}({place_arguments(said, names, 'wide')})")
    if len(lines) > MOST_LINES:
        raise JoyError(f"the script has {len(lines)} lines", help="name a case with fewer inputs")
    return "\n".join(lines) + "\n"


SHOWS = ("result", "gradient", "dtype", "shape", "layout")
WITH_GRADIENTS = ["[x.requires_grad_() for x in inputs if x.is_floating_point()]"]


def head(score: Mapping[str, Any], row: Mapping[str, Any], package: str) -> list[str]:
    """What was found, where, by which versions; the imports."""
    versions = ", ".join(f"{k} {v}" for k, v in score["versions"].items())
    found = ", ".join(row["deviations"]) or row["outcome"]
    return [
        f'"""{row["id"]} on {score["device_name"]}: {found}.',
        "",
        f"{versions}; {score['date']}. Exits 1 while it shows, 0 when it is mended.",
        '"""',
        "import sys",
        "import numpy as np",
        "import torch",
        *([f"import {package}"] if package else []),
    ]


def reference(row: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """A vendor function's formula as code, and what to call in float64 (None: nothing is known)."""
    if row["section"] != "vendor":
        return [], str(row["call"])
    text = (Path(__file__).parent / "runner" / "references.py").read_text(encoding="utf-8")
    known = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)}
    name = str(row.get("reference") or "")
    if name not in known:
        return [], None
    used = {node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)}
    code = ["from torch.nn import functional"] if "functional" in used else []
    for one in (*(known[other] for other in sorted(used & set(known))), known[name]):
        del one.body[0]  # its docstring
        one.returns = None
        for part in one.args.args:
            part.annotation = None
        code += ast.unparse(one).splitlines()
    return code, name


def write_comparison(row: Mapping[str, Any], said: str) -> list[str]:
    """Code that compares a result with float64 and with what was predicted of its form."""
    names, predicted, bad = row["deviations"], row.get("predicted") or {}, "False"
    floats = "[x for x in {} if x.is_floating_point()]"
    lines = [
        "wide = [x.detach().double() if x.is_floating_point() else x for x in tensors]",
        *([WITH_GRADIENTS[0].replace("inputs", "wide")] if "gradient" in names else []),
        f"wanted = {said}",
        "first, wanted = (x[0] if isinstance(x, (tuple, list)) else x for x in (result, wanted))",
    ]
    pairs = "[(first, wanted)]"
    if "gradient" in names:
        weight = "(torch.arange(1, x.numel() + 1) / x.numel()).reshape(x.shape)"
        lines.append(f"[x.backward({weight}.to(x)) for x in (first, wanted)]")
        both = f"zip({floats.format('inputs')}, {floats.format('wide')})"
        pairs = f"[(x.grad, y.grad) for x, y in {both}]"
    lines += [
        "def error(x, y):",
        "    return ((x.cpu().double() - y.double()).abs().max() / y.double().abs().max()).item()",
        f"worst = max(error(x, y) for x, y in {pairs})",
        f"bad = worst > {limit(row)!r}",
    ]
    forms = (
        ("dtypes", "dtype", "str(first.dtype)", lambda x: f"torch.{x}"),
        ("shapes", "shape", "list(first.shape)", list),
        ("strides", "layout", "list(first.stride())", list),
    )
    for key, word, text, shown in forms:
        if word in names and predicted.get(key):
            bad = f"{text} != {shown(predicted[key][0])!r}"
            lines[-1] += f" or {bad}"
    if "shape" in names:
        lines[-4:] = [f"bad = {bad}", "worst = None"]
    said = "print(first.dtype, first.shape, first.stride(), 'largest error', worst)"
    return [*lines, said, "sys.exit(bad)"]


def move_inputs(forms: Sequence[Mapping[str, Any]], layout: str, device: str) -> list[str]:
    """Code that brings the tensors to the device with their strides: `to` closes gaps."""
    steps = [step for form in forms for step in form.get("strides") or ()]
    if layout == "contiguous" and not steps:
        return [f"inputs = [x.to({device!r}) for x in tensors]"]
    if 0 not in steps:
        empty = f"torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device={device!r})"
        return [f"inputs = [{empty}.copy_(x) for x in tensors]"]
    return [
        "def move(x):",
        "    held = [n if step else 1 for n, step in zip(x.shape, x.stride())]",
        f"    y = torch.empty_strided(held, x.stride(), dtype=x.dtype, device={device!r})",
        "    return y.copy_(x[tuple(map(slice, held))]).expand(x.shape)",
        "inputs = [move(x) for x in tensors]",
    ]


def argument_text(value: Any, names: dict[str, str]) -> str:
    """An argument as code; tensors by a variable each."""
    if isinstance(value, list):
        return "[" + ", ".join(argument_text(one, names) for one in value) + "]"
    if not isinstance(value, Mapping):
        return repr(value)
    if "tensor" in value:
        return names.setdefault(json.dumps(value, sort_keys=True), f"x{len(names)}")
    if "device" in value:
        return "inputs[0].device"
    return f"torch.{next(iter(value.values()))}"


def place_arguments(said: str, names: Mapping[str, str], where: str) -> str:
    """The arguments with the tensors of a list in place of their variables."""
    for number, variable in enumerate(names.values()):
        said = re.sub(rf"\b{variable}\b", f"{where}[{number}]", said)
    return said.replace("inputs[0].device", f"{where}[0].device") if names else said


def make_input(form: Mapping[str, Any], variable: str, row: Mapping[str, Any]) -> list[str]:
    """Code that makes one input: its numbers, dtype and layout."""
    name = str(form["tensor"])
    whole = not name.startswith(("float", "positive"))
    dtype = form.get("dtype") or ("" if whole else row["dtype"])
    cast = f".to(torch.{dtype})" if dtype else ""
    lines = [f"{variable} = torch.from_numpy(np.asarray({numbers(name)})){cast}"]
    steps = form.get("strides")
    if not steps:
        return lines + layout(variable, row["layout"])
    (shape,) = shapes(form)
    held = [1 if step == 0 else length for step, length in zip(steps, shape, strict=True)]
    part = "".join(f"[{', '.join(f':{length}' for length in held)}]")
    empty = f"torch.empty_strided({held}, {steps}, dtype={variable}.dtype)"
    return [*lines, f"{variable} = {empty}.copy_({variable}{part}).expand({shape})"]


def shapes(values: Any) -> list[list[int]]:
    """The shapes of the tensors among a case's arguments, in order."""
    if isinstance(values, Mapping) and "tensor" in values:
        found = INPUT.match(str(values["tensor"]))
        return [[int(part) for part in found[2].split("x") if part]] if found else []
    if isinstance(values, list):
        return [shape for one in values for shape in shapes(one)]
    return []


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
    return float(free_units(row["dtype"]) * eps)
