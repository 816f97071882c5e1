"""What arguments the kernels of the user's checkouts take, read from their headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joymigrate.run.rehearse.host_checks.checkouts import Checkouts
from joymigrate.run.rehearse.host_checks.recipe import LEFT_OUT

DECLARED = re.compile(r"\b(aclnn\w+)GetWorkspaceSize\s*\(([^()]*)\)\s*;")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
ARGUMENT = re.compile(r"(?P<type>[\w\s]+?[\s*&]*)(?P<name>\w+)\s*(?:\[\])?\s*(?:=.*)?$", re.DOTALL)
# What a C type is called in a question; a type that is not here makes its kernel unasked.
KINDS: Mapping[str, str] = {
    "aclTensor*": "tensor", "aclTensorList*": "tensors", "aclScalar*": "scalar",
    "aclScalarList*": "scalars", "aclIntArray*": "ints", "aclFloatArray*": "floats",
    "aclBoolArray*": "bools", "int64_t": "int64", "uint64_t": "uint64", "int": "int32",
    "int32_t": "int32", "uint32_t": "uint32", "int8_t": "int8", "bool": "bool",
    "double": "double", "float": "float", "char*": "text", "aclDataType": "dtype",
}  # fmt: skip
TENSORS = ("tensor", "tensors")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel. `role` is in, out, or inout (written where it was read)."""

    name: str
    kind: str
    role: str = "in"


def read_declarations(
    checkouts: Checkouts,
) -> tuple[dict[str, tuple[Argument, ...]], dict[str, str]]:
    """The arguments of every kernel that a header declares, without workspace and executor, and
    where each is from: repository, version and commit.

    Kernels with an argument of a type that is not known here are left out.
    """
    found: dict[str, tuple[Argument, ...]] = {}
    sources: dict[str, str] = {}
    for repository in checkouts.operators:
        folder = checkouts.root / repository
        for path in sorted(folder.rglob("op_api/*.h")):
            if LEFT_OUT.search("/" + path.relative_to(folder).as_posix()):
                continue
            here = declarations_in(path)
            found.update(here)
            source = f"host code of {repository} {checkouts.versions[repository]}"
            sources.update(dict.fromkeys(here, source))
    return found, sources


def declarations_in(path: Path) -> dict[str, tuple[Argument, ...]]:
    """The same of one header."""
    text = COMMENT.sub(" ", path.read_text(encoding="utf-8", errors="replace"))
    found = {}
    for name, inside in DECLARED.findall(text):
        arguments = [argument_of(one) for one in inside.split(",")[:-2]]
        known = [one for one in arguments if one is not None]
        if len(known) == len(arguments):
            found[name] = tuple(known)
    return found


def argument_of(text: str) -> Argument | None:
    """One declared argument; None where its type is not known."""
    match = ARGUMENT.match(text.strip())
    if match is None:
        return None
    words = match["type"].replace("*", " * ").split()
    kind = KINDS.get("".join(word for word in words if word != "const"))
    if kind is None:
        return None
    name = match["name"]
    role = "in"
    if kind in TENSORS and "const" not in words:
        role = "inout" if name.endswith("Ref") else "out"
    return Argument(name, kind, role)
