"""The cases of a kit for every vendor function that joymigrate itself calls, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joymigrate.chips import Chip

HOUSE = Path(__file__).parents[2]  # joymigrate/
OURS = "joymigrate.run.kernels.vendor."
STRIDED_CASES = 2  # so many sample calls of an operator also run with gaps in their inputs
FILES = ("operator", "arguments", "results", "samples", "weights", "mask", "scores")
FOLDERS = ("run", "run/kernels", "run/kernels/ops", "run/kernels/vendor")


def cases(chip: Chip) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """One case per implementation, dtype and sample call; what was left out, with the reason."""
    from joymigrate.run.kernels import registry, vendors

    found: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for name, items in vendors.of_chip(chip.name).items():
        operator = registry.op(name).operator
        place = next(f"{module}:{name}" for module in modules() if declares(module, name))
        for item in items:
            if not str(item.function).startswith(OURS):
                left_out[f"{name} ({item.name})"] = "its code is not joymigrate's"
                continue
            for number, sample in enumerate(operator.cases(samples())):
                layouts = ("contiguous", "strided")[: 2 if number < STRIDED_CASES else 1]
                found += [
                    {
                        "id": f"{name} ({item.name}) {sample.name}, {dtype} {layout}",
                        "section": "kernel", "call": str(item.function), "operator": place,
                        "op": (item.calls or name).partition(",")[0], "sample": sample.name,
                        "dtype": dtype, "layout": layout, "args": [], "chip": chip.name,
                        "when": item.when or "", "packages": list(item.packages),
                        "grad": operator.differentiable and item.backward,
                    }
                    for dtype in item.dtypes if dtype in operator.dtypes for layout in layouts
                ]  # fmt: skip
    return found, left_out


def samples() -> Any:
    """The numbers of sample calls, the same on every machine."""
    from joymigrate.run.kernels.samples import Samples

    return Samples(0)


def modules() -> list[str]:
    """The modules that declare operators."""
    names = sorted(path.stem for path in (HOUSE / "run" / "kernels" / "ops").glob("[!_]*.py"))
    return [f"joymigrate.run.kernels.ops.{name}" for name in names]


def declares(module: str, name: str) -> bool:
    """Whether a module declares the operator of this name."""
    import importlib

    declared = importlib.import_module(module)
    known = getattr(declared, "OPERATORS", None) or (declared.OPERATOR,)
    return any(one.name == name for one in known)


def files(chip: str) -> dict[str, bytes]:
    """The files that `runner/vendor_kernels.py` needs beside torch, by their path in the kit."""
    chosen = [HOUSE / "errors.py"]
    chosen += [HOUSE / "run" / "kernels" / f"{name}.py" for name in FILES]
    for folder in ("ops", f"vendor/{chip}"):
        chosen += sorted((HOUSE / "run" / "kernels" / folder).glob("*.py"))
    found = {
        f"kit/{path.relative_to(HOUSE.parent).as_posix()}": path.read_bytes() for path in chosen
    }
    for folder in ("", *FOLDERS):
        found["/".join(filter(None, ("kit/joymigrate", folder, "__init__.py")))] = b""
    return found
