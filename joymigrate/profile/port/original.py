"""Calls an original that is built for the CPU, beside its reference: a process of its own.

    python -m joymigrate.profile.port.original JOB.json

JOB names `originals` (Python files, tried until one builds), `reference` (a file; none where the
original itself is the reference) and its `entry`, and `types` and `names` of the arguments. Prints
JSON: `result` (`equal`, `different`, `not run`), `cases`, `reason`, `built` (which original, or
None). A case in which the original made no finite number and changed no argument says nothing, and
is not counted. What the reference refuses is never handed to the original: C++ reads beyond a
buffer without a word.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from joymigrate.profile.port.interpret import load

TRIES, CASES = 400, 5
ALIKE = 12  # draws with one shape for all; nothing else is handed to an original unseen
BACKWARDS = "CUDA_ON_CPU_BACKWARDS"
RTOL, ATOL = 1e-4, 1e-5  # the reference adds in double precision, C++ often in single


def build(job: dict[str, Any]) -> tuple[Any, int | None, str]:
    """The first original that builds and computes: a module, its place; and why others don't."""
    why = job["why"]
    for place, path in enumerate(job["originals"]):
        module = load(Path(path))
        try:
            module.built()
        except Exception as error:
            lines = [line for line in str(error).splitlines() if "error" in line]
            said = (lines or [f"{type(error).__name__}: {error}"])[0].strip()[:160]
            why = f"the original does not build here: {said}"
            continue
        if has_kernel(module, job):
            return module, place, ""
        why = "the original builds, and has no kernel for the CPU"
    return None, None, why


def has_kernel(module: Any, job: dict[str, Any]) -> bool:
    """Whether torch finds a kernel of a built original: a binding may stand without any."""
    for given in draws(job["types"], job["names"], ALIKE):
        try:
            call_flat(module.on_cpu, given)
        except NotImplementedError:
            continue
        except Exception:
            return True
        return True
    return False


def draws(types: list[str], names: list[str], tries: int) -> Iterator[list[Any]]:
    """Arguments: shapes first alike, then at random; whole numbers stay small."""
    import torch

    for number in range(tries):
        random_ = random.Random(number)
        torch.manual_seed(number)
        rank = number % 4 + 1
        alike = [random_.choice([2, 3, 4]) for _ in range(rank)]
        given: list[Any] = []
        for kind, name in zip(types, names, strict=True):
            shape = alike
            if number >= ALIKE:
                shape = [random_.choice([*alike, 3]) for _ in range(random_.choice([1, 2, 3, 4]))]
            given.append(value(kind, name, shape, random_))
        yield given


def value(kind: str, name: str, shape: list[int], random_: random.Random) -> Any:
    """One argument of a C++ or schema type."""
    import torch

    plain = kind.replace("const", "").replace("&", "").strip()
    if ("optional" in plain or plain.endswith("?")) and random_.random() < 0.5:
        return None
    if "vector" in plain or plain.endswith("[]") or "IntArrayRef" in plain:
        if "Tensor" in plain:
            return [torch.randn(shape) for _ in range(2)]
        return [random_.choice([1, 2]) for _ in range(random_.choice([1, 2, 3]))]
    if "Tensor" in plain:
        whole = any(word in name for word in ("idx", "index", "indices", "ptr", "label", "batch"))
        if whole:
            dtype = random_.choice([torch.int64, torch.int32])
            return torch.randint(0, 2, shape, dtype=dtype)
        return torch.randn(shape)
    if "bool" in plain:
        return random_.random() < 0.5
    if any(word in plain for word in ("float", "double", "Scalar")):
        return random_.choice([0.5, 1.0, 2.0])
    if "str" in plain.lower():
        return random_.choice(["mean", "sum", "none"])
    return random_.choice([1, 2, 3])


def call_flat(
    function: Callable[..., Any], given: list[Any], *, backwards: bool = False
) -> list[Any]:
    """What a call returns and what it makes of its arguments, as a flat list.

    `backwards` turns the threads of a CUDA original around.
    """
    import torch

    given = copy.deepcopy(given)
    os.environ.pop(BACKWARDS, None)
    if backwards:
        os.environ[BACKWARDS] = "1"
    made = function(*given)
    return list(torch.utils._pytree.tree_leaves((made, given)))


def says_something(expected: list[Any], given: list[Any]) -> bool:
    """Whether a call made a finite number or changed an argument; its arguments come last."""
    import torch

    before = torch.utils._pytree.tree_leaves(given)
    made, after = expected[: len(expected) - len(before)], expected[len(expected) - len(before) :]
    for one in made:
        if isinstance(one, torch.Tensor) and bool(torch.isfinite(one).any()):
            return True
        if isinstance(one, (bool, int, float)) and math.isfinite(one):
            return True
    return not same(after, before)


def same(found: list[Any], expected: list[Any]) -> bool:
    """Equal within rounding."""
    import torch

    if len(found) != len(expected):
        return False
    for a, b in zip(found, expected, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype:
                return False
            if not torch.allclose(a.double(), b.double(), RTOL, ATOL, equal_nan=True):
                return False
        elif (
            isinstance(a, torch.Tensor)
            or isinstance(b, torch.Tensor)
            or (a != b and not (a != a and b != b))
        ):
            return False
    return True


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """The answer for one operator."""
    module, built, why = build(job)
    original = module.on_cpu if module is not None else None
    reference = None
    if job["reference"]:
        reference = getattr(load(Path(job["reference"])), job["entry"])
    if original is None and reference is None:
        return answer("not run", 0, why, built)
    called: Any = reference or original
    cases, refused = 0, "none fits"
    for given in draws(job["types"], job["names"], TRIES if reference else ALIKE):
        try:
            found = call_flat(called, given)
        except Exception as error:
            refused = f"{type(error).__name__}: {str(error)[:100]}"
            continue
        if original is not None:
            try:
                expected = call_flat(original, given, backwards=True)
            except Exception as error:
                refused = f"the original: {type(error).__name__}: {str(error)[:100]}"
                continue
            if not same(found, expected):
                said = "" if reference else ": it depends on the order of the kernel's threads"
                return answer("different", cases, f"case {cases + 1}{said}", built)
            if not says_something(expected, given):
                refused = "the original made no finite number"
                continue
        cases += 1
        if cases == CASES:
            break
    if original is None:
        ran = f"the reference ran in {cases} cases" if cases else f"no drawn case ran: {refused}"
        return answer("not run", cases, f"{why}; {ran}", built)
    if not cases:
        said = f"no drawn arguments told anything ({refused}): fill in CASES"
        return answer("not run", 0, said, built)
    return answer("equal", cases, "", built)


def answer(result: str, cases: int, reason: str, built: int | None) -> dict[str, Any]:
    """What is printed."""
    return {"result": result, "cases": cases, "reason": reason, "built": built}


if __name__ == "__main__":
    print(json.dumps(compare(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
