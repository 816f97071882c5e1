"""Takes Triton kernels through the front end of a chip's own compiler: a process of its own.

    python -m joymigrate.profile.port.lower JOBS.json FIRST

JOBS lists `file`, `kernel`, `case` (arguments as `draw.py` makes them), `grid` and `compiler`,
which names the backend's module, its target and the stages to go through. Prints a line of JSON per
job, with `told`: "taken", or what the compiler says. The process must find the chip's Triton.
"""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.profile.port.interpret import load

POINTERS = {"rising": "i64", "zero": "i64", "float32": "fp32", "float16": "fp16",
            "bfloat16": "bf16", "bool": "i1", "uint8": "u8",
            "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8"}  # fmt: skip
LONGEST = 240  # characters of an error


def load_kernel(job: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The compiled function below launchers, and what is computed for its arguments at a launch."""
    module = load(Path(job["file"]))
    if hasattr(module, "_GRID"):  # of a variant
        module._GRID.set(tuple(job.get("grid", (1,))))
    kernel = getattr(module, job["kernel"])
    if inspect.isfunction(kernel):  # which the project compiles by a call, not by a decorator
        kernel = importlib.import_module("triton").jit(kernel)
    computed: dict[str, Any] = {}
    while not hasattr(kernel, "params"):
        values = getattr(kernel, "values", None)
        computed |= values if isinstance(values, dict) else {}
        kernel = vars(kernel).get("kernel") or kernel.fn
    return kernel, computed


def types(
    kernel: Any, computed: Mapping[str, Any], case: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """(signature, constants) of a kernel for one set of arguments."""
    import triton.language as tl

    plain = {name: what.get("value") for name, what in case.items()}
    plain = {n: getattr(tl, v["dtype"]) if isinstance(v, dict) else v for n, v in plain.items()}
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for parameter in kernel.params:
        name = parameter.name
        given = plain.get(name)
        if name in computed:
            given = computed[name](plain)
        elif name not in case:
            given = parameter.default if parameter.has_default else None
        if "pointer" in case.get(name, {}):
            signature[name] = "*" + POINTERS[case[name]["pointer"]]
        elif parameter.is_constexpr or given is None:
            constants[name] = given
        elif isinstance(given, bool):
            signature[name] = "i1"
        else:
            signature[name] = "fp32" if isinstance(given, float) else "i32"
    return signature, constants


def lower_job(job: Mapping[str, Any]) -> str:
    """What the compiler's front end says to one kernel."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import BaseBackend, GPUTarget
    from triton.compiler.compiler import ASTSource

    about = job["compiler"]
    kernel, computed = load_kernel(job)
    signature, constants = types(kernel, computed, job["case"])
    if "constexprs" in inspect.signature(ASTSource).parameters:
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, signature, constexprs=constants)
    else:
        source = ASTSource(kernel, signature, constants=constants)
    target = GPUTarget(*about["target"])
    found = importlib.import_module(about["backend"])
    kinds = [one for one in vars(found).values() if isinstance(one, type)
             and issubclass(one, BaseBackend) and one is not BaseBackend]  # fmt: skip
    backend = kinds[0](target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    have = {"target": target, "options": options, "context": context, "stages": {},
            "module_map": backend.get_module_map(),
            "language": getattr(source, "language", None)}  # fmt: skip

    def call(function: Any) -> Any:  # releases of Triton differ in what these take
        return function(**{name: have[name] for name in inspect.signature(function).parameters})

    have["codegen_fns"] = call(backend.get_codegen_implementation)
    made = call(source.make_ir)
    call(backend.add_stages)
    stages: dict[str, Any] = have["stages"]
    metadata = {**vars(options), "hash": "joymigrate"}
    for name in about["stages"]:
        made = stages[name](made, metadata)
    return "taken"


def ask_front_end(job: Mapping[str, Any]) -> str:
    """`taken`, or the compiler's first word against a kernel."""
    try:
        return lower_job(job)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode("utf-8", "replace")
        lines = [line for line in said.splitlines() if "error:" in line]
        return (lines or [f"a stage ended with {error.returncode}"])[0].partition("error:")[2][
            :LONGEST
        ].strip() or f"a stage ended with {error.returncode}"
    except Exception as error:
        return word_error(error)


def word_error(error: Exception) -> str:
    """The last line of what was raised first."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:LONGEST]


def main(arguments: list[str]) -> int:
    """All jobs of a file, from the one that is asked for on."""
    jobs = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    for job in jobs[int(arguments[1]) :]:
        print(json.dumps({"told": ask_front_end(job)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
