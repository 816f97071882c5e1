"""Which operator a device kernel computes, by its name: `rules/common/ops/kernels.yaml`."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from joymigrate.chips import read_yaml, rules_root
from joymigrate.errors import JoyError, did_you_mean

PATH = "common/ops/kernels.yaml"
KEYS = ("match", "op", "library", "part_of")
INDUCTOR = re.compile(r"^triton_(poi|red|per|tem|mm|for|unk)_fused_(?P<ops>\w+?)_\d+$")


@dataclass(frozen=True, slots=True)
class KernelName:
    """One pattern. `op` may hold `{name}`, which the pattern's group fills in."""

    match: re.Pattern[str]
    op: str
    library: str


@functools.cache
def kernel_names() -> tuple[KernelName, ...]:
    """Every pattern, in the order in which they are tried."""
    path = rules_root() / PATH
    found = []
    for number, item in enumerate(read_yaml(path)["kernels"]):
        where = f"{path} kernels[{number}]"
        for key in item:
            if key not in KEYS:
                raise JoyError(f"unknown key '{key}'.{did_you_mean(key, KEYS)}", where=where)
        try:
            found.append(KernelName(re.compile(item["match"]), item["op"], item["library"]))
        except (re.error, KeyError) as error:
            raise JoyError(f"not a kernel's pattern: {error}", where=where) from None
    return tuple(found)


@functools.lru_cache(maxsize=65536)
def operator_of(kernel: str) -> tuple[str, str]:
    """(`aten::mm`, `cublas`) of a kernel's name; empty where no pattern fits.

    Kernels that torch's compiler generated keep their own name: it lists the operators inside.
    """
    if kernel.startswith("triton_"):
        return (kernel, "inductor") if INDUCTOR.match(kernel) else ("", "")
    for one in kernel_names():
        found = one.match.search(kernel)
        if found:
            name = next((text for text in found.groupdict().values() if text), "")
            return one.op.format(name=name), one.library
    return "", ""


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
