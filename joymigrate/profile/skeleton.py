"""Starts the registration of an operator that a chip lacks: a file to fill in, with its test.

The file defines the operator's schema out of torch's own, registers a kernel for the chip's device
type, and checks it against the CPU. What has to be written raises until it is written.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable
from pathlib import Path

from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.profile.coverage import CoveredOperator
from joymigrate.profile.oplist.aten import AtenOp, split_arguments
from joymigrate.profile.oplist.lists import OpList, is_out

WORD = re.compile(r"\W+")
# Defaults that schemas write in C++'s words.
WORDS = {"Mean": "1", "contiguous_format": "torch.contiguous_format", "long": "torch.int64"}
BUILT_IN = ("cuda", "xpu", "hpu", "mps")  # device types with a dispatch key of their own
TEMPLATE = '''"""{name} for {title}: a kernel to write.

Calls in the recording: {calls}, with {dtypes}{where}.
{alternative}
"""

import torch
{import_line}
LIBRARY = torch.library.Library("{namespace}", "IMPL")


def {function}({parameters}):
    """Compute {name} with operators that the chip has, or call a kernel of your own.

    Schema: {schema}
    """
    raise NotImplementedError("{name}: write this")


LIBRARY.impl("{qualified}", {function}, "{key}")


def check(*args, rtol=1e-4, atol=1e-5, **kwargs):
    """Compare the kernel with torch's on the CPU: call it with CPU tensors of real shapes."""
    def moved(value):
        if isinstance(value, torch.Tensor):
            return value.to("{device}")
        if isinstance(value, (list, tuple)):
            return type(value)(map(moved, value))
        return value

    operator = torch.ops.{namespace}.{base}.{overload}
    expected = operator(*args, **kwargs)
    found = operator(*map(moved, args), **{{name: moved(v) for name, v in kwargs.items()}})
    back = torch.utils._pytree.tree_map(lambda t: t.cpu() if hasattr(t, "cpu") else t, found)
    torch.testing.assert_close(back, expected, rtol=rtol, atol=atol)
'''


def write(ops: Iterable[CoveredOperator], oplist: OpList, folder: Path) -> list[Path]:
    """One file per operator of torch that has no kernel; existing files are left alone.

    Left out are operators of other libraries, whose schema is not here, and those whose kernel
    only lacks a dtype. Returns the files written.
    """
    written = []
    for op in ops:
        table = oplist.resolver.table
        schema = table.ops.get(op.name.removeprefix("aten::"))
        if schema is None:
            schema = first_plain(op, oplist)
        if schema is None or oplist.status(op.op, schema.overload).supported:
            continue
        path = folder / f"{WORD.sub('_', op.name).strip('_')}.py"
        if path.exists() or path in written:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text(op, schema, oplist.chip), encoding="utf-8")
        except OSError as error:
            raise JoyError(f"cannot write: {error.strerror}", where=str(path)) from None
        written.append(path)
    return written


def first_plain(op: CoveredOperator, oplist: OpList) -> AtenOp | None:
    """The overload that a recording without overloads means: the first one without a kernel."""
    table = oplist.resolver.table
    names = table.bases.get(op.op.removeprefix("aten::"), ())
    plain = [n for n in names if not is_out(n)]
    for name in (*plain, *names):
        support = oplist.resolver.support(f"aten::{name}")
        if support is not None and not support.supported:
            return table.ops[name]
    return None


def text(op: CoveredOperator, schema: AtenOp, chip: Chip) -> str:
    """The file of one operator."""
    where = f", first at {op.where}" if op.where else ""
    named = f"{schema.base}_{schema.overload}".strip("_")
    return TEMPLATE.format(
        name=f"aten::{schema.name}",
        title=chip.title,
        calls=op.calls,
        dtypes=" ".join(op.dtypes) or "unknown dtypes",
        where=where,
        alternative=f"Known instead: {op.alternative}" if op.alternative else "",
        import_line=f"import {chip.package}  # noqa: F401  registers the device\n"
        if chip.package
        else "",
        namespace="aten",
        base=schema.base,
        overload=schema.overload or "default",
        qualified=schema.name,
        function=WORD.sub("_", named),
        parameters=parameters(schema.schema),
        schema=f"{schema.name}({schema.schema})",
        key="PrivateUse1" if chip.device not in BUILT_IN else chip.device.upper(),
        device=chip.device,
    )


def parameters(schema: str) -> str:
    """A schema's parameters as Python's: names, defaults that Python has, and `*`."""
    found = []
    for part in split_arguments(schema):
        if not part or part == "*":
            found += [part] if part else []
            continue
        written = part.rpartition(" ")[2]
        name, equals, default = written.partition("=")
        name = f"{name}_" if keyword.iskeyword(name) else name
        found.append(f"{name}={as_python(default)}" if equals else name)
    return ", ".join(found)


def as_python(default: str) -> str:
    """A default value as Python writes it; None for a word of C++ that it has no name for."""
    if default in WORDS:
        return WORDS[default]
    try:
        ast.literal_eval(default)
    except (ValueError, SyntaxError):
        return "None"
    return default
