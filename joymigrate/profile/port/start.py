"""Writes the torch reference of a bound operator with its registration, and a test that compares.

A reference that could not be derived is a file to fill in, which raises until it is written.
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
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.profile.port.operators import Argument, BoundOperator, find_builds
from joymigrate.profile.port.reference import FALLBACK, KERNEL, Derived, SourceProject, derive

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
SLOW = """

Translated number by number: for checking a faster one against it, not for speed."""
WORKING = '''"""A torch reference of {name}, bound at {where}.

Derived from {kind}: {source}.{left}{slow}
"""

from __future__ import annotations

import itertools
import math
import sys
import types

import torch

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
    derived = derive(one, project)
    if isinstance(derived, str):
        text = reference(one, function)
        about: dict[str, Any] = {"derived": None, "reason": derived}
    else:
        text, about = working(one, function, derived), asdict(derived)
        del about["text"], about["entry"]
        about = {"derived": about.pop("kind"), **about}
    written = not path.exists()
    for file, made in ((path, text), (folder / f"test_{function}.py", harness(one, function))):
        if not file.exists():
            save(file, made)
    if isinstance(derived, Derived) and proves:
        about["proof"] = (
            compare_reference(one, path, function, derived, project) if written
            else {"result": "not run", "cases": 0, "reason": "the file was there before"}
        )  # fmt: skip
    return replace(one, skeleton=str(path), reference=about)


def working(one: BoundOperator, function: str, derived: Derived) -> str:
    """The text of a reference that computes, with its registration."""
    left = ""
    if derived.left_out:
        left = (f"\n\nNot passed on: {', '.join(derived.left_out)}. See whether your program needs "
                "them.")  # fmt: skip
    slow = SLOW if derived.kind != FALLBACK else ""
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
        source=derived.where, left=left, slow=slow, body=text.strip(), function=function,
        parameters=names, entry=entry, given=plain, registration=registration,
    )  # fmt: skip


def compare_reference(
    one: BoundOperator, path: Path, function: str, derived: Derived, project: SourceProject
) -> dict[str, Any]:
    """The reference beside its original, in a process of its own."""
    sources, include = sources_of(one, project)
    why = "the original needs a GPU" if derived.kind == KERNEL else "its sources were not found"
    if derived.kind == KERNEL:
        sources = []
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "reference": str(path.resolve()), "entry": function, "kind": one.kind, "why": why,
            "types": [a.type for a in one.arguments or ()],
            "names": [a.name for a in one.arguments or ()], "sources": sources,
            "include": include, "name": one.name, "space": one.module, "folder": folder,
            "module": re.sub(r"\W", "_", one.module.rpartition(".")[2] or function),
        }  # fmt: skip
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "joymigrate.profile.port.original", str(file)]
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, env=environment
            )
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            found = {"result": "not run", "cases": 0, "reason": f"not done in {SECONDS} s"}
        except (ValueError, IndexError):
            tail = (done.stderr.strip().splitlines() or ["without a word"])[-1][:160]
            found = {"result": "not run", "cases": 0, "reason": f"the process ended: {tail}"}
    return found


def sources_of(one: BoundOperator, project: SourceProject) -> tuple[list[str], list[str]]:
    """C++ files to build the original from, and where their headers are."""
    builds = [build for path in project.python for build in find_builds(path)]
    fitting = [b for b in builds if Path(one.path).name in b.sources] or builds
    names = fitting[0].sources if fitting else frozenset()
    host = [path for path in project.native if path.suffix in (".cpp", ".cc", ".cxx")]
    listed = [path for path in host if any(fnmatchcase(path.name, name) for name in names)]
    if not listed:  # the file that binds, and those beside it
        listed = [path for path in host if path.parent == Path(one.path).parent]
    include = {str(path.parent.resolve()) for path in project.native}
    return [str(path.resolve()) for path in listed], sorted(include)


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
