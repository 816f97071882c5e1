"""Writes the torch reference of a bound operator with its registration, and a test that compares.

The reference is a Python function of the project, else the original's sources built for the CPU.
Where there is neither, it is a file to fill in, which raises until it is written.
"""

from __future__ import annotations

import json
import keyword
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.profile.port.operators import Argument, BoundOperator
from joymigrate.profile.port.originals import OriginalSources, find_originals
from joymigrate.profile.port.reference import HOST, KERNEL, Derived, SourceProject, fallback

LITERALS = {"true": "True", "false": "False", "none": "None", "nullopt": "None", "nullptr": "None"}
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.I)
REFERENCE = '''"""A torch reference of {name}, to be filled in. Not a port: it computes nothing yet.

Bound at {where}{module}.
"""

import torch


def {function}({parameters}):
    """Compute what {name} computes, with operators of torch only.

    Arguments, as the source writes them:
{arguments}

    Fill in: the result (shape, dtype and device as of the original), or the change of the
    arguments that it writes into; where it accumulates in another dtype; what it does at the
    edges (empty input, strides, padding). Its backward follows if only differentiable operators
    of torch are used; a backward that is bound by itself has a file of its own.
    """
    raise NotImplementedError("{name}: write this")
'''
SECONDS = 1800  # to build an original and compare, on a busy machine too
WORKING = '''"""A torch reference of {name}, bound at {where}.

Derived from {kind}: {source}.{left}
"""

from __future__ import annotations

import functools
import math
import sys
import types
from pathlib import Path

import torch
from torch.utils import cpp_extension

{body}


def {function}({parameters}):
    """What {name} computes."""
    return {entry}({given})


{registration}'''
REGISTER_LIBRARY = '''def register(key="PrivateUse1"):
    """Make torch.ops.{space}.{name} call the reference; keep the library that is returned."""
    library = torch.library.Library("{space}", "FRAGMENT")
    schema = {schema!r}
    if schema and not hasattr(torch.ops.{space}, "{name}"):
        library.define(schema)
    library.impl("{name}", {function}, key)
    return library
'''
REGISTER_MODULE = '''def register(module="{module}"):
    """Put the reference where the program imports the compiled module from."""
    made = sys.modules.setdefault(module, types.ModuleType(module))
    setattr(made, "{name}", {function})
    return made
'''
HARNESS = '''"""Compares the torch reference of {name} with the original, or with recorded samples.

Where the original imports (a CUDA machine), both compute `CASES`. Elsewhere the samples in
`samples/{function}.*.pt` stand in; `record(*args, **kwargs)` writes one on a CUDA machine.
"""

import copy
import importlib
import importlib.util
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
SAMPLES = sorted(HERE.glob("samples/{function}.*.pt"))
CASES = []  # fill in: tuples of arguments with the sizes of your program
RTOL, ATOL = 1e-4, 1e-5


def reference():
    """The function of {function}.py."""
    spec = importlib.util.spec_from_file_location("{function}_reference", HERE / "{function}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.{function}


def original():
    """The bound operator; None where it does not import."""
    try:
        {original}
    except (ImportError, OSError, AttributeError, RuntimeError):
        return None


def moved(value, device):
    """Tensors on a device, inside lists, tuples and dicts as well."""
    return torch.utils._pytree.tree_map(
        lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, value
    )


def called(function, args, kwargs, device):
    """What a call returns, and its arguments afterwards: an operator may write into them."""
    args, kwargs = moved(copy.deepcopy((args, kwargs)), device)
    made = function(*args, **kwargs)
    return moved((made, args, kwargs), "cpu")


def record(*args, **kwargs):
    """Write what the original makes of these arguments as a sample."""
    function = original()
    if function is None:
        raise RuntimeError("{name} does not import here")
    before = moved(copy.deepcopy((args, kwargs)), "cpu")
    path = HERE / "samples" / f"{function}.{{len(list(HERE.glob('samples/{function}.*.pt')))}}.pt"
    path.parent.mkdir(exist_ok=True)
    expected = called(function, args, kwargs, "cuda")
    torch.save({{"args": before[0], "kwargs": before[1], "expected": expected}}, path)
    return path


def compare(found, expected):
    """Equal within the tolerances: results and arguments."""
    torch.testing.assert_close(
        torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected),
        rtol=RTOL, atol=ATOL,
    )


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_reference_computes_the_recorded_sample(path):
    sample = torch.load(path, weights_only=True)
    found = called(reference(), sample["args"], sample["kwargs"], "cpu")
    compare(found, sample["expected"])


@pytest.mark.parametrize("args", CASES)
def test_the_reference_computes_what_the_original_does(args):
    function = original()
    if function is None:
        pytest.skip("{name} does not import here")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compare(called(reference(), args, {{}}, device), called(function, args, {{}}, device))


def test_there_is_something_to_compare_with():
    can = original() is not None
    if not SAMPLES and not (CASES and can):
        pytest.fail("nothing was compared: fill in CASES where {name} imports, or record() samples")
'''


def write(
    ops: Iterable[BoundOperator], folder: Path, paths: Iterable[Path] = (), *, proves: bool = True
) -> list[BoundOperator]:
    """Two files per operator of tensors without a known replacement; existing ones stay.

    Returns the operators, each with its `skeleton` (the file) and `reference` (where it was derived
    from and how it compared, or why it could not be derived).
    """
    ops = list(ops)
    project = SourceProject(paths)
    often = Counter(function_of(one) for one in {(o.module, o.name): o for o in ops}.values())
    return [
        one if one.instead or one.host else start_files(one, folder, often, project, proves)
        for one in ops
    ]


def start_files(
    one: BoundOperator, folder: Path, often: Counter[str], project: SourceProject, proves: bool
) -> BoundOperator:
    """The files of one operator."""
    function = function_of(one)
    if often[function] > 1:
        function = f"{re.sub(r'[^0-9a-zA-Z_]+', '_', one.module)}_{function}".strip("_")
    path = folder / f"{function}.py"
    derived = fallback(one, project)
    originals: list[OriginalSources] = []
    if one.arguments is not None:
        found = find_originals(one, project.python, project.native)
        originals = [each for each in found if each.digest not in project.refused]
    written = not path.exists()
    proof: dict[str, Any] = {}
    if (derived or originals) and proves:
        proof = {"result": "not run", "cases": 0, "reason": "the file was there before"}
        if written:
            proof = compare_reference(one, function, derived, originals, folder)
    # Of what was not built, the last original is the whole one: with its CUDA files.
    tried = "built" in proof
    built = proof.pop("built", len(originals) - 1)
    project.refused |= {each.digest for each in originals[: built if tried else 0]}
    if derived is None and originals and built is not None:
        original = originals[built]
        derived = of_original(original)
        if written:
            original.write(folder)
        if derived.kind == KERNEL and proof.get("result") == "equal":
            ran = f"the original needs a GPU; on the CPU it ran in {proof['cases']} cases"
            proof |= {"result": "not run", "reason": ran}
    if derived is None:
        reason = proof.get("reason") or "its definition is not in the files that were read"
        text, about = reference(one, function), {"derived": None, "reason": reason}
    else:
        text = working(one, function, derived)
        about = {"derived": derived.kind, "where": derived.where, "left_out": derived.left_out}
        about |= {"proof": proof} if proof else {}
    for file, made in ((path, text), (folder / f"test_{function}.py", harness(one, function))):
        if not file.exists():
            save(file, made)
    return replace(one, skeleton=str(path), reference=about)


def of_original(original: OriginalSources, folder: Path | None = None) -> Derived:
    """A reference that is the original, built for the CPU."""
    kind = KERNEL if original.on_device else HOST
    return Derived(kind, ", ".join(original.sources), original.text(folder), "on_cpu")


def working(one: BoundOperator, function: str, derived: Derived) -> str:
    """The text of a reference that computes, with its registration."""
    left = ""
    if derived.left_out:
        left = (f"\n\nNot passed on: {', '.join(derived.left_out)}. See whether your program needs "
                "them.")  # fmt: skip
    names = parameters(one.arguments)
    plain = ", ".join(part.partition("=")[0] for part in names.split(", ")) if names else ""
    text = derived.text
    if derived.entry == function:  # the public name is the wrapper's
        text = re.sub(rf"\b{re.escape(derived.entry)}\b(?=\()", f"_{function}", text)
        entry = f"_{function}"
    else:
        entry = derived.entry
    if one.kind == "torch_library":
        base = one.name.partition(".")[0]
        schema = one.schema if "(" in one.schema else ""
        registration = REGISTER_LIBRARY.format(
            space=one.module, name=base, schema=schema, function=function
        )
    else:
        registration = REGISTER_MODULE.format(module=one.module or "", name=one.name,
                                              function=function)  # fmt: skip
    return WORKING.format(
        name=one.name, where=f"{Path(one.path).as_posix()}:{one.line}", kind=derived.kind,
        source=derived.where, left=left, body=text.strip(), function=function,
        parameters=names, entry=entry, given=plain, registration=registration,
    )  # fmt: skip


def compare_reference(
    one: BoundOperator, function: str, derived: Derived | None, originals: list[OriginalSources],
    folder: Path,
) -> dict[str, Any]:  # fmt: skip
    """The originals built one after the other, and called beside the reference, in a process.

    What is a reference itself is built in `folder`: operators of the same sources share a build.
    """
    with tempfile.TemporaryDirectory() as name:
        jobs = Path(name)
        job: dict[str, Any] = {
            "reference": "", "entry": function, "why": "its sources were not found",
            "types": [a.type for a in one.arguments or ()],
            "names": [a.name for a in one.arguments or ()], "originals": [],
        }  # fmt: skip
        texts = {}
        where = folder if derived is None else jobs
        for place, original in enumerate(originals):
            original.write(where)
            texts[f"original{place}"] = working(one, function, of_original(original, where))
            job["originals"].append(str(jobs / f"original{place}.py"))
        if derived is not None:
            texts["reference"] = working(one, function, derived)
            job["reference"] = str(jobs / "reference.py")
        for file, text in texts.items():
            (jobs / f"{file}.py").write_text(text, encoding="utf-8")
        (jobs / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "joymigrate.profile.port.original",
                   str(jobs / "job.json")]  # fmt: skip
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        found: dict[str, Any] = {"result": "not run", "cases": 0}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, env=environment
            )
            found = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            found["reason"] = f"not done in {SECONDS} s"
        except (ValueError, IndexError):
            tail = (done.stderr.strip().splitlines() or ["without a word"])[-1][:160]
            found["reason"] = f"the process ended: {tail}"
    return found


def save(path: Path, text: str) -> None:
    """Write a file in one step."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise JoyError(f"cannot write: {error.strerror}", where=str(path)) from None


def function_of(one: BoundOperator) -> str:
    """A Python name for the operator."""
    name = re.sub(r"\W+", "_", one.name, flags=re.ASCII).strip("_") or "operator"
    return f"{name}_" if keyword.iskeyword(name) or name[0].isdigit() else name


def reference(one: BoundOperator, function: str) -> str:
    """The text of the reference."""
    arguments = [f"{a.type} {a.name}" + (f" = {a.default}" if a.default else "")
                 for a in one.arguments or ()]  # fmt: skip
    if one.arguments is None:
        arguments = ["not found in the files that were read"]
    module = f", imported as {one.module}" if one.module else ""
    return REFERENCE.format(
        name=one.name,
        where=f"{Path(one.path).as_posix()}:{one.line}",
        module=module,
        function=function,
        parameters=parameters(one.arguments),
        arguments="\n".join(f"        {line}".replace("\\", "/") for line in arguments or ["none"]),
    )


def parameters(arguments: tuple[Argument, ...] | None) -> str:
    """Python's parameters; `*args, **kwargs` where the source's are unknown."""
    if arguments is None:
        return "*args, **kwargs"
    found: list[str] = []
    optional = False
    for number, one in enumerate(arguments):
        name = one.name if one.name.isidentifier() else f"argument{number}"
        name = f"{name}_" if keyword.iskeyword(name) else name
        optional = optional or one.default is not None
        found.append(f"{name}={default(one.default)}" if optional else name)
    return ", ".join(found)


def default(text: str | None) -> str:
    """A default value in Python; None for one that only C++ can say."""
    word = (text or "").rpartition("::")[2].casefold()
    if word in LITERALS:
        return LITERALS[word]
    number = (text or "").rstrip("fFlL")
    return number if NUMBER.fullmatch(number) else "None"


def harness(one: BoundOperator, function: str) -> str:
    """The text of the test."""
    if one.kind == "torch_library":
        space, name = json.dumps(one.module), json.dumps(one.name.partition(".")[0])
        original = f"return getattr(getattr(torch.ops, {space}), {name})"
    elif one.module:
        original = (
            f"return getattr(importlib.import_module({json.dumps(one.module)}), "
            f"{json.dumps(one.name)})"
        )
    else:
        original = 'raise ImportError("fill in: the module that the operator is imported from")'
    return HARNESS.format(name=one.name, function=function, original=original)
