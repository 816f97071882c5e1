"""Which operator a device kernel computes, by its name: `rules/common/ops/kernels.yaml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from joymigrate.chips import rules_root
from joymigrate.errors import JoyError
from joymigrate.schema import document, read_file, setting

PATH = "common/ops/kernels.yaml"
ANONYMOUS = "(anonymous namespace)"
INDUCTOR = re.compile(r"^triton_(poi|red|per|tem|mm|for|unk)_fused_(?P<ops>\w+?)_\d+$")


@dataclass(frozen=True, slots=True)
class KernelName:
    """One pattern of a kernel's name, and what such a kernel computes."""

    match: str = setting(help="A Python regular expression, searched; case counts.")
    library: str = setting(help="Whose kernel it is.")
    op: str = setting("", "The operator; {name} is the pattern's group. Empty: a helper.")
    part_of: str = setting("", "Of a helper: what it helps.")

    def __post_init__(self) -> None:
        try:
            re.compile(self.match)
        except re.error as error:
            raise JoyError(f"no regular expression: {error}", where="match") from None


@dataclass(frozen=True, slots=True)
class KernelDtype:
    """One pattern of a kernel's name, and the element type that such a kernel works on."""

    match: str = setting(help="A Python regular expression, searched; case counts.")
    dtype: str = setting(help="torch's name of the element type.")


@document("kernel-names", f"What kernels compute, by their names: `{PATH}`.")
@dataclass(frozen=True, slots=True)
class KernelNames:
    """Every pattern, in the order in which they are tried."""

    kernels: tuple[KernelName, ...] = setting(help="The first that fits wins.")
    marks: Mapping[str, str] = setting(
        make=dict, help="By library: an expression that the function's own name holds."
    )
    namespaces: tuple[str, ...] = setting(
        make=tuple, help="Outermost C++ namespaces of libraries; in others nothing is known."
    )
    begins: tuple[str, ...] = setting(
        make=tuple,
        help="Libraries whose words are common: a function outside of a namespace begins with one.",
    )
    dtypes: tuple[KernelDtype, ...] = setting(
        make=tuple, help="Element types in kernels' names; the first that fits wins."
    )


@functools.cache
def kernel_names() -> tuple[tuple[re.Pattern[str], KernelName], ...]:
    """Every pattern, ready to search, in the order in which they are tried."""
    return tuple((re.compile(one.match), one) for one in read().kernels)


@functools.cache
def read() -> KernelNames:
    """The file as it is."""
    return read_file(KernelNames, rules_root() / PATH)


@functools.lru_cache(maxsize=65536)
def dtype_in(kernel: str) -> str:
    """The element type that a kernel's name says, `float64` of `volta_dgemm_64x64_nn`; or ""."""
    for one in read().dtypes:
        if re.search(one.match, kernel):
            return one.dtype
    return ""


@functools.lru_cache(maxsize=65536)
def operator_of(kernel: str) -> tuple[str, str]:
    """(`aten::mm`, `cublas`) of a kernel's name; empty where no pattern fits.

    Kernels that torch's compiler generated keep their own name: it lists the operators inside.
    """
    if kernel.startswith("triton_"):
        return (kernel, "inductor") if INDUCTOR.match(kernel) else ("", "")
    own, at = own_name(kernel)
    space = own.partition("::")[0] if "::" in own else ""
    if space and space not in read().namespaces:
        return "", ""
    for pattern, one in kernel_names():
        found = pattern.search(kernel)
        if not found or not re.search(read().marks.get(one.library, ""), own):
            continue
        if not space and one.library in read().begins and found.start() > at:
            continue
        name = next((text for text in found.groupdict().values() if text), "")
        return one.op.format(name=name.lower()), one.library
    return "", ""


def own_name(kernel: str) -> tuple[str, int]:
    """A function's qualified name without result, template and parameters, and where it begins.

    `void lab::Soft<at::Tile>(float*)` is lab's: what stands in brackets are other things' names.
    """
    if kernel.startswith("_Z"):  # not demangled
        return kernel, 0
    depth, kept = 0, []
    for sign in kernel.replace(ANONYMOUS, "anonymous"):
        depth -= sign == ">"
        if sign == "(" and not depth:
            break
        if not depth and sign != ">":
            kept.append(sign)
        depth += sign == "<"
    own = "".join(kept).replace("<", "").split(" ")[-1]
    begin = kernel.find(own.rpartition("::")[2])
    return own, begin + len(own.rpartition("::")[2]) - len(own.rpartition("::")[2].lstrip("_"))


def fused_operators(kernel: str, known: frozenset[str]) -> tuple[str, ...]:
    """Base names of the operators that a generated kernel computes, as its name lists them.

    Names of operators hold underscores themselves: the longest known one that fits is taken. Empty
    where a part of the name is no operator.
    """
    match = INDUCTOR.match(kernel)
    if match is None:
        return ()
    words = match["ops"].split("_")
    found: list[str] = []
    at = 0
    while at < len(words):
        for end in range(len(words), at, -1):
            name = "_".join(words[at:end])
            if name in known:
                found.append(name)
                at = end
                break
        else:
            return ()
    return tuple(found)
