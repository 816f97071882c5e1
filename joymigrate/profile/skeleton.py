"""Starts the registration of an operator that a chip lacks: a file to fill in, with its test.

The file defines the operator's schema out of torch's own, registers a kernel for the chip's device
type, and checks it against the CPU. What has to be written raises until it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.profile.coverage import Covered
from joymigrate.profile.support import Status

WORD = re.compile(r"\W+")
TEMPLATE = '''"""{name} for {title}: a kernel to write.

Called {calls} times in the recording, with {dtypes}{where}.
{alternative}
"""

import torch
{import_line}
LIBRARY = torch.library.Library("{namespace}", "IMPL")


def {function}(*args, **kwargs):
    """Compute {name} with operators that the chip has, or call a kernel of your own.

    Arguments as in `torch.ops.{namespace}.{base}.{overload}`; results on the same device.
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


def write(ops: Iterable[Covered], chip: Chip, folder: Path) -> list[Path]:
    """One file per gap of torch's operators; existing files are left alone. The files written."""
    written = []
    for op in ops:
        if op.status is Status.UNKNOWN and not op.op.startswith("aten::"):
            continue  # its schema is in a library that is not here
        path = folder / f"{WORD.sub('_', op.name).strip('_')}.py"
        if path.exists() or path in written:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text(op, chip), encoding="utf-8")
        except OSError as error:
            raise JoyError(f"cannot write: {error.strerror}", where=str(path)) from None
        written.append(path)
    return written


def text(op: Covered, chip: Chip) -> str:
    """The file of one operator."""
    namespace, _, base = op.op.partition("::")
    where = f", first at {op.where}" if op.where else ""
    return TEMPLATE.format(
        name=op.name,
        title=chip.title,
        calls=op.calls,
        dtypes=" ".join(op.dtypes) or "unknown dtypes",
        where=where,
        alternative=f"Known instead: {op.alternative}" if op.alternative else "",
        import_line=f"import {chip.package}  # noqa: F401  registers the device\n"
        if chip.package
        else "",
        namespace=namespace,
        base=base,
        overload=op.overload or "default",
        qualified=f"{base}.{op.overload}" if op.overload else base,
        function=WORD.sub("_", f"{base}_{op.overload}".strip("_")).lstrip("_") or base,
        key="PrivateUse1" if chip.device not in ("cuda", "xpu", "hpu") else chip.device.upper(),
        device=chip.device,
    )
